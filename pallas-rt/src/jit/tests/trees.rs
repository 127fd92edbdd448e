//! Axes of batches and Jacobians leaf by leaf.
use super::{array, close, numbers};
use crate::prelude::*;
use crate::tree::map_to;
use crate::{Arg, BatchAxes, grad, hessian, jacfwd, jacrev, jit, vmap};

#[derive(Clone, Tree)]
struct Model {
    layers: Vec<(Array, Option<Array>)>,
    scale: Array,
}

/// A model with a bias in its first layer alone; arrays have 3 elements.
fn model(seed: f32) -> Model {
    let three = |by: f32| array(&[seed, seed + by, by - seed], &[3]);
    Model { layers: vec![(three(1.0), Some(three(2.0))), (three(3.0), None)], scale: three(0.5) }
}

fn apply(model: &Model, x: &Array) -> (Array, Array) {
    let mut y = x.clone();
    for (w, b) in &model.layers {
        y = w * y;
        if let Some(b) = b {
            y = y + b;
        }
    }
    ((&model.scale * &y).sin(), y.sum(..))
}

/// The model with some leaves stacked along an axis for two examples: the second one is three times the first.
fn stacked(model: &Model, axes: &[Option<isize>]) -> Model {
    let mut axes = axes.iter();
    let stack = |x: &Array| {
        let axis = axes.next().expect("one for each leaf");
        Ok(axis.map_or_else(|| x.clone(), |axis| crate::ops::stack(&[x.clone(), x * 3.0], axis)))
    };
    crate::tree::map(model, stack).expect("the same tree")
}

fn example(model: &Model, axes: &[Option<isize>], factor: f32) -> Model {
    let mut axes = axes.iter();
    let one = |x: &Array| Ok(if axes.next().expect("one for each leaf").is_some() { x * factor } else { x.clone() });
    crate::tree::map(model, one).expect("the same tree")
}

/// For every way in which the leaves of a tree have axes or none, given in every form, a batch is the loop.
#[test]
fn each_leaf_has_an_axis_of_its_own() {
    let (one, x) = (model(0.25), array(&[0.5, -1.0, 2.0], &[3]));
    for number in 1..81 {
        let axis = |i: u32| [None, Some(0), Some(-1)][(number / 3usize.pow(i)) % 3];
        let [a, b, c, d] = [axis(0), axis(1), axis(2), axis(3)];
        let all = [a, b, c, d];
        let batch = stacked(&one, &all);
        let forms: [BatchAxes; 4] =
            [nested(a, b, c, d), (all, None).into(), (vec![BatchAxes::from(vec![a, b, c]), d.into()], None).into(), {
                let mut axes = all.into_iter();
                let tree = map_to(&one, |_| axes.next().expect("one for each leaf"));
                (tree, None).into()
            }];
        let want = [1.0, 3.0].map(|factor| apply(&example(&one, &all, factor), &x));
        for (form, axes) in forms.into_iter().enumerate() {
            let (y, sum) =
                vmap(apply).in_axes(axes).out_axes([Some(1), Some(0)])(&batch, &x).unwrap_or_else(|e| panic!("{e}"));
            let rows = numbers(&y.t());
            let wanted: Vec<f32> = want.iter().flat_map(|(y, _)| numbers(y)).collect();
            assert_eq!(rows, wanted, "{all:?}, form {form}");
            assert_eq!(numbers(&sum), want.iter().flat_map(|(_, sum)| numbers(sum)).collect::<Vec<f32>>());
        }
    }
}

/// Axes by fields: of the layers, of the scale; then of the second argument.
fn nested(a: Option<isize>, b: Option<isize>, c: Option<isize>, d: Option<isize>) -> BatchAxes {
    let layers = vec![BatchAxes::from((a, b)), BatchAxes::from(c)];
    ((layers, d), None).into()
}

#[test]
fn axes_of_leaves_differentiate_and_nest() {
    let (one, x) = (model(0.25), array(&[0.5, -1.0, 2.0], &[3]));
    let axes = [Some(0), None, Some(1), None];
    let batch = stacked(&one, &axes);
    // The gradient by a leaf that all examples share is the sum of theirs.
    let loss = move |model: &Model, x: &Array| {
        vmap(apply).in_axes((axes, None))(model, x).map(|(y, sum)| (y * y_weights()).sum(..) + sum.sum(..))
    };
    let found = jit(grad(loss))(&batch, &x).expect("it has a gradient");
    let own = |factor: f32| {
        let loss = |model: &Model, x: &Array| {
            let (y, sum) = apply(model, x);
            (y * y_weights()).sum(..) + sum
        };
        grad(loss)(&example(&one, &axes, factor), &x).expect("it has a gradient")
    };
    let (first, second) = (own(1.0), own(3.0));
    let both = |x: &Array, y: &Array| numbers(&(x + y)).iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    close(&found.scale, &both(&first.scale, &second.scale));
    let bias = |model: &Model| model.layers[0].1.clone().expect("a bias");
    close(&bias(&found), &both(&bias(&first), &bias(&second)));
    let rows = [numbers(&first.layers[0].0), numbers(&second.layers[0].0)].concat();
    close(&found.layers[0].0, &rows.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>());
}

fn y_weights() -> Array {
    array(&[1.0, -0.5, 0.25], &[3])
}

#[test]
fn wrong_axes_of_leaves_are_named() {
    let (one, x) = (model(0.25), array(&[0.5, -1.0, 2.0], &[3]));
    let refused = |axes: BatchAxes, words: &str| {
        let message = vmap(apply).in_axes(axes)(&one, &x).expect_err("it is wrong").to_string();
        assert!(message.contains(words), "{message}");
    };
    refused((vec![Some(0), None], None, None).into(), "3 axes for 2 children with 5 arrays in 2 arguments");
    refused(([Some(0); 3], None).into(), "3 axes for 2 children with 4 arrays");
    refused((([[Some(0); 3]; 2], None), None).into(), "3 axes for 2 children with 2 arrays");
    let other = map_to(&(x.clone(), x.clone()), |_| Some(0));
    refused((other, None).into(), "a tree of axes of another structure");
}

/// By several arguments that are trees: the blocks of the Jacobians by each array alone.
#[test]
fn jacobians_by_trees_are_those_by_arrays() {
    let f = |(w, b): &(Array, Array), n: &Array, x: &Array| {
        (((w * x).sin() * n + b).cos(), vec![(w * w).sum(..) * x.sum(..) * b.sum(..)])
    };
    let (w, b) = (array(&[0.5, 1.0, -1.0, 2.0, 0.0, 0.25], &[2, 3]), array(&[0.1, -0.2], &[2, 1]));
    let (n, x) = (Client::cpu().array(&[2i32], &[]).expect("it fits"), array(&[1.0, -0.5, 0.75], &[3]));
    let by = |leaf: usize| {
        let g = move |w: &Array, b: &Array, x: &Array, n: &Array| f(&(w.clone(), b.clone()), n, x);
        match leaf {
            0 => jacfwd(g).argnums(Arg::<0>)(&w, &b, &x, &n),
            1 => jacfwd(g).argnums(Arg::<1>)(&w, &b, &x, &n),
            _ => jacfwd(g).argnums(Arg::<2>)(&w, &b, &x, &n),
        }
    };
    let want = [by(0), by(1), by(2)].map(|found| found.expect("it has a Jacobian"));
    // The last argument first.
    let picked = (Arg::<2>, Arg::<0>);
    for found in [
        jacfwd(f).argnums(picked)(&(w.clone(), b.clone()), &n, &x).expect("it has Jacobians"),
        jacrev(f).argnums(picked)(&(w.clone(), b.clone()), &n, &x).expect("it has Jacobians"),
    ] {
        assert_eq!(found.paths(), ["0", "1[0]"]);
        for (k, (by_x, (by_w, by_b))) in found.leaves().iter().enumerate() {
            for (own, want) in [by_w, by_b, by_x].into_iter().zip(&want) {
                let want = if k == 0 { &want.0 } else { &want.1[0] };
                assert_eq!(own.shape(), want.shape());
                close(own, &numbers(want).iter().map(|&x| f64::from(x)).collect::<Vec<f64>>());
            }
        }
    }
    let wrong = jacrev(f).argnums((Arg::<1>,))(&(w.clone(), b.clone()), &n, &x).expect_err("integers").to_string();
    assert!(wrong.contains("`jacrev` by an array of i32[]"), "{wrong}");
}

#[test]
fn second_derivatives_by_trees_are_those_by_arrays() {
    let f = |(a, b): &(Array, Array), x: &Array| ((a * x).sin().sum(..) * b.exp()).sum(..) * x.sum(..);
    let (a, b, x) = (array(&[0.5, 1.0], &[2]), array(&[0.25], &[1]), array(&[-1.0, 0.75], &[2]));
    let all = hessian(f).argnums((Arg::<1>, Arg::<0>))(&(a.clone(), b.clone()), &x).expect("it has second derivatives");
    assert_eq!(all.paths(), ["0", "1.0", "1.1"]);
    let doubles = |x: &Array| numbers(x).iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let g = move |a: &Array, b: &Array, x: &Array| f(&(a.clone(), b.clone()), x);
    let (xx, (_, xb)) = &all.leaves()[0];
    close(xx, &doubles(&hessian(g).argnums(Arg::<2>)(&a, &b, &x).expect("it has second derivatives")));
    let (ax, (aa, ab)) = &all.leaves()[1];
    close(aa, &doubles(&hessian(g).argnums(Arg::<0>)(&a, &b, &x).expect("it has second derivatives")));
    let (bx, (ba, bb)) = &all.leaves()[2];
    close(bb, &doubles(&hessian(g).argnums(Arg::<1>)(&a, &b, &x).expect("it has second derivatives")));
    // They are symmetric.
    close(&bx.ravel(), &doubles(&xb.ravel()));
    close(&ba.ravel(), &doubles(&ab.ravel()));
    close(&ax.t(), &doubles(&all.leaves()[0].1.0));
}

//! Options of transformations, combined.
use super::{array, close, numbers, said};
use crate::prelude::*;
use crate::spmd::{axis_index, psum};
use crate::{
    Arg, BoundedSize, CheckpointPolicy, checkpoint, checkpoint_name, counters, grad, hessian, jit, value_and_grad, vmap,
};
use pallas_device::timeline::Timeline;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bounded function takes over the memory of its argument, at the bound; shorter ones are padded first, and keep no
/// owner.
#[test]
fn bounded_functions_donate() {
    let size = || [BoundedSize::new("n", 1000).axis("0.0", 0).axis("1", 0)];
    let f = |w: &(Array, Array), g: &Array| (&w.0 - 0.5 * g, &w.1 + g.sum(..));
    let before = counters().jit_compiles;
    for step in [jit(f).bounded(size()).donate_argnums(Arg::<0>), jit(f).donate_argnums(Arg::<0>).bounded(size())] {
        for n in [1000, 3, 700, 1000] {
            let full = |x: f32, n: usize| Client::cpu().full(&[n], x).expect("it fits");
            let (x, sum, g) = (full(1.0, n), full(0.25, 1), full(2.0, n));
            let address = |x: &Array| x.buffer().expect("it has memory").as_ptr();
            let place = address(&x);
            let (y, total) = step((x, sum.clone()), &g).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((numbers(&y), numbers(&total)), (vec![0.0; n], vec![0.25 + 2.0 * n as f32]));
            assert_eq!(numbers(&sum), [0.25], "it has another owner");
            assert!(n < 1000 || address(&y) == place, "it is in the place of what was donated");
        }
        let long = (array(&[0.0; 1001], &[1001]), array(&[0.0], &[1]));
        let error = step(long, &array(&[0.0; 1001], &[1001])).expect_err("it is too long").to_string();
        assert!(error.contains("size `n` is 1001, at most 1000"), "{error}");
    }
    assert!(counters().jit_compiles >= before + 2);
}

/// Auxiliary results beside gradients by chosen arguments, also inside of `jit` and `vmap`.
#[test]
fn auxiliary_results_with_chosen_arguments() {
    let f = |x: &Array, n: &Array, y: &Array| {
        let product = x * y;
        Ok::<_, Error>(((&product * n).sum(..), (product, n.clone())))
    };
    let (x, y) = (array(&[1.0, 2.0], &[2]), array(&[3.0, 5.0], &[2]));
    let n = Client::cpu().array(&[2i32], &[]).expect("it fits");
    let both = value_and_grad(f).argnums((Arg::<2>, Arg::<0>));
    let ((value, (product, same)), (by_y, by_x)) = jit(both)(&x, &n, &y).unwrap_or_else(|e| panic!("{e}"));
    close(&value, &[26.0]);
    close(&product, &[3.0, 10.0]);
    assert_eq!(same.to_vec::<i32>().expect("it has elements"), [2]);
    close(&by_y, &[2.0, 4.0]);
    close(&by_x, &[6.0, 10.0]);
    let (by_y, (product, _)) = grad(f).argnums(Arg::<2>)(&x, &n, &y).expect("it runs");
    close(&by_y, &[2.0, 4.0]);
    close(&product, &[3.0, 10.0]);
    let each = vmap(grad(f).argnums(Arg::<2>)).in_axes([Some(0), None, Some(0)]);
    let (by_y, (product, _)) = each(&x, &n, &y).expect("it runs");
    close(&by_y, &[2.0, 4.0]);
    close(&product, &[3.0, 10.0]);
}

#[test]
fn named_batches_have_axes_and_sizes() {
    let x = array(&[1.0, 3.0, 4.0, 2.0, 0.0, 6.0], &[2, 3]);
    let share = |x: &Array| x / psum(x, "i");
    let rows = vmap(share).axis_name("i").in_axes([Some(1)]).out_axes(Some(-1))(&x).expect("it runs");
    close(&rows, &[0.125, 0.375, 0.5, 0.25, 0.0, 0.75]);
    let turned = vmap(share).out_axes(Some(0)).in_axes([Some(-1)]).axis_name("i")(&x).expect("it runs");
    close(&turned, &[0.125, 0.25, 0.375, 0.0, 0.5, 0.75]);
    // No argument is batched: the size says how many examples there are.
    let number = vmap(|x: &Array| x * axis_index("i")).in_axes(None).axis_size(3).axis_name("i");
    close(&jit(number)(&array(&[2.0], &[])).expect("it runs"), &[0.0, 2.0, 4.0]);
    close(&vmap(share).axis_name("i").axis_size(2)(&x).expect("it runs"), &[1.0 / 3.0, 1.0, 0.4, 2.0 / 3.0, 0.0, 0.6]);
    let at = line!() + 1;
    let wrong = vmap(share).axis_name("i").axis_size(3);
    assert!(said(wrong(&x), at).contains("an `axis_size` of 3, and argument `0` of f32[2"));
}

#[test]
fn second_derivatives_by_one_tree() {
    let f = |x: &(Array, Array)| (&x.0 * &x.0 * &x.1).sum(..);
    let x = (array(&[3.0], &[1]), array(&[5.0], &[1]));
    let all = hessian(f).argnums((Arg::<0>,))(&x).expect("it runs");
    let ((xx, xy),) = all.get("0.0").expect("of the first leaf");
    close(xx, &[10.0]);
    close(xy, &[6.0]);
}

/// A transformed function has the name of the function in a timeline, and a policy holds in further transformations.
#[test]
fn options_hold_in_further_transformations() {
    fn layer(w: &Array, x: &Array) -> Array {
        checkpoint_name(&(w * x).sin(), "sine").exp().sum(..)
    }
    let stored = checkpoint(layer).policy(CheckpointPolicy::OnlyNames(vec!["sine".into()]));
    let f = jit(vmap(grad(stored).argnums(Arg::<1>)).in_axes([None, Some(0)]));
    let (w, x) = (array(&[0.5, 0.25], &[2]), array(&[1.0, 2.0, 3.0, 4.0], &[2, 2]));
    let recorded = Timeline::start();
    let found = f(&w, &x).expect("it runs");
    let spans = recorded.stop();
    assert!(spans.iter().any(|span| span.name.ends_with("layer")), "{spans:?}");
    let want: Vec<f64> = (numbers(&x).into_iter().zip([0.5, 0.25, 0.5, 0.25]))
        .map(|(x, w)| (f64::from(x), w))
        .map(|(x, w): (f64, f64)| (w * x).sin().exp() * (w * x).cos() * w)
        .collect();
    close(&found, &want);
}

#[test]
fn clones_share_what_is_compiled() {
    let traces = Arc::new(AtomicUsize::new(0));
    let count = traces.clone();
    let f = jit(move |x: &Array| {
        count.fetch_add(1, Ordering::Relaxed);
        x * 3.0
    });
    let (same, other) = (f.clone(), f.clone().donate_argnums(Arg::<0>));
    let x = array(&[2.0], &[1]);
    for y in [f(&x), same(&x), f(&x)] {
        assert_eq!(numbers(&y.expect("it runs")), [6.0]);
    }
    assert_eq!(traces.load(Ordering::Relaxed), 1);
    // Other options, and a closure of its own, are compiled anew.
    assert_eq!(numbers(&same.into_fn()(&x).expect("it runs")), [6.0]);
    assert_eq!(numbers(&other(x).expect("it runs")), [6.0]);
    assert_eq!(traces.load(Ordering::Relaxed), 3);
}

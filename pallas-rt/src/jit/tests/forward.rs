//! Forward mode, linear functions, Jacobians.
use super::{array, close, numbers, said};
use crate::prelude::*;
use crate::{
    cond, fori_loop, grad, hessian, jacfwd, jacrev, jit, jvp, linearize, scan, value_and_grad, vjp, vmap, while_loop,
};

fn scalar(x: f32) -> Array {
    array(&[x], &[])
}

#[derive(Clone, Tree)]
struct Layer {
    weight: Array,
    bias: Array,
}

fn layer() -> Layer {
    Layer { weight: array(&[0.5, -1.0, 0.25, 2.0], &[2, 2]), bias: array(&[0.1, -0.2], &[2]) }
}

fn outputs(layer: &Layer, x: &Array) -> (Array, Array) {
    let y = (x.matmul(&layer.weight) + &layer.bias).tanh();
    (y.clone(), y.sum(..))
}

#[test]
fn tangents_of_trees() {
    let (x, dx) = (array(&[1.0, 2.0], &[2]), array(&[0.5, -1.0], &[2]));
    let direction = Layer { weight: array(&[1.0, 0.0, -0.5, 0.25], &[2, 2]), bias: array(&[0.0, 1.0], &[2]) };
    // z = x W + b; dz = dx W + x dW + db.
    let z = [1.0 * 0.5 + 2.0 * 0.25 + 0.1, -1.0 + 4.0 - 0.2];
    let dz = [0.25 - 0.25 + 1.0 - 1.0, -0.5 - 2.0 + 0.5 + 1.0];
    let y = z.map(f64::tanh);
    let dy: Vec<f64> = (0..2).map(|i| (1.0 - y[i] * y[i]) * dz[i]).collect();
    let primals = (layer(), x);
    let tangents = (direction, dx);
    for f in [jvp(outputs), jvp(jit(outputs)), jit(jvp(outputs)).into_fn()] {
        let ((value, sum), (tangent, of_sum)) = f(&primals, &tangents).unwrap_or_else(|e| panic!("{e}"));
        close(&value, &y);
        close(&tangent, &dy);
        close(&sum, &[y[0] + y[1]]);
        close(&of_sum, &[dy[0] + dy[1]]);
    }
    let (_, along) = linearize(outputs)(&primals.0, &primals.1).expect("it runs");
    close(&along(&tangents).expect("it runs").0, &dy);
    close(&along(&primals).expect("it runs").0, &[(1.0 - y[0] * y[0]) * 2.1, (1.0 - y[1] * y[1]) * 5.8]);
}

#[test]
fn results_without_a_tangent_have_zeros() {
    let f = jvp(|x: &Array| (x.cast(DType::I32), x.shape()[0] as f64 * (x * 0.0 + 1.0).cast(DType::F32), x.argmax(0)));
    let x = array(&[1.5, 2.5], &[2]);
    let ((whole, _, at), (tangent, other, of_at)) = f(&(x.clone(),), &(x,)).expect("it runs");
    assert_eq!((whole.to_vec::<i32>(), at.to_vec::<i32>()), (Ok(vec![1, 2]), Ok(vec![1])));
    assert_eq!((tangent.to_vec::<i32>(), of_at.to_vec::<i32>()), (Ok(vec![0, 0]), Ok(vec![0])));
    close(&other, &[0.0, 0.0]);
}

#[test]
fn tangents_pass_through_while_loops() {
    // Doubled until it exceeds a limit: three steps from 3, so the derivative by x is 8, and w * 7 by what is added.
    let f = |x: &Array, w: &Array| {
        let w = w.clone();
        let count = Client::cpu().array(&[0i32], &[])?;
        while_loop(
            &(x.clone(), count),
            |(x, _): &(Array, Array)| x.lt(20.0),
            move |(x, n): &(Array, Array)| (x * 2.0 + &w, n + 1),
        )
    };
    let (x, w) = (scalar(3.0), scalar(0.5));
    for f in [jvp(f), jit(jvp(f)).into_fn()] {
        let ((value, steps), (tangent, of_steps)) =
            f(&(x.clone(), w.clone()), &(scalar(1.0), scalar(10.0))).unwrap_or_else(|e| panic!("{e}"));
        close(&value, &[27.5]);
        close(&tangent, &[8.0 + 70.0]);
        assert_eq!((steps.to_vec::<i32>(), of_steps.to_vec::<i32>()), (Ok(vec![3]), Ok(vec![0])));
    }
    let by_x = jacfwd(move |x: &Array, w: &Array| f(x, w).map(|(x, _)| x));
    close(&by_x(&x, &w).expect("it runs"), &[8.0]);
}

#[test]
fn tangents_pass_through_scans_and_branches() {
    let f = |x: &Array, xs: &Array| {
        let (last, all) = scan(x, xs, |h: &Array, x: &Array| {
            let next = cond(&h.gt(0.0), &(h.clone(), x.clone()), |(h, x): &(Array, Array)| h * x, |(h, _)| h * h)?;
            Ok::<_, Error>((next.clone(), (next, x * 2.0)))
        })?;
        Ok::<_, Error>((last, all))
    };
    // 2, -6, 36, 18; by x: 1, -3, 36, 18.
    let (x, xs) = (scalar(2.0), array(&[-3.0, 7.0, 0.5], &[3]));
    let zeros = array(&[0.0; 3], &[3]);
    let ((last, _), (tangent, (all, twice))) =
        jvp(f)(&(x.clone(), xs.clone()), &(scalar(1.0), zeros)).expect("it runs");
    close(&last, &[18.0]);
    close(&tangent, &[18.0]);
    close(&all, &[-3.0, 36.0, 18.0]);
    close(&twice, &[0.0; 3]);
    let (_, (tangent, (_, twice))) = jvp(f)(&(x, xs), &(scalar(0.0), array(&[1.0, 1.0, 1.0], &[3]))).expect("it runs");
    // By the inputs: 2 * 0.5 * 2 * -6 at first, 36 at last.
    close(&tangent, &[-12.0 + 36.0]);
    close(&twice, &[2.0; 3]);
}

#[test]
fn scans_without_steps_have_derivatives() {
    let f = |x: &Array| fori_loop(3..3, x, |_: &Array, x: &Array| x * 0.0 + 5.0).map(|x| x.sin());
    let x = scalar(0.5);
    close(&grad(move |x: &Array| f(x))(&x).expect("it runs"), &[0.5f64.cos()]);
    // The step gives a constant.
    let f = |x: &Array| fori_loop(3..3, x, |_: &Array, _: &Array| scalar(5.0)).map(|x| x.sin());
    close(&grad(f)(&x).expect("it runs"), &[0.5f64.cos()]);
    close(&jacfwd(f)(&x).expect("it runs"), &[0.5f64.cos()]);
}

#[test]
fn cotangents_of_trees() {
    let (x, model) = (array(&[1.0, 2.0], &[2]), layer());
    let ((y, _), back) = vjp(outputs)(&model, &x).expect("it runs");
    let (a, b) = (array(&[1.0, 0.0], &[2]), array(&[0.0, 2.0], &[2]));
    let y = numbers(&y).into_iter().map(f64::from).collect::<Vec<_>>();
    let slope: Vec<f64> = y.iter().map(|y| 1.0 - y * y).collect();
    for (of, sum, z) in [(a, 0.0, [1.0, 0.0]), (b, 0.5, [0.5, 2.5])] {
        let (found, dx) = back(&(of, scalar(sum))).expect("it runs");
        let dz = [z[0] * slope[0], z[1] * slope[1]];
        close(&found.bias, &dz);
        close(&found.weight, &[dz[0], dz[1], 2.0 * dz[0], 2.0 * dz[1]]);
        close(&dx, &[0.5 * dz[0] - dz[1], 0.25 * dz[0] + 2.0 * dz[1]]);
    }
    // Inside of a traced function, twice.
    let f = jit(|x: &Array| {
        let (value, back) = vjp(|x: &Array| x * x * x)(x)?;
        let ((once,), (twice,)) = (back(&scalar(1.0))?, back(&scalar(2.0))?);
        Ok::<_, Error>((value, once + twice))
    });
    let (value, slopes) = f(&scalar(2.0)).expect("it runs");
    close(&value, &[8.0]);
    close(&slopes, &[36.0]);
}

#[test]
fn hessian_of_a_cubic() {
    // x³ + y³ + x y z
    let f = |x: &Array| {
        let (_, (products, cubes)) = scan(&scalar(1.0), x, |p: &Array, x: &Array| (p * x, (p * x, x * x * x)))?;
        let last = (products * array(&[0.0, 0.0, 1.0], &[3])).sum(..);
        Ok::<_, Error>(last + (cubes * array(&[1.0, 1.0, 0.0], &[3])).sum(..))
    };
    let want = [6.0, 5.0, 2.0, 5.0, 12.0, 1.0, 2.0, 1.0, 0.0];
    let x = array(&[1.0, 2.0, 5.0], &[3]);
    let plain = |x: &Array| {
        let parts = x * array(&[1.0, 1.0, 0.0], &[3]);
        (&parts * &parts * parts).sum(..) + x.prod(..)
    };
    close(&hessian(plain)(&x).expect("it runs"), &want);
    close(&jit(hessian(plain))(&x).expect("it runs"), &want);
    close(&hessian(f)(&x).expect("it runs"), &want);
    close(&jacfwd(grad(f))(&x).expect("it runs"), &want);
    close(&jacrev(grad(f))(&x).expect("it runs"), &want);
    close(&jacrev(jacrev(plain))(&x).expect("it runs"), &want);
    let wide = hessian(|x: &Array, y: &Array| (x * x * y).sum(..));
    let found = wide(&array(&[1.0, 2.0], &[1, 2]), &array(&[3.0, 4.0], &[2])).expect("it runs");
    assert_eq!(found.shape(), [1, 2, 1, 2]);
    close(&found, &[6.0, 0.0, 0.0, 8.0]);
}

#[test]
fn both_jacobians_are_equal() {
    let f = |x: &Array, w: &Array| {
        let (last, all) = scan(&x.sum(0), x, |h: &Array, x: &Array| {
            let h = (h.matmul(w) + x).tanh();
            (h.clone(), h)
        })?;
        Ok::<_, Error>((last.sum(..), (all * x, w * 2.0)))
    };
    let x = array(&[0.1, -0.5, 0.75, 0.25, 1.0, -0.3], &[3, 2]);
    let w = array(&[0.5, -0.3, 0.2, 0.7], &[2, 2]);
    let (a, (b, c)) = jacfwd(f)(&x, &w).expect("it runs");
    let (d, (e, g)) = jit(jacrev(f))(&x, &w).expect("it runs");
    assert_eq!((a.shape(), b.shape(), c.shape()), (&[3, 2][..], &[3, 2, 3, 2][..], &[2, 2, 3, 2][..]));
    for (forward, reverse) in [(a, d), (b, e)] {
        let reverse: Vec<f64> = numbers(&reverse).into_iter().map(f64::from).collect();
        assert!(reverse.iter().any(|x| x.abs() > 0.1));
        close(&forward, &reverse);
    }
    for zeros in [c, g] {
        close(&zeros, &[0.0; 24]);
    }
}

#[test]
fn gradients_with_other_results() {
    let f = value_and_grad(|layer: &Layer, x: &Array| {
        let (y, sum) = outputs(layer, x);
        (sum, vec![y.clone(), y.cast(DType::I32)])
    });
    let x = array(&[1.0, 2.0], &[2]);
    let ((sum, aux), gradient) = f(&layer(), &x).expect("it runs");
    let alone = grad(|layer: &Layer, x: &Array| outputs(layer, x).1)(&layer(), &x).expect("it runs");
    assert_eq!(numbers(&gradient.weight), numbers(&alone.weight));
    assert_eq!((aux.len(), aux[1].dtype()), (2, DType::I32));
    assert_eq!(numbers(&sum)[0], numbers(&aux[0]).iter().sum::<f32>());
}

#[test]
fn other_results_have_derivatives() {
    // x³, with x² beside it.
    let f = |x: &Array| (x * x * x, x * x);
    let of_both = grad(move |x: &Array| {
        let ((_, square), slope) = value_and_grad(f)(x)?;
        Ok::<_, Error>(square * 10.0 + slope)
    });
    close(&of_both(&scalar(2.0)).expect("it runs"), &[40.0 + 12.0]);
}

#[test]
fn other_results_pass_through_scans() {
    let f = value_and_grad(|x: &Array| {
        let (last, all) = scan(&x.sum(..), x, |h: &Array, x: &Array| ((h * x).sin(), h * 1.0))?;
        Ok::<_, Error>((last, all))
    });
    let x = array(&[0.5, 2.0], &[2]);
    let ((value, states), gradient) = jit(f)(&x).expect("it runs");
    let second = 1.25f64.sin();
    close(&states, &[2.5, second]);
    close(&value, &[(2.0 * second).sin()]);
    let outer = (2.0 * second).cos();
    let inner = 2.0 * 1.25f64.cos();
    close(&gradient, &[outer * inner * 3.0, outer * (inner * 0.5 + second)]);
}

#[test]
fn modes_nest() {
    // Forward over forward, reverse over forward, a batch of second derivatives.
    let cubed = |x: &Array| x * x * x;
    let slope = move |x: &Array| jvp(cubed)(&(x.clone(),), &(scalar(1.0),)).map(|(_, slope)| slope);
    close(&slope(&scalar(2.0)).expect("it runs"), &[12.0]);
    let second = move |x: &Array| jvp(slope)(&(x.clone(),), &(scalar(1.0),)).map(|(_, second)| second);
    close(&second(&scalar(2.0)).expect("it runs"), &[12.0]);
    close(&jit(grad(second))(&scalar(2.0)).expect("it runs"), &[6.0]);
    close(&vmap(grad(slope))(&array(&[1.0, 2.0], &[2])).expect("it runs"), &[6.0, 12.0]);
}

type Mapped = Box<dyn Fn(&Array) -> Result<Array> + Send + Sync>;
/// Its name, the order of the derivative, and what it does.
type Transformation = (&'static str, u32, fn(Mapped) -> Mapped);

/// The transformations of an elementwise function that are combined: each gives the function or its derivative.
const TRANSFORMATIONS: [Transformation; 9] = [
    ("jit", 0, |f| jit(f).into_fn()),
    ("vmap", 0, |f| vmap(f).into_fn()),
    ("grad", 1, |f| grad(move |x: &Array| f(x).map(|y| y.sum(..))).into_fn()),
    ("jvp", 1, |f| {
        let f = jvp(f);
        Box::new(move |x| f(&(x.clone(),), &(x * 0.0 + 1.0,)).map(|(_, slope)| slope))
    }),
    ("linearize", 1, |f| {
        let f = linearize(f);
        Box::new(move |x| f(x)?.1(&(x * 0.0 + 1.0,)))
    }),
    ("vjp", 1, |f| {
        let f = vjp(f);
        Box::new(move |x| f(x)?.1(&(x * 0.0 + 1.0)).map(|(slope,)| slope))
    }),
    ("jacfwd", 1, |f| {
        let f = jacfwd(move |x: &Array| f(x).map(|y| y.sum(..)));
        Box::new(move |x| f(x))
    }),
    ("scan", 0, |f| Box::new(move |x| fori_loop(0..1, x, |_: &Array, x: &Array| f(x)))),
    ("cond", 0, |f| Box::new(move |x| cond(&x.sum(..).gt(-99.0), x, |x: &Array| f(x), |x: &Array| Ok(x * 2.0)))),
];

/// All nestings of three transformations of the sine, on an array with an axis for each `vmap`: its derivatives.
#[test]
fn transformations_nest_in_any_order() {
    let values = [0.3, -1.2, 0.8, 2.0, -0.4, 1.1, 0.05, -2.5];
    let x = array(&values.map(|x| x as f32), &[2, 2, 2]);
    let n = TRANSFORMATIONS.len();
    for i in 0..n * n * n {
        let nested = [i / n / n, i / n % n, i % n].map(|k| TRANSFORMATIONS[k]);
        let name = nested.map(|(name, _, _)| name).join(" of ");
        let order: u32 = nested.iter().map(|(_, order, _)| order).sum();
        let sine: Mapped = Box::new(|x| Ok(x.sin()));
        let f = nested.iter().rev().fold(sine, |f, (_, _, transform)| transform(f));
        let found = f(&x).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (x, found) in values.iter().zip(numbers(&found)) {
            let want = (x + f64::from(order) * std::f64::consts::FRAC_PI_2).sin();
            assert!((f64::from(found) - want).abs() < 1e-5, "{name}: {found} {want}");
        }
    }
}

#[test]
fn mistakes_of_derivatives_are_named() {
    let x = array(&[1.0, 2.0], &[2]);
    let whole = Client::cpu().array(&[1, 2], &[2]).expect("it fits");
    let at = line!() + 1;
    let f = jvp(|x: &(Array, Array), y: &Array| &x.0 + &x.1 + y);
    let args = ((x.clone(), x.clone()), x.clone());
    let wide = ((x.clone(), x.expand_dims(0)), x.clone());
    assert!(said(f(&args, &wide), at).contains("the tangent of `0.1` of f32[2] is f32[1,2]"));
    let integers = ((x.clone(), x.clone()), whole.clone());
    assert!(said(f(&args, &integers), at).contains("the tangent of `1` of f32[2] is i32[2]"));
    // Integers have no tangent, whatever is given.
    let (value, tangent) = f(&integers, &integers).expect("it runs");
    close(&value, &[3.0, 6.0]);
    close(&tangent, &[2.0, 4.0]);
    let at = line!() + 1;
    let f = jvp(|x: &Vec<Array>| x[0].clone());
    let lists = ((vec![x.clone()],), (vec![x.clone(), x.clone()],));
    assert!(said(f(&lists.0, &lists.1), at).contains("the tangent of ([*],) is ([*, *],)"));
    let at = line!() + 1;
    let f = vjp(|x: &Array| (x.sum(..), x * 2.0));
    let (_, back) = f(&whole).expect("it runs");
    let (sum, double) = (Client::cpu().array(&[1], &[]).expect("it fits"), x.clone());
    assert_eq!(back(&(sum, double)).expect("it runs").0.to_vec::<i32>().expect("it ran"), [0, 0]);
    let (_, back) = f(&x).expect("it runs");
    assert!(said(back(&(x.clone(), x.clone())), at).contains("the cotangent of `0` of f32[] is f32[2]"));
    let at = line!() + 1;
    let f = jacfwd(|x: &Array| (x.sum(..), x.cast(DType::I32)));
    assert!(said(f(&x), at).contains("`jacfwd` of a result `1` of i32[2]"));
    assert!(said(f(&whole), at).contains("`jacfwd` by an array of i32[2]"));
    let at = line!() + 1;
    let f = hessian(|x: &Array| x * 2.0);
    assert!(said(f(&x), at).contains("the second derivatives of a function that returns f32[2]"));
    let at = line!() + 1;
    let f = jacrev(|x: &Array| while_loop(x, |x: &Array| x.sum(..).lt(10.0), |x: &Array| x * 2.0));
    assert!(said(f(&x), at).contains("reverse mode through a `while_loop`"));
}

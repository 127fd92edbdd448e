//! Transposes of linear functions.
use super::{array, numbers};
use crate::ops::{by, select};
use crate::prelude::*;
use crate::{cond, custom_jvp, fori_loop, jit, linear_transpose, ops, scan, tree, vjp, vmap, while_loop};

#[test]
fn transposes_are_those_of_vjp() {
    let w = array(&[1.0, 2.0, -1.0, 0.5, 3.0, 0.25], &[2, 3]);
    let own = w.clone();
    let f = move |x: &Array, y: &(Array, Array)| {
        let z = own.matvec(x) + y.0.cumsum(0) * 2.0 - y.1.broadcast_to(&[2]);
        let steps = fori_loop(0..3, &z, |_: &Array, carry: &Array| carry * 0.5)?;
        Ok::<_, Error>((z.index(by(.., -1)), vec![steps]))
    };
    let args = (array(&[1.0, -2.0, 0.5], &[3]), (array(&[0.5, 1.0], &[2]), array(&[3.0], &[])));
    let cotangent = (array(&[1.0, 10.0], &[2]), vec![array(&[-1.0, 0.5], &[2])]);
    let (_, back) = vjp(f.clone())(&args.0, &args.1).expect("it has a derivative");
    let want = back(&cotangent).expect("it runs");
    let transpose = linear_transpose(f)(&args.0, &args.1).expect("it is linear");
    let found = transpose(&cotangent).expect("it runs");
    for (found, want) in tree::leaves(&found).iter().zip(tree::leaves(&want)) {
        assert_eq!(numbers(found), numbers(&want));
    }
    // Of arguments only the types are used.
    let broken = (array(&[f32::NAN; 3], &[3]), (array(&[f32::NAN; 2], &[2]), array(&[f32::INFINITY], &[])));
    let own = w.clone();
    let g = move |x: &Array, _: &(Array, Array)| own.matvec(x);
    let transpose = linear_transpose(g)(&broken.0, &broken.1).expect("it is linear");
    let (dx, (dy, dz)) = transpose(&array(&[1.0, 1.0], &[2])).expect("it runs");
    assert_eq!((numbers(&dx), numbers(&dy), numbers(&dz)), (vec![1.5, 5.0, -0.75], vec![0.0; 2], vec![0.0]));
    // Inside of a function that is traced, and for each example.
    let own = w.clone();
    let transposed = move |y: &Array| {
        let own = own.clone();
        let (dx,) = linear_transpose(move |x: &Array| own.matvec(x))(&ops::zeros(&[3], DType::F32))?(y)?;
        Ok::<_, Error>(dx)
    };
    let batch = jit(vmap(transposed))(&array(&[1.0, 1.0, 0.0, 2.0], &[2, 2])).expect("it runs");
    assert_eq!(numbers(&batch), [1.5, 5.0, -0.75, 1.0, 6.0, 0.5]);
}

type Linear = fn(&Array) -> Result<Array>;

/// A function of two numbers, and its transpose at `(1, 10)`, or the name of what is not linear.
type Case = (&'static str, Linear, std::result::Result<[f32; 2], &'static str>);

/// Loops, branches and stated derivatives are looked into.
#[test]
fn what_is_not_linear_is_refused() {
    let all: &[Case] = &[
        ("a product", |x| Ok(x * x), Err("`mul`")),
        ("an offset", |x| Ok(x + 1.0), Err("`add`")),
        ("a constant", |x| Ok(x.ones_like()), Err("a result of f32[2]")),
        ("zeros", |x| Ok(x.zeros_like()), Ok([0.0, 0.0])),
        ("a maximum", |x| Ok(x.maximum(0.0)), Err("`maximum`")),
        ("a comparison", |x| Ok(select(&x.gt(0.0), x, x.zeros_like())), Err("`gt`")),
        ("a constant by the argument", |x| Ok(x * x.stop_gradient()), Err("`stop_gradient`")),
        ("its own place", |x| Ok(x.take(&x.argmax(0).broadcast_to(&[2]), 0)), Err("`arg_reduce")),
        ("a window", |x| Ok(x.ones_like().dynamic_update_slice(&x.index(..1), [1])), Err("`dynamic_update_slice`")),
        ("a window of zeros", |x| Ok(x.zeros_like().dynamic_update_slice(&x.index(..1), [1])), Ok([10.0, 0.0])),
        ("a loop", |x| fori_loop(0..3, x, |_, x: &Array| x * 2.0), Ok([8.0, 80.0])),
        ("a sum", |x| fori_loop(0..3, &x.zeros_like(), |_, y: &Array| y + x), Ok([3.0, 30.0])),
        ("a loop of products", |x| fori_loop(0..3, x, |_, x: &Array| x * x), Err("`mul`")),
        ("a loop from an offset", |x| fori_loop(0..3, &x.ones_like(), |_, y: &Array| y + x), Err("`add`")),
        (
            "a product of two steps",
            |x| {
                let first = (x.clone(), x.ones_like());
                fori_loop(0..3, &first, |_, (x, y): &(Array, Array)| (x * y, x * 2.0)).map(|(x, _)| x)
            },
            Err("`scan`"),
        ),
        (
            "a stack",
            |x| scan(x, &array(&[0.0, 1.0], &[2]), |x: &Array, i: &Array| (x * 2.0, x.sum(..) * i)).map(|(_, y)| y),
            Ok([20.0, 20.0]),
        ),
        ("a branch", |x| cond(&array(&[0.0], &[]).gt(0.0), x, |x: &Array| x * 2.0, |x: &Array| -x), Ok([-1.0, -10.0])),
        ("a branch by the argument", |x| cond(&x.sum(..).gt(0.0), x, |x: &Array| x * 2.0, |x: &Array| -x), Err("`gt`")),
        (
            "a branch that is constant",
            |x| cond(&array(&[1.0], &[]).gt(0.0), x, |x: &Array| x * 2.0, |x: &Array| x.ones_like()),
            Err("`case`"),
        ),
        (
            "a branch of zeros",
            |x| cond(&array(&[1.0], &[]).gt(0.0), x, |x: &Array| x * 2.0, |x: &Array| x.zeros_like()),
            Ok([2.0, 20.0]),
        ),
        (
            "a loop until it has converged",
            |x| while_loop(x, |x: &Array| x.sum(..).gt(1.0), |x: &Array| x * 0.5),
            Err("`gt`"),
        ),
        (
            "a stated derivative of a product",
            |x| custom_jvp(|x: &Array| x * x, |(x,): &(Array,), (d,): &(Array,)| (x * x, 2.0 * x * d))(x),
            Err("`mul`"),
        ),
        (
            "a stated derivative",
            |x| custom_jvp(|x: &Array| x * 3.0, |(x,): &(Array,), (d,): &(Array,)| (x * 3.0, d * 3.0))(x),
            Ok([3.0, 30.0]),
        ),
        ("what nothing reads", |x| Ok((x * x).stop_gradient().index(..0).sum(..) * 0.0 + x), Err("`mul`")),
    ];
    let x = array(&[0.5, -3.0], &[2]);
    let mut wrong = vec![];
    for &(what, f, want) in all {
        let transpose = linear_transpose(move |x: &Array| f(x))(&x);
        match (transpose, want) {
            (Ok(transpose), Ok(want)) => {
                let (dx,) = transpose(&array(&[1.0, 10.0], &[2])).expect("it runs");
                if numbers(&dx) != want {
                    wrong.push(format!("{what}: {dx}"));
                }
            }
            (Err(error), Err(want)) => {
                let error = error.to_string();
                if !error.contains(want) || !error.contains("transposes.rs") {
                    wrong.push(format!("{what}: {error}"));
                }
            }
            (Ok(_), Err(_)) => wrong.push(format!("{what} is no linear function")),
            (Err(error), Ok(_)) => wrong.push(format!("{what}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn transposes_name_wrong_types() {
    let integers = Client::cpu().array(&[1i32], &[1]).expect("it fits");
    let error = linear_transpose(|x: &Array| x * 2)(&integers).err().expect("integers").to_string();
    assert!(error.contains("a function with an argument of i32[1]") && error.contains("transposes.rs"), "{error}");
    let x = array(&[1.0, 2.0], &[2]);
    let error = linear_transpose(|x: &Array| x.argmax(0))(&x).err().expect("a position").to_string();
    assert!(error.contains("a function with a result of i32[]"), "{error}");
    let transpose = linear_transpose(|x: &Array| x.cast(DType::Bf16))(&x).expect("it is linear");
    let error = transpose(&x).expect_err("another type").to_string();
    assert!(error.contains("the cotangent of bf16[2] is f32[2]"), "{error}");
    let (dx,) = transpose(&x.cast(DType::Bf16)).expect("it runs");
    assert_eq!((dx.dtype(), numbers(&dx)), (DType::F32, vec![1.0, 2.0]));
    let empty = linear_transpose(|x: &Array| x.sum([0]) * 2.0)(&array(&[], &[0, 2])).expect("it is linear");
    assert_eq!(empty(&x).expect("it runs").0.shape(), [0, 2]);
}

/// Each loop asks for its body more than once; those in deep nests must not do so for each level.
#[test]
fn deep_loops_are_looked_into_once() {
    fn nested(depth: usize, x: &Array) -> Result<Array> {
        match depth {
            0 => Ok(x * 0.5),
            _ => fori_loop(0..1, &x.zeros_like(), |_, y: &Array| Ok::<_, Error>(y + nested(depth - 1, &(x + y))?)),
        }
    }
    let x = array(&[1.0, 2.0], &[2]);
    let transpose = linear_transpose(|x: &Array| nested(16, x))(&x).expect("it is linear");
    assert_eq!(numbers(&transpose(&x).expect("it runs").0), [0.5, 1.0]);
}

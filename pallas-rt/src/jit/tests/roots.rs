//! Implicit derivatives of roots.
use super::{array, close, numbers};
use crate::prelude::*;
use crate::{custom_root, fori_loop, grad, jacfwd, jit, linalg, ops, vmap, while_loop};

/// The positive root of `x^3 + x = a`.
fn cubic(a: &Array) -> Result<Array> {
    let own = a.clone();
    custom_root(
        move |x: &Array| x * x * x + x - &own,
        &a.zeros_like(),
        |f, guess| {
            // Newton's method with a loop that has no reverse-mode derivative.
            let (x, _) = while_loop(
                &(guess.clone(), guess.ones_like()),
                |(_, step): &(Array, Array)| step.abs().gt(1e-6).any(..),
                |(x, _): &(Array, Array)| {
                    let step = f(x)? / (3.0 * x * x + 1.0);
                    Ok::<_, Error>((x - &step, step))
                },
            )?;
            Ok(x)
        },
        |g, y| Ok(y / g(&y.ones_like())?),
    )
}

#[test]
fn roots_have_implicit_derivatives() {
    let a = array(&[2.0, 10.0, 0.5], &[3]);
    let x = cubic(&a).expect("it has a root");
    let x64: Vec<f64> = numbers(&x).iter().map(|&x| f64::from(x)).collect();
    close(&(&x * &x * &x + &x), &[2.0, 10.0, 0.5]);
    let slopes: Vec<f64> = x64.iter().map(|x| 1.0 / (3.0 * x * x + 1.0)).collect();
    let sum = |a: &Array| cubic(a).map(|x| x.sum(..));
    close(&grad(sum)(&a).expect("it has a gradient"), &slopes);
    close(&jit(grad(sum))(&a).expect("it has a gradient"), &slopes);
    let diagonal: Vec<f64> = (0..9).map(|i| if i % 4 == 0 { slopes[i / 4] } else { 0.0 }).collect();
    close(&jacfwd(cubic)(&a).expect("it has a Jacobian"), &diagonal);
    close(&vmap(grad(sum))(&a).expect("a batch of gradients"), &slopes);
    // d2x/da2 = -6 x (dx/da)^3.
    let second: Vec<f64> = x64.iter().zip(&slopes).map(|(x, d)| -6.0 * x * d * d * d).collect();
    let twice = move |a: &Array| grad(sum)(a).map(|y| y.sum(..));
    close(&grad(twice)(&a).expect("it has second derivatives"), &second);
}

/// A root of a tree, by matrices that are traced, with a linear solver of its own.
#[test]
fn roots_of_trees_depend_on_captured_arrays() {
    let solved = |m: &Array, b: &(Array, Array)| {
        let (own, b) = (m.clone(), b.clone());
        let joined = |x: &(Array, Array)| ops::concatenate(&[&x.0, &x.1], 0);
        let parted = |x: &Array| (x.index(..1), x.index(1..));
        custom_root(
            move |x: &(Array, Array)| {
                let y = own.matvec(&joined(x));
                let y = &y + (&y * 0.5).tanh();
                (y.index(..1) - &b.0, y.index(1..) - &b.1)
            },
            &(array(&[0.0], &[1]), array(&[0.0, 0.0], &[2])),
            move |f, guess| {
                fori_loop(0..60, guess, |_, x: &(Array, Array)| {
                    let y = f(x)?;
                    Ok::<_, Error>((&x.0 - &y.0 * 0.2, &x.1 - &y.1 * 0.2))
                })
            },
            move |g, y| {
                let matrix = jacrev_of(&|x: &Array| g(&parted(x)).map(|y| joined(&y)), &joined(y))?;
                Ok(parted(&linalg::solve(&matrix, &joined(y))))
            },
        )
    };
    let m = array(&[2.0, 0.3, 0.1, 0.2, 1.5, 0.0, -0.1, 0.4, 1.8], &[3, 3]);
    let b = (array(&[1.0], &[1]), array(&[-0.5, 2.0], &[2]));
    let x = solved(&m, &b).expect("it has a root");
    let y = m.matvec(&ops::concatenate(&[&x.0, &x.1], 0));
    close(&(&y + (&y * 0.5).tanh()), &[1.0, -0.5, 2.0]);
    // Against differences of roots.
    let loss = move |m: &Array, b: &(Array, Array)| {
        solved(m, b).map(|(x, y)| (&x * &x * 2.0).sum(..) + (&y * array(&[1.0, -3.0], &[2])).sum(..))
    };
    let slope = numbers(&grad(loss)(&m, &b).expect("it has a gradient"));
    for (i, &slope) in slope.iter().enumerate() {
        let at = |by: f32| {
            let mut moved = numbers(&m);
            moved[i] += by;
            numbers(&loss(&array(&moved, &[3, 3]), &b).expect("it has a root"))[0]
        };
        let difference = (at(1e-2) - at(-1e-2)) / 2e-2;
        assert!((slope - difference).abs() < 2e-3 * (1.0 + difference.abs()), "{i}: {slope} {difference}");
    }
}

/// The matrix of a linear function of an array of one axis.
fn jacrev_of(f: &dyn Fn(&Array) -> Result<Array>, like: &Array) -> Result<Array> {
    let n = like.shape()[0];
    let column = |i: usize| f(&ops::eye(n, n, 0, like.dtype()).index(i));
    let columns = (0..n).map(column).collect::<Result<Vec<Array>>>()?;
    Ok(ops::stack(&columns, 1))
}

#[test]
fn a_guess_has_no_derivative() {
    let f = |guess: &Array| {
        let x = custom_root(
            |x: &Array| x * x - 2.0,
            guess,
            |_, guess| Ok(guess.full_like(2f64.sqrt())),
            |g, y| Ok(y / g(&y.ones_like())?),
        );
        x.map(|x| x.sum(..))
    };
    close(&grad(f)(&array(&[1.0, 3.0], &[2])).expect("it has a gradient"), &[0.0, 0.0]);
}

/// The square root of `a`, by Newton's method, and the steps that it takes.
fn root(a: &Array) -> Result<(Array, (Array, Array))> {
    let own = a.clone();
    custom_root(
        move |x: &Array| x * x - &own,
        &a.ones_like(),
        |f, guess| {
            let first = (guess.clone(), ops::zeros(&[], DType::I32));
            let step = |(x, n): &(Array, Array)| Ok::<_, Error>((x - f(x)? / (x * 2.0), n + 1));
            let (x, n) =
                while_loop(&first, |(x, _): &(Array, Array)| Ok::<_, Error>(f(x)?.abs().gt(1e-5).any(..)), step)?;
            let last = f(&x)?;
            Ok((x, (n, last)))
        },
        |g, y| Ok(y / g(&y.ones_like())?),
    )
}

#[test]
fn solvers_return_more_than_the_root() {
    let a = array(&[4.0, 9.0], &[2]);
    let both = |a: &Array| {
        let (x, (n, last)) = root(a)?;
        Ok::<_, Error>((x + last * 3.0, n))
    };
    let (x, n) = jit(both)(&a).expect("it has roots");
    close(&x, &[2.0, 3.0]);
    assert!((4..8).contains(&n.to_vec::<i32>().expect("a number")[0]));
    let slope = grad(move |a: &Array| both(a).map(|(x, _)| x.sum(..)))(&a).expect("it has a gradient");
    close(&slope, &[0.25, 1.0 / 6.0]);
}

/// A root of a function that has a root in it: `x^2 = sqrt(a + x)`, so `x^4 - x = a`. Both have derivatives of higher
/// orders.
#[test]
fn roots_lie_in_roots() {
    let outer = |a: &Array| {
        let own = a.clone();
        custom_root(
            move |x: &Array| root(&(x + &own)).map(|(y, _)| x * x - y),
            &a.ones_like(),
            |f, guess| fori_loop(0..40, guess, |_, x: &Array| Ok::<_, Error>(x - f(x)? * 0.3)),
            |g, y| Ok(y / g(&y.ones_like())?),
        )
    };
    // At the root 1.5. With s = 4 x^3 - 1 the derivatives of x by a are 1 / s, -12 x^2 / s^3, (432 x^4 - 24 x s) / s^5.
    let a = array(&[3.5625], &[]);
    close(&outer(&a).expect("it has a root"), &[1.5]);
    let s = 12.5f64;
    let want = [1.0 / s, -27.0 / s.powi(3), (432.0 * 5.0625 - 36.0 * s) / s.powi(5)];
    close(&grad(outer)(&a).expect("the first"), &[want[0]]);
    close(&grad(grad(outer))(&a).expect("the second"), &[want[1]]);
    close(&jacfwd(grad(grad(outer)))(&a).expect("the third"), &[want[2]]);
}

#[test]
fn mistakes_in_roots_are_named() {
    type Root = fn(&Array) -> Result<Array>;
    let all: [(&str, Root); 6] = [
        ("the residual of f32[2] is f32[]", |x| {
            custom_root(|x: &Array| x.sum(..), x, |_, x| Ok(x.clone()), |_, y| Ok(y.clone()))
        }),
        ("the root of f32[2] is f32[]", |x| {
            custom_root(|x: &Array| x * 2.0, x, |_, x| Ok(x.sum(..)), |_, y| Ok(y.clone()))
        }),
        ("the argument of a function whose root is sought of f32[2] is f32[]", |x| {
            custom_root(|x: &Array| x * 2.0, x, |f, x| f(&x.sum(..)), |_, y| Ok(y.clone()))
        }),
        ("the guess of a root of i32[2]", |x| {
            custom_root(|x: &Array| x * 2, &x.cast(DType::I32), |_, x| Ok(x.clone()), |_, y| Ok(y.clone()))
        }),
        ("the tangent of a root of f32[2] is f32[]", |x| {
            let own = x.clone();
            let x = custom_root(move |x: &Array| x - &own, x, |_, x| Ok(x.clone()), |_, y| Ok(y.sum(..)))?;
            Ok(x.sum(..))
        }),
        ("not linear in the tangents", |x| {
            let own = x.clone();
            let x = custom_root(move |x: &Array| x - &own, x, |_, x| Ok(x.clone()), |_, y| Ok(y * y))?;
            Ok(x.sum(..))
        }),
    ];
    let x = array(&[1.0, 3.0], &[2]);
    for (i, (want, f)) in all.into_iter().enumerate() {
        let error = if i < 4 { f(&x) } else { grad(f)(&x) };
        let error = error.err().unwrap_or_else(|| panic!("no error: {want}")).to_string();
        assert!(error.contains(want) && error.contains("roots.rs:"), "{want}: {error}");
    }
    // A solver that captures what the derivative is asked for.
    let captured = |a: &Array| {
        let own = a.clone();
        custom_root(|x: &Array| x * 2.0, a, move |_, x| Ok(x * &own), |_, y| Ok(y * 0.5)).map(|x| x.sum(..))
    };
    let error = grad(captured)(&x).expect_err("it captures").to_string();
    assert!(error.contains("captures an array that the derivative is asked for"), "{error}");
}

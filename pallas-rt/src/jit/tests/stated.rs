//! Stated rules that call the function that they belong to, that capture what is traced, and that are not linear.
use super::{array, close};
use crate::prelude::*;
use crate::{cond, custom_jvp, custom_vjp, grad, jit, jvp, scan, value_and_grad, vmap};

/// `eˣ`, whose rule says that its derivative is twice itself; it asks itself for its value.
fn doubled(x: &Array) -> Result<Array> {
    let f = custom_vjp(
        |x: &Array| x.exp(),
        |x: &Array| doubled(x).map(|y| (y.clone(), y)),
        |y: &Array, dy: &Array| (y * dy * 2.0,),
    );
    f(x)
}

/// The same in forward mode.
fn doubled_forward(x: &Array) -> Result<Array> {
    let f = custom_jvp(
        |x: &Array| x.exp(),
        |(x,): &(Array,), (dx,): &(Array,)| {
            let y = doubled_forward(x)?;
            Ok::<_, Error>((y.clone(), y * dx * 2.0))
        },
    );
    f(x)
}

/// JAX's first example: `sin(x) y` with a rule that returns the function's own value, and cotangents that ask for it
/// again.
fn product(x: &Array, y: &Array) -> Result<Array> {
    let f = custom_vjp(
        |x: &Array, y: &Array| x.sin() * y,
        |x: &Array, y: &Array| Ok::<_, Error>((product(x, y)?, (x.cos(), x.clone(), y.clone()))),
        |(cosine, x, y): &(Array, Array, Array), d: &Array| Ok::<_, Error>((cosine * d * y, product(x, y)? / y * d)),
    );
    f(x, y)
}

#[test]
fn rules_may_call_their_own_function() {
    let x = array(&[0.5], &[]);
    let e = 0.5f64.exp();
    for f in [doubled as fn(&Array) -> Result<Array>, doubled_forward] {
        close(&f(&x).expect("it runs"), &[e]);
        close(&jit(f)(&x).expect("it runs"), &[e]);
        close(&grad(f)(&x).expect("it runs"), &[2.0 * e]);
        close(&jit(grad(grad(f)))(&x).expect("it runs"), &[4.0 * e]);
        close(&jit(grad(grad(grad(f))))(&x).expect("it runs"), &[8.0 * e]);
        close(&grad(grad(grad(grad(f))))(&x).expect("it runs"), &[16.0 * e]);
        let batch = grad(move |x: &Array| vmap(f)(x).map(|y: Array| y.sum(..)));
        close(&batch(&array(&[0.5, 0.5], &[2])).expect("it runs"), &[2.0 * e, 2.0 * e]);
        let through = jit(grad(move |x: &Array| {
            let (last, ()) =
                scan(x, &array(&[1.0, 1.0], &[2]), |c: &Array, one: &Array| Ok::<_, Error>((f(&(c * one))?, ())))?;
            cond(&last.gt(0.0), &last, |x: &Array| x * 1.0, |x: &Array| x * 0.0)
        }));
        close(&through(&x).expect("it runs"), &[4.0 * e * e.exp()]);
    }
    let tangent = jvp(doubled_forward)(&(x.clone(),), &(array(&[3.0], &[]),)).expect("it runs").1;
    close(&tangent, &[6.0 * e]);
    let y = array(&[2.0], &[]);
    let (value, slope) = value_and_grad(product)(&x, &y).expect("it runs");
    close(&value, &[2.0 * 0.5f64.sin()]);
    close(&slope, &[2.0 * 0.5f64.cos()]);
    let slope = grad(|y: &Array, x: &Array| product(x, y))(&y, &x).expect("it runs");
    close(&slope, &[0.5f64.sin()]);
}

/// The rule holds also where no argument is traced, but something that the functions capture.
#[test]
fn a_rule_that_captures_what_is_traced_is_not_skipped() {
    let x = array(&[1.0, 2.0], &[2]);
    let outer = grad(|w: &Array| {
        let (a, b, c) = (w.clone(), w.clone(), w.clone());
        let f = custom_vjp(move |x: &Array| x * &a, move |x: &Array| (x * &b, ()), move |_: &(), d: &Array| (d * &c,));
        f(&array(&[1.0, 2.0], &[2])).map(|y| y.sum(..))
    });
    let error = outer(&x).expect_err("it captures w").to_string();
    assert!(error.contains("captures an array that the gradient is asked for"), "{error}");
    let outer = grad(|w: &Array| {
        let (a, b) = (w.clone(), w.clone());
        let f = custom_jvp(move |x: &Array| x * &a, move |(x,): &(Array,), (dx,): &(Array,)| (x * &b, dx * &b));
        f(&array(&[1.0, 2.0], &[2])).map(|y| y.sum(..))
    });
    let error = outer(&x).expect_err("it captures w").to_string();
    assert!(error.contains("captures an array that the derivative is asked for"), "{error}");
    // Without a gradient it is the function.
    let plain = jit(|w: &Array| {
        let (a, b, c) = (w.clone(), w.clone(), w.clone());
        let f = custom_vjp(move |x: &Array| x * &a, move |x: &Array| (x * &b, ()), move |_: &(), d: &Array| (d * &c,));
        f(&array(&[3.0, 4.0], &[2]))
    });
    close(&plain(&x).expect("it runs"), &[3.0, 8.0]);
    // Functions of what is known are not traced: they may read it.
    let read = jit(|w: &Array| {
        let f = custom_vjp(
            |x: &Array| x * x.to_vec::<f32>().expect("it is known")[0],
            |x: &Array| (x * 1.0, ()),
            |_: &(), d: &Array| (d * 1.0,),
        );
        Ok::<_, Error>(f(&array(&[3.0], &[1]))? * w)
    });
    close(&read(&x).expect("it runs"), &[9.0, 18.0]);
}

#[test]
fn tangents_that_are_not_linear_are_refused() {
    type Rule = fn(&Array, &Array) -> Array;
    let wrong: [(&str, Rule); 10] = [
        ("mul", |_, d| d * d),
        ("add", |x, d| x + d),
        ("add", |x, d| x.dynamic_slice([0], &[1]) + d),
        ("sub", |_, d| d - 1.0),
        ("tanh", |_, d| d.tanh()),
        ("abs", |_, d| d.abs()),
        ("gt", |x, d| crate::ops::select(&d.gt(0.0), d, x * 0.0)),
        ("div", |x, d| x / d),
        ("dot", |_, d| d.matmul(d) * d),
        ("does not depend", |x, _| x * 2.0),
    ];
    let x = array(&[1.0, 2.0], &[2]);
    for (name, rule) in wrong {
        let f = custom_jvp(|x: &Array| x * 2.0, move |(x,): &(Array,), (d,): &(Array,)| (x * 2.0, rule(x, d)));
        let error = grad(move |x: &Array| f(x).map(|y| y.sum(..)))(&x).expect_err(name).to_string();
        assert!(error.contains(name) && error.contains("tangent"), "{name}: {error}");
    }
    let right: [(Rule, [f64; 2]); 8] = [
        (|x, d| d * x + d / x, [2.0, 2.5]),
        (|x, d| crate::ops::select(&x.gt(1.5), d, d * 3.0), [3.0, 1.0]),
        (|x, d| crate::ops::select(&x.gt(1.5), d, x.zeros_like()), [0.0, 1.0]),
        (|x, d| d + x * 0.0, [1.0, 1.0]),
        (|x, d| d.sum(..) * x, [3.0, 3.0]),
        (|x, _| x.zeros_like(), [0.0, 0.0]),
        (|x, d| d.flip(0).cumsum(0) * x.floor(), [2.0, 3.0]),
        (|x, d| (x.expand_dims(1) * d.expand_dims(0)).sum(0), [3.0, 3.0]),
    ];
    for (i, (rule, want)) in right.into_iter().enumerate() {
        let f = custom_jvp(|x: &Array| x * 2.0, move |(x,): &(Array,), (d,): &(Array,)| (x * 2.0, rule(x, d)));
        let slope = grad(move |x: &Array| f(x).map(|y| y.sum(..)))(&x).unwrap_or_else(|e| panic!("rule {i}: {e}"));
        close(&slope, &want);
    }
}

//! Functions that state their batches, with JAX's numbers.
use crate::prelude::*;
use crate::{custom_vmap, grad, jit, jvp, vmap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn counting(n: usize) -> Array {
    Array::from_slice(&(1..=n).map(|i| i as f32).collect::<Vec<_>>(), &[n]).expect("it fits")
}

fn close(x: &Array, expected: &[f32]) {
    let found = x.to_vec::<f32>().expect("it ran");
    assert_eq!(found.len(), expected.len(), "{x}");
    assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs())), "{x} {expected:?}");
}

/// `sin(x) y`, and a hundred times that in a batch, so that its rule is told apart.
fn told_apart() -> impl Fn(&Array, &Array) -> Result<Array> + Clone {
    let f = custom_vmap(
        |x: &Array, y: &Array| x.sin() * y,
        |_: usize, _: &[bool], (x, y): &(Array, Array)| x.sin() * y * 100.0,
    );
    let f = Arc::new(f);
    move |x: &Array, y: &Array| f(x, y)
}

/// The numbers are those of `jax.custom_batching.custom_vmap` for the same function in JAX 0.12.
#[test]
fn rules_make_batches() {
    let (f, x) = (told_apart(), counting(3));
    let two = Array::from_slice(&[2.0f32], &[]).expect("it fits");
    close(&f(&x, &two).expect("it runs"), &[1.682_942, 1.818_595, 0.282_24]);
    let inner = f.clone();
    let batch = vmap(move |x: &Array, y: &Array| inner(x, y)).in_axes([Some(0), None]);
    close(&batch(&x, &two).expect("it runs"), &[168.294_19, 181.859_48, 28.224]);
    let inner = f.clone();
    let rows = vmap(move |y: &Array| {
        let inner = inner.clone();
        vmap(move |x: &Array, y: &Array| inner(x, y)).in_axes([Some(0), None])(&counting(3), y)
    });
    close(
        &rows(&x).expect("it runs"),
        &[84.147_1, 90.929_74, 14.112, 168.294_19, 181.859_48, 28.224, 252.441_28, 272.789_2, 42.336],
    );
    let inner = f.clone();
    let two_of = two.clone();
    let jitted = jit(vmap(move |x: &Array| inner(x, &two_of)));
    close(&jitted(&x).expect("it runs"), &[168.294_19, 181.859_48, 28.224]);
}

#[test]
fn tangents_of_rules_are_those_of_batches() {
    let (f, x) = (told_apart(), counting(3));
    let two = Array::from_slice(&[2.0f32], &[]).expect("it fits");
    let both = |share: bool| {
        let (f, two) = (f.clone(), two.clone());
        vmap(move |x: &Array| {
            let (f, two) = (f.clone(), two.clone());
            let one = Array::from_slice(&[1.0f32], &[])?;
            let tangent = if share { one } else { x.clone() };
            let (_, tangent) = jvp(move |x: &Array| f(x, &two))(&(x.clone(),), &(tangent,))?;
            Ok::<Array, Error>(tangent)
        })
    };
    close(&both(false)(&x).expect("it runs"), &[108.060_455, -166.458_74, -593.995_5]);
    close(&both(true)(&x).expect("it runs"), &[108.060_455, -83.229_37, -197.998_5]);
    // Gradients of a batch are those of the rule; a batch of gradients is the function's own, which JAX refuses.
    let (inner, other) = (f.clone(), two.clone());
    let of_batch = grad(move |x: &Array| {
        let (inner, other) = (inner.clone(), other.clone());
        vmap(move |x: &Array| inner(x, &other))(x).map(|y| y.sum(..))
    });
    close(&of_batch(&x).expect("it runs"), &[108.060_455, -83.229_37, -197.998_5]);
    let batch = vmap(grad(move |x: &Array| f(x, &two)));
    close(&batch(&x).expect("it runs"), &[1.080_604_6, -0.832_293_7, -1.979_985]);
}

#[test]
fn results_without_the_axis_are_the_same_for_all() {
    let f = custom_vmap(
        |x: &Array| (x.clone(), x * 2.0),
        |_: usize, _: &[bool], (x,): &(Array,)| (x.clone(), x.sum(0) * 0.0),
    );
    let (same, shared) = vmap(f)(&counting(3)).expect("it runs");
    close(&same, &[1.0, 2.0, 3.0]);
    close(&shared, &[0.0, 0.0, 0.0]);
}

/// A rule may call the function, and is asked with the size and what has the axis.
#[test]
fn a_rule_knows_its_batch() {
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    let f = custom_vmap(
        |x: &Array, y: &Array| x.sin() * y,
        |size: usize, has: &[bool], (x, y): &(Array, Array)| {
            assert_eq!(has, [true, false]);
            SIZE.store(size, Relaxed);
            x.sin() * y
        },
    );
    let y = counting(2);
    let found = vmap(f).in_axes([Some(0), None])(&Array::zeros(&[5, 2], DType::F32).expect("it fits"), &y);
    assert_eq!(found.expect("it runs").shape(), [5, 2]);
    assert_eq!(SIZE.load(Relaxed), 5);
}

fn message(f: impl Fn(&Array) -> Result<Array>) -> String {
    f(&counting(3)).expect_err("a mistake").to_string()
}

#[test]
fn wrong_rules_are_refused() {
    let short = custom_vmap(|x: &Array| x.clone(), |_: usize, _: &[bool], (x,): &(Array,)| x.sum(0).reshape(&[1]));
    let found = message(vmap(short).into_fn());
    assert!(found.contains("[f32[1]] in place of [f32[3]]"), "{found}");
    let kept = counting(3);
    let captures = custom_vmap(|x: &Array| x.clone(), move |_: usize, _: &[bool], (x,): &(Array,)| x + &kept);
    let found = message(vmap(captures).into_fn());
    assert!(found.contains("captures an array") && found.contains("takes every array as an argument"), "{found}");
}

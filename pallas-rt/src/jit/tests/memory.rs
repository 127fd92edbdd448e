//! How much memory the temporaries of jitted functions take.
use super::{array, numbers};
use crate::prelude::*;
use crate::{checkpoint, disable_jit, grad, jit, jit_misses, lower, ops};

/// Numbers from -1 to 1.
fn drawn(shape: &[usize]) -> Array {
    let n = shape.iter().product::<usize>();
    let x: Vec<f32> = (0..n).map(|i| (i.wrapping_mul(2_654_435_761) % 1009) as f32 / 504.0 - 1.0).collect();
    array(&x, shape)
}

/// The bytes of a function's temporaries, after it gave what its operations give one at a time.
#[track_caller]
fn temporaries(f: fn(&Array) -> Array, x: &Array) -> usize {
    let jitted = jit(f);
    let found = jitted(x).expect("it runs");
    let guard = disable_jit();
    let want = jitted(x).expect("it runs");
    drop(guard);
    assert_eq!(numbers(&found), numbers(&want));
    lower(f)(x).expect("it traces").memory_analysis().temporary_bytes
}

/// The depth-first order makes each weight before what it is multiplied with, so that ten are there at once.
#[test]
fn weights_that_are_products_wait_for_nothing() {
    let x = drawn(&[64, 64]);
    let f = |x: &Array| {
        let weights: Vec<Array> = (1..=10).map(|k| (x * f64::from(k)).matmul(&x.t()) * (1.0 / 64.0)).collect();
        weights.iter().rev().fold(x.clone(), |y, w| w.matmul(&y) * (1.0 / 64.0))
    };
    let bytes = temporaries(f, &x);
    assert!(bytes <= 3 * 64 * 64 * 4, "{bytes} bytes");
}

/// The first elements of an array, added to others.
#[kernel(grid = (cdiv(M, 4)))]
fn first(
    #[block([N] => [4], |i| (i,))] x: In<f32>,
    #[block([M] => [4], |i| (i,))] y: In<f32>,
    #[block([M] => [4], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}

/// Kernels read eight arrays, and again when they have read all: the arrays are made a second time from `x`.
#[test]
fn cheap_values_are_made_again() {
    const N: usize = 1 << 16;
    let x = drawn(&[N]);
    let f = |x: &Array| {
        let scaled: Vec<Array> = (2..10).map(|k| x * f64::from(k)).collect();
        let all = scaled.iter().chain(&scaled);
        all.fold(ops::zeros(&[8], DType::F32), |sum, x| first(x, &sum).expect("it is traced"))
    };
    let bytes = temporaries(f, &x);
    assert!(bytes <= 2 * N * 4, "{bytes} bytes");
}

/// Weights in f32 are rounded for the products, forward and back; the rounded ones do not wait in between.
#[test]
fn rounded_weights_are_rounded_again() {
    let loss = |weights: &Vec<Array>, x: &Array| {
        let layer = |x: Array, w: &Array| x.matmul(&w.cast(DType::Bf16)).tanh();
        weights.iter().fold(x.cast(DType::Bf16), layer).cast(DType::F32).square().sum(..)
    };
    let weights: Vec<Array> = (0..8).map(|_| drawn(&[256, 256]) * 0.1).collect();
    jit(grad(loss))(&weights, &drawn(&[16, 256])).expect("it runs");
    let bytes = jit_misses().last().expect("it was compiled").temporary_bytes;
    // Eight rounded weights have 1 MiB.
    assert!(bytes < 700 << 10, "{bytes} bytes");
}

/// Of 16 layers in four checkpoints, the backward pass keeps the results of the checkpoints, and computes the layers of
/// one checkpoint at a time again.
#[test]
fn layers_of_one_checkpoint_at_a_time_are_computed_again() {
    let loss = |weights: &Vec<Array>, x: &Array| {
        let layers =
            |h: &Array, weights: &Vec<Array>| weights.iter().fold(h.clone(), |h, w| (h.matmul(w) * 0.125).tanh());
        let weights: Vec<Vec<Array>> = weights.chunks(4).map(<[Array]>::to_vec).collect();
        let run = |h: Array, weights| checkpoint(layers)(&h, weights).expect("it is traced");
        weights.iter().fold(x.clone(), run).square().sum(..)
    };
    let weights: Vec<Array> = (0..16).map(|_| drawn(&[64, 64]) * 0.1).collect();
    jit(grad(loss))(&weights, &drawn(&[64, 64])).expect("it runs");
    let bytes = jit_misses().last().expect("it was compiled").temporary_bytes;
    assert!(bytes <= 7 * 64 * 64 * 4, "{bytes} bytes");
}

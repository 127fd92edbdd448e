//! The array surface against JAX, and the table of its names against the code.
mod agreement;
mod cases;
mod composed;
mod convolution;
mod gradients;
mod linear;
mod long;
mod mistakes;
mod order;
mod reference;
mod slopes;
mod surface;

use crate::prelude::*;
use crate::{jit, ops};

/// Arrays that come from nothing are values of the function that is being traced.
#[test]
fn operations_without_operands_are_staged() {
    let f = jit(|x: &Array| {
        let count = ops::arange(0, 3, 1, DType::F32);
        assert_eq!(count.to_vec::<f32>().expect_err("it is traced").code(), "traced");
        x * count + ops::full(&[3], 0.5, DType::F32)
    });
    let x = Client::cpu().array(&[1.0f32, 2.0, 4.0], &[3]).expect("it fits");
    assert_eq!(f(&x).expect("it runs").to_vec::<f32>().expect("it ran"), [0.5, 2.5, 8.5]);
    assert_eq!(ops::arange(0, 3, 1, DType::I32).to_vec::<i32>().expect("it runs at once"), [0, 1, 2]);
}

/// As in NumPy and JAX.
#[test]
fn remainders_by_an_integer_zero_are_zero() {
    let client = Client::cpu();
    let x = client.array(&[4i32, -5, 7, i32::MIN], &[4]).expect("it fits");
    let by = client.array(&[0i32, 0, -4, -1], &[4]).expect("it fits");
    assert_eq!(x.remainder(&by).to_vec::<i32>().expect("it runs"), [0, 0, -1, 0]);
    assert_eq!(x.fmod(&by).to_vec::<i32>().expect("it runs"), [0, 0, 3, 0]);
    assert_eq!(x.remainder(0).to_vec::<i32>().expect("it runs"), [0; 4]);
}

/// As in NumPy and JAX.
#[test]
fn truth_values_have_positions() {
    for client in [Client::cpu(), Client::interpreter()] {
        let x = client.array(&[false, true, true, true, false, true], &[2, 3]).expect("it fits");
        let positions = |x: Array| x.to_vec::<i32>().expect("it runs");
        assert_eq!(positions(x.argmax(1)), [1, 0]);
        assert_eq!(positions(x.argmin(1)), [0, 1]);
        assert_eq!(positions(x.nanargmax(0)), [1, 0, 0]);
        assert_eq!(positions(x.nanargmin(0)), [0, 1, 0]);
        assert_eq!(x.max(..).to_vec::<bool>().expect("it runs"), [true]);
    }
}

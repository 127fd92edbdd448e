//! Gradients are slopes of the forward kernels: both run in the interpreter in float64, without a reference.
//!
//! Along directions u of each operand x in turn, with L = Σ dout·out and h = 2⁻¹⁷, the central difference `(L(x +
//! h·u) - L(x - h·u)) / 2h` is compared with `Σ u·∂L/∂x` of the backward kernel. A direction has no zeros, so that
//! every element counts, at two launches a direction instead of two an element. The difference leaves out h²/6 of the
//! third derivative, 1e-11 of what is at most hundreds; rounding of L, sums of a few hundred products of 1e-16 each,
//! over 2h is some 1e-9. Hence [`TOLERANCE`]. A step computed in f32 would be seen: 6e-8 over 2h are 4e-3.
//!
//! Attention with all its options is in [`super::attention_options`]; weights that are quantised have no gradient.
use super::{B, functions};
use crate::cases::{self, Entry, Extents, entry};
use crate::support::{array, doubles, values};
use pallas_kernels::splash_attention::{Options as SplashOptions, attention_in_blocks, gradients_in_blocks};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::prelude::*;

const STEP: f64 = 1.0 / 131_072.0;
const TOLERANCE: f64 = 1e-8;

/// Test values in float64.
fn operand(shape: &[usize], seed: usize) -> Array {
    array(&Client::interpreter(), DType::F64, shape, &values(shape.iter().product(), seed))
}

fn product(x: &Array, y: &Array) -> f64 {
    doubles(x).iter().zip(doubles(y)).map(|(x, y)| x * y).sum()
}

/// The slopes of `Σ dout·forward(x)` by operand `which` along two directions, against every gradient that is said to
/// have them. An operand without elements has none.
pub(super) fn check(
    what: &str,
    x: &[Array],
    which: usize,
    dout: &Array,
    forward: impl Fn(&[Array]) -> Result<Array>,
    gradients: &[&Array],
) {
    if x[which].is_empty() {
        return;
    }
    for seed in [31, 57] {
        // No element stays where it is.
        let shift = |u: f64| if u.abs() < 0.1 { u + 0.5 } else { u };
        let direction: Vec<f64> = values(x[which].len(), seed).into_iter().map(shift).collect();
        let loss = |by: f64| {
            let moved: Vec<f64> = doubles(&x[which]).iter().zip(&direction).map(|(x, u)| x + by * u).collect();
            let mut operands = x.to_vec();
            operands[which] = array(x[which].client(), DType::F64, x[which].shape(), &moved);
            let out = forward(&operands).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(out.dtype(), DType::F64);
            product(&out, dout)
        };
        let slope = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
        for gradient in gradients {
            assert_eq!(gradient.shape(), x[which].shape(), "{what}");
            let found: f64 = doubles(gradient).iter().zip(&direction).map(|(g, u)| g * u).sum();
            let error = (slope - found).abs();
            assert!(error < TOLERANCE * slope.abs().max(1.0), "{what}, operand {which}: {found}, its slope is {slope}");
        }
    }
}

/// Checks the functions of a family that have gradients.
fn check_all(family: &[Entry], extents: &Extents) {
    for entry in family {
        let (value, gradients) = functions(entry, &Client::interpreter(), DType::F64, extents);
        let Some(gradients) = gradients else { continue };
        let found = (gradients.call)(&gradients.operands).unwrap_or_else(|e| panic!("{}: {e}", entry.name));
        let dout = gradients.operands.last().expect("a cotangent");
        for (which, gradient) in found.iter().enumerate() {
            let forward = |x: &[Array]| (value.call)(x).map(|mut all| all.swap_remove(0));
            check(entry.name, &value.operands, which, dout, forward, &[gradient]);
        }
    }
}

#[test]
fn of_rows() {
    check_all(cases::ROWS_IN_BLOCKS, &[('n', 5), ('d', 6), ('u', B)]);
}

#[test]
fn of_products_gates_and_rotations() {
    check_all(cases::PRODUCTS_IN_BLOCKS, &[('b', 2), ('n', 5), ('k', 7), ('m', 6), ('u', B)]);
    check_all(cases::GATES_IN_BLOCKS, &[('h', 2), ('n', 9), ('d', 6), ('u', B)]);
}

#[test]
fn of_losses_and_tables() {
    check_all(cases::CLASSES_IN_BLOCKS, &[('n', 5), ('v', 6), ('d', 7), ('u', B)]);
    // Some rows are taken several times.
    check_all(std::slice::from_ref(entry("embedding in blocks")), &[('n', 9), ('v', 5), ('d', 6), ('u', B)]);
}

#[test]
fn of_attention() {
    let extents = [('b', 1), ('h', 2), ('g', 1), ('s', 6), ('l', 7), ('d', 3), ('y', 1), ('z', 2), ('w', 3), ('u', B)];
    check_all(cases::ATTENTION_IN_BLOCKS, &extents);
    check_all(cases::OPTIONS_IN_BLOCKS, &extents);
}

#[test]
fn of_splash_attention() -> Result<()> {
    let [s, l, d] = [9, 11, 3];
    let x = [operand(&[1, 2, s, d], 1), operand(&[1, 1, l, d], 2), operand(&[1, 1, l, d], 3)];
    let dout = operand(&[1, 2, s, d], 4);
    for (soft_cap, heads) in [
        (None, [Mask::causal(), Mask::window(2) | Mask::Chunked { size: 5 }]),
        (Some(1.5), [Mask::dense(s, l, |i, j| (i * 5 + j * 3) % 7 < 3), Mask::Full]),
    ] {
        let info = MaskInfo::in_blocks(x[0].client(), &heads, [s, l], [B, B])?;
        let options = SplashOptions { scale: Some(0.5), soft_cap };
        let run = |x: &[Array]| attention_in_blocks::<f64, B, B>(&x[0], &x[1], &x[2], &info, &options);
        let (out, lse) = run(&x)?;
        let (dq, dk, dv) = gradients_in_blocks::<f64, B, B>(x.each_ref(), [&out, &lse], &dout, &info, &options)?;
        for (which, gradient) in [&dq, &dk, &dv].into_iter().enumerate() {
            check(&format!("{heads:?}"), &x, which, &dout, |x| run(x).map(|(out, _)| out), &[gradient]);
        }
    }
    Ok(())
}

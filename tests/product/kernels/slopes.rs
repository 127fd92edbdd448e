//! Gradients are slopes of the forward kernels: both run in the interpreter in float64, without a reference.
//!
//! Along directions u of each operand x in turn, with L = Σ dout·out and h = 2⁻¹⁷, the central difference
//! `(L(x + h·u) - L(x - h·u)) / 2h` is compared with `Σ u·∂L/∂x` of the backward kernel. A direction has no zeros, so that
//! every element counts, at two launches a direction instead of two an element. The difference leaves out h²/6 of the third
//! derivative, 1e-11 of what is at most hundreds; rounding of L, sums of a few hundred products of 1e-16 each, over 2h is
//! some 1e-9. Hence [`TOLERANCE`]. A step computed in f32 would be seen: 6e-8 over 2h are 4e-3.
//!
//! Attention with all its options is in [`super::attention_options`]; weights that are quantised have no gradient.
use super::B;
use super::embedding::{numbers, places};
use super::norm::EPSILON;
use crate::support::{array, doubles, values};
use pallas_kernels::cross_entropy::{
    Options, cross_entropy_blocks, cross_entropy_dw, cross_entropy_dx, cross_entropy_of_logits_blocks,
    cross_entropy_of_logits_dz,
};
use pallas_kernels::embedding::{embedding_backward_blocks, embedding_blocks};
use pallas_kernels::gated::{gated_backward_blocks, gated_blocks};
use pallas_kernels::norm::{layer_norm_whole_rows, normalise, rms_norm_whole_rows, row_moment};
use pallas_kernels::norm_backward::{
    norm_backward_apply, norm_backward_means, norm_backward_parameters, norm_backward_whole_rows,
};
use pallas_kernels::rotary::{rotary_blocks, tables};
use pallas_kernels::softmax::{softmax_apply, softmax_statistics, softmax_whole_rows};
use pallas_kernels::softmax_backward::{softmax_backward_apply, softmax_backward_sums, softmax_backward_whole_rows};
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

/// The slopes of `Σ dout·forward(x)` by operand `which` along two directions, against every gradient that is said to have
/// them. An operand without elements has none.
pub(super) fn check<const N: usize>(
    what: &str,
    x: &[Array; N],
    which: usize,
    dout: &Array,
    forward: impl Fn(&[Array; N]) -> Result<Array>,
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
            let mut operands = x.clone();
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

#[test]
fn of_softmax_and_its_logarithm() -> Result<()> {
    let (x, dy) = (operand(&[5, 6], 1), operand(&[5, 6], 2));
    for log in [false, true] {
        let whole = |[x]: &[Array; 1]| softmax_whole_rows::<f64>(x, log, B);
        let swept = |[x]: &[Array; 1]| {
            let (max, sum) = softmax_statistics::<f64>(x, B, B)?;
            softmax_apply::<f64>(x, &max, &sum, log, B, B)
        };
        let x = [x.clone()];
        let y = whole(&x)?;
        let dx = softmax_backward_whole_rows::<f64>(&y, &dy, log, B)?;
        let sums = softmax_backward_sums::<f64>(&y, &dy, log, B, B)?;
        let dx_swept = softmax_backward_apply::<f64>(&y, &dy, &sums, log, B, B)?;
        check(&format!("whole, log {log}"), &x, 0, &dy, whole, &[&dx, &dx_swept]);
        check(&format!("swept, log {log}"), &x, 0, &dy, swept, &[&dx]);
    }
    Ok(())
}

#[test]
fn of_norms() -> Result<()> {
    let shape = [5, 6];
    let x = [operand(&shape, 1), operand(&[1, 6], 7), operand(&[1, 6], 8)];
    let dy = operand(&shape, 2);
    let zero = dy.client().zeros(&[5, 1], DType::F64)?;
    for centre in [true, false] {
        let shifted = |out: Array, beta: &Array| {
            // RMS norm has no shift: as if there were one, so that both have three gradients.
            let rows = doubles(&out).iter().enumerate().map(|(i, y)| y + doubles(beta)[i % 6]).collect::<Vec<_>>();
            array(out.client(), DType::F64, &shape, &rows)
        };
        let whole = |[x, gamma, beta]: &[Array; 3]| match centre {
            true => layer_norm_whole_rows::<f64>(x, gamma, beta, EPSILON, B),
            false => rms_norm_whole_rows::<f64>(x, gamma, EPSILON, B).map(|out| shifted(out, beta)),
        };
        let mean_of = |x: &Array| if centre { row_moment::<f64>(x, &zero, 1, B, B) } else { Ok(zero.clone()) };
        let swept = |[x, gamma, beta]: &[Array; 3]| {
            let mean = mean_of(x)?;
            normalise::<f64>(x, &mean, &row_moment::<f64>(x, &mean, 2, B, B)?, gamma, beta, EPSILON, B, B)
        };
        let (dx, mean, variance) = norm_backward_whole_rows::<f64>(&x[0], &x[1], &dy, EPSILON, centre, B)?;
        let (dgamma, dbeta) = norm_backward_parameters::<f64>(&x[0], &dy, &mean, &variance, EPSILON, B, B)?;
        let mean = mean_of(&x[0])?;
        let variance = row_moment::<f64>(&x[0], &mean, 2, B, B)?;
        let (level, along) = norm_backward_means::<f64>(&x[0], &x[1], &dy, &mean, &variance, EPSILON, B, B)?;
        let level = if centre { level } else { zero.clone() };
        let dx_swept = norm_backward_apply::<f64>(&x[0], &x[1], &dy, &mean, &variance, &level, &along, EPSILON, B, B)?;
        for (which, gradients) in [&[&dx, &dx_swept][..], &[&dgamma], &[&dbeta]].into_iter().enumerate() {
            check(&format!("whole, centre {centre}"), &x, which, &dy, whole, gradients);
            check(&format!("swept, centre {centre}"), &x, which, &dy, swept, gradients);
        }
    }
    Ok(())
}

#[test]
fn of_rotary_embedding_and_gated_units() -> Result<()> {
    let (x, dy) = ([operand(&[2, 6, 6], 1)], operand(&[2, 6, 6], 2));
    let (cos, sin) = tables(x[0].client(), 3, 6, 6, 100.0)?;
    for neighbours in [false, true] {
        let forward = |[x]: &[Array; 1]| rotary_blocks::<f64>(x, &cos, &sin, neighbours, false, 1, B);
        let dx = rotary_blocks::<f64>(&dy, &cos, &sin, neighbours, true, 2, B)?;
        check(&format!("rotary, neighbours {neighbours}"), &x, 0, &dy, forward, &[&dx]);
    }
    let (x, dy) = ([operand(&[9], 1), operand(&[9], 2)], operand(&[9], 3));
    for gelu in [false, true] {
        let forward = |[gate, up]: &[Array; 2]| gated_blocks::<f64>(gate, up, gelu, B);
        let (dgate, dup) = gated_backward_blocks::<f64>(&x[0], &x[1], &dy, gelu, B)?;
        check(&format!("gated, gelu {gelu}"), &x, 0, &dy, forward, &[&dgate]);
        check(&format!("gated, gelu {gelu}"), &x, 1, &dy, forward, &[&dup]);
    }
    Ok(())
}

#[test]
fn of_cross_entropy() -> Result<()> {
    let ([n, v, d], depth) = ([5, 6, 7], 8);
    let x = [operand(&[n, d], 1), operand(&[v, d], 2)];
    let (z, dloss) = ([operand(&[n, v], 3)], operand(&[n, 1], 4));
    let labels = x[0].client().array(&[0, 3, 2, 5, 3], &[n, 1])?;
    for options in super::cross_entropy::OPTIONS {
        let Options { ignore, smoothing, z_loss } = options;
        let smooth = smoothing != 0.0;
        let what = format!("{options:?}");
        let fused = |x: &Array, w: &Array| {
            cross_entropy_blocks::<f64>(x, w, &labels, ignore, smoothing, z_loss, smooth, B, depth, B, B)
        };
        let (_, lse) = fused(&x[0], &x[1])?;
        let dx =
            cross_entropy_dx::<f64>(&x[0], &x[1], &labels, &lse, &dloss, ignore, smoothing, z_loss, B, depth, B, B)?;
        let dw =
            cross_entropy_dw::<f64>(&x[0], &x[1], &labels, &lse, &dloss, ignore, smoothing, z_loss, B, depth, B, B)?;
        let loss = |[x, w]: &[Array; 2]| fused(x, w).map(|(loss, _)| loss);
        check(&what, &x, 0, &dloss, loss, &[&dx]);
        check(&what, &x, 1, &dloss, loss, &[&dw]);
        let given = |z: &Array| {
            let columns = if smooth { z.shape()[1] } else { B };
            cross_entropy_of_logits_blocks::<f64>(z, &labels, ignore, smoothing, z_loss, smooth, smooth, B, columns)
        };
        let (_, lse) = given(&z[0])?;
        let dz = cross_entropy_of_logits_dz::<f64>(&z[0], &labels, &lse, &dloss, ignore, smoothing, z_loss, B, B)?;
        check(&format!("of logits, {what}"), &z, 0, &dloss, |[z]| given(z).map(|(loss, _)| loss), &[&dz]);
    }
    Ok(())
}

#[test]
fn of_embedding() -> Result<()> {
    let [n, v, d] = [9, 5, 6];
    let (table, dout, ids) = ([operand(&[v, d], 1)], operand(&[n, d], 2), numbers(n, v));
    let client = table[0].client();
    let (starts, order) = places(client, &ids, v);
    let at = client.array(&ids, &[n])?;
    let dtable = embedding_backward_blocks::<f64, B>(&starts, &order, &dout, v, n.next_power_of_two())?;
    check("embedding", &table, 0, &dout, |[table]| embedding_blocks::<f64, B>(&at, table), &[&dtable]);
    Ok(())
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
        let run = |[q, k, v]: &[Array; 3]| attention_in_blocks::<f64, B, B>(q, k, v, &info, &options);
        let (out, lse) = run(&x)?;
        let (dq, dk, dv) = gradients_in_blocks::<f64, B, B>(x.each_ref(), [&out, &lse], &dout, &info, &options)?;
        for (which, gradient) in [&dq, &dk, &dv].into_iter().enumerate() {
            check(&format!("{heads:?}"), &x, which, &dout, |x| run(x).map(|(out, _)| out), &[gradient]);
        }
    }
    Ok(())
}

//! Softmax and log-softmax over the last axis.
//!
//! ```text
//! softmax(x)_j = exp(x_j - m) / Σ_k exp(x_k - m)      m = max_k x_k
//! log_softmax(x)_j = x_j - m - ln Σ_k exp(x_k - m)
//! ```
//! Rows of any length: a first sweep over blocks of the row finds maximum and sum (online, Milakov & Gimelshein 2018),
//! a second one writes. A row without finite maximum gives NaN, as IEEE arithmetic does.
use crate::dtype_dispatch::{floats, with_gradient};
use crate::element::Floating;
use crate::row_blocks::{choose_long_row_block, choose_row_block, has_whole_row_blocks, reshape_to_rows};
use crate::softmax_backward::{log_softmax_backward, softmax_backward};
use pallas_rt::Differentiable;
use pallas_rt::prelude::*;

/// Computes maximum and sum of exponentials of each row, over blocks of its columns.
#[kernel(grid = (cdiv(R, BR), cdiv(C, BC)), semantics = (parallel, arbitrary))]
pub fn softmax_statistics<E: Floating>(
    #[block([R, C] => [BR, BC], |i, j| (i, j), fill = f32::NEG_INFINITY)] x: In<E>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] max: Out<E::Acc>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] sum: Out<E::Acc>,
    #[scratch([BR, 1])] running_max: Scratch<E::Acc>,
    #[scratch([BR, 1])] running_sum: Scratch<E::Acc>,
    #[dim] BR: usize,
    #[dim] BC: usize,
) {
    if program_id(1) == 0 {
        running_max.fill(f32::NEG_INFINITY);
        running_sum.fill(0.0);
    }
    let x = x.load().cast::<E::Acc>();
    let m = maximum(running_max.load(), x.max(1));
    // Before the first finite element everything is -inf: the sum stays 0.
    let base = select(m.gt(f32::NEG_INFINITY), m, 0.0);
    running_sum.store(running_sum.load() * (running_max.load() - base).exp() + (x - base).exp().sum(1));
    running_max.store(m);
    if program_id(1) == num_programs(1) - 1 {
        max.store(running_max.load());
        sum.store(running_sum.load());
    }
}

/// Computes softmax of each row from its statistics; with `log` its logarithm.
#[kernel(grid = (cdiv(R, BR), cdiv(C, BC)))]
pub fn softmax_apply<E: Floating>(
    #[block([R, C] => [BR, BC], |i, j| (i, j))] x: In<E>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] max: In<E::Acc>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] sum: In<E::Acc>,
    #[block([R, C] => [BR, BC], |i, j| (i, j))] out: Out<E>,
    #[fixed] log: bool,
    #[dim] BR: usize,
    #[dim] BC: usize,
) {
    let shifted = x.load().cast::<E::Acc>() - max.load();
    let y = if log { shifted - sum.load().log() } else { shifted.exp() * sum.load().recip() };
    out.store(y.cast::<E>());
}

/// Computes softmax of whole rows that fit a block; with `log` its logarithm.
#[kernel(grid = (cdiv(R, BR)))]
pub fn softmax_whole_rows<E: Floating>(
    #[block([R, C] => [BR, C], |i| (i, 0))] x: In<E>,
    #[block([R, C] => [BR, C], |i| (i, 0))] out: Out<E>,
    #[fixed] log: bool,
    #[dim] BR: usize,
) {
    let x = x.load().cast::<E::Acc>();
    let shifted = x - x.max(1);
    let e = shifted.exp();
    // One division a row.
    let y = if log { shifted - e.sum(1).log() } else { e * e.sum(1).recip() };
    out.store(y.cast::<E>());
}

/// Computes softmax, or with `log` its logarithm, by the kernels that suit the rows' length.
#[track_caller]
#[inline]
fn softmax_or_log(x: &Array, log: bool) -> Result<Array> {
    let flat = reshape_to_rows(x)?;
    let out = floats!("softmax", x.dtype(), E => if has_whole_row_blocks(&flat) {
        let [br, _] = choose_row_block(&flat, 32, None);
        softmax_whole_rows::<E>(&flat, log, br)
    } else {
        let [br, bc] = choose_long_row_block(&flat);
        let (max, sum) = softmax_statistics::<E>(&flat, br, bc)?;
        softmax_apply::<E>(&flat, &max, &sum, log, br, bc)
    })?;
    Ok(out.reshape(x.shape()))
}

/// Softmax over the last axis; f32, f16 or bf16, computed in f32.
///
/// # Errors
/// A scalar, or another element type; device trouble.
///
/// ```
/// use pallas_kernels::softmax::softmax;
/// use pallas_rt::Array;
/// let y = softmax(&Array::from_slice(&[0.0f32, 0.0, 3f32.ln()], &[1, 3])?)?;
/// let want = [0.2, 0.2, 0.6];
/// assert!(y.to_vec::<f32>()?.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn softmax(x: &Array) -> Result<Array> {
    #[cfg(feature = "graph")]
    if let Some(y) = crate::composed_ops::compose_softmax(x, false) {
        return Ok(y);
    }
    let (call, [x]) = Differentiable::begin([x])?;
    let y = softmax_or_log(&x, false)?;
    let [y] = with_gradient!(call, [y.clone()], &[&y], |[y], [dy]| [softmax_backward(y, &dy)?]);
    Ok(y)
}

/// Logarithm of the softmax over the last axis; f32, f16 or bf16, computed in f32.
///
/// # Errors
/// As [`softmax`].
///
/// ```
/// use pallas_kernels::softmax::log_softmax;
/// use pallas_rt::Array;
/// let y = log_softmax(&Array::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[1, 4])?)?;
/// assert!(y.to_vec::<f32>()?.iter().all(|y| (y + 4f32.ln()).abs() < 1e-6));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn log_softmax(x: &Array) -> Result<Array> {
    #[cfg(feature = "graph")]
    if let Some(y) = crate::composed_ops::compose_softmax(x, true) {
        return Ok(y);
    }
    let (call, [x]) = Differentiable::begin([x])?;
    let y = softmax_or_log(&x, true)?;
    let [y] = with_gradient!(call, [y.clone()], &[&y], |[y], [dy]| [log_softmax_backward(y, &dy)?]);
    Ok(y)
}

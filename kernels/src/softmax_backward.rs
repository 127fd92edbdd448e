//! Gradients of softmax and log-softmax over the last axis, from their results.
//!
//! ```text
//! softmax:      dx_j = y_j · (dy_j - Σ_k y_k·dy_k)
//! log_softmax:  dx_j = dy_j - exp(y_j) · Σ_k dy_k
//! ```
//! (The transpose of the Jacobian `diag(y) - y yᵀ`.) Short rows are one block; long ones are swept twice: one sweep for
//! the sum, one that writes.
use crate::dtype_dispatch::floats;
use crate::element::{Floating, Wide};
use crate::row_blocks::{choose_long_row_block, choose_row_block, has_whole_row_blocks, reshape_to_rows};
use pallas_rt::prelude::*;

/// Term of the sum over a row in the gradient of softmax, or with `log` of log-softmax.
fn row_sum_term<A: Wide>(y: Tile<A>, dy: Tile<A>, log: bool) -> Tile<A> {
    if log { dy } else { y * dy }
}

/// Returns the gradient by the input of softmax, or with `log` of log-softmax, from its result `y`, the gradient `dy`
/// by that, and `sum`, the sum of [`row_sum_term`] over each row.
fn gradient_from_sum<A: Wide>(y: Tile<A>, dy: Tile<A>, sum: Tile<A>, log: bool) -> Tile<A> {
    if log { dy - y.exp() * sum } else { y * (dy - sum) }
}

/// Computes the gradient of softmax, or with `log` of log-softmax, for whole rows that fit a block.
#[kernel(grid = (cdiv(R, BR)))]
pub fn softmax_backward_whole_rows<E: Floating>(
    #[block([R, C] => [BR, C], |i| (i, 0))] y: In<E>,
    #[block([R, C] => [BR, C], |i| (i, 0))] dy: In<E>,
    #[block([R, C] => [BR, C], |i| (i, 0))] dx: Out<E>,
    #[fixed] log: bool,
    #[dim] BR: usize,
) {
    let (y, dy) = (y.load().cast::<E::Acc>(), dy.load().cast::<E::Acc>());
    dx.store(gradient_from_sum(y, dy, row_sum_term(y, dy, log).sum(1), log).cast::<E>());
}

/// Computes the sum over each row in the gradient of softmax, or with `log` of log-softmax, in blocks of columns.
#[kernel(grid = (cdiv(R, BR), cdiv(C, BC)), semantics = (parallel, arbitrary))]
pub fn softmax_backward_sums<E: Floating>(
    #[block([R, C] => [BR, BC], |i, j| (i, j), fill = 0.0)] y: In<E>,
    #[block([R, C] => [BR, BC], |i, j| (i, j), fill = 0.0)] dy: In<E>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] out: Out<E::Acc>,
    #[scratch([BR, 1])] sum: Scratch<E::Acc>,
    #[fixed] log: bool,
    #[dim] BR: usize,
    #[dim] BC: usize,
) {
    if program_id(1) == 0 {
        sum.fill(0.0);
    }
    sum.store(sum.load() + row_sum_term(y.load().cast::<E::Acc>(), dy.load().cast::<E::Acc>(), log).sum(1));
    if program_id(1) == num_programs(1) - 1 {
        out.store(sum.load());
    }
}

/// Computes the gradient of softmax, or with `log` of log-softmax, from the rows' sums, in blocks of columns.
#[kernel(grid = (cdiv(R, BR), cdiv(C, BC)))]
pub fn softmax_backward_apply<E: Floating>(
    #[block([R, C] => [BR, BC], |i, j| (i, j))] y: In<E>,
    #[block([R, C] => [BR, BC], |i, j| (i, j))] dy: In<E>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] sum: In<E::Acc>,
    #[block([R, C] => [BR, BC], |i, j| (i, j))] dx: Out<E>,
    #[fixed] log: bool,
    #[dim] BR: usize,
    #[dim] BC: usize,
) {
    dx.store(gradient_from_sum(y.load().cast::<E::Acc>(), dy.load().cast::<E::Acc>(), sum.load(), log).cast::<E>());
}

/// Computes the gradient of softmax, or with `log` of log-softmax, by the kernels that suit the rows' length.
#[track_caller]
#[inline]
fn softmax_gradient(y: &Array, dy: &Array, log: bool) -> Result<Array> {
    let (y2, dy2) = (reshape_to_rows(y)?, reshape_to_rows(dy)?);
    let dx = floats!("softmax_backward", y.dtype(), E => if has_whole_row_blocks(&y2) {
        let [br, _] = choose_row_block(&y2, 8, None);
        softmax_backward_whole_rows::<E>(&y2, &dy2, log, br)
    } else {
        let [br, bc] = choose_long_row_block(&y2);
        let sum = softmax_backward_sums::<E>(&y2, &dy2, log, br, bc)?;
        softmax_backward_apply::<E>(&y2, &dy2, &sum, log, br, bc)
    })?;
    Ok(dx.reshape(y.shape()))
}

/// Gradient by x of `softmax(x)`, from its result `y` and the gradient `dy` by that; f32, f16 or bf16, computed in f32.
///
/// # Errors
/// Scalars, shapes or element types that do not fit; device trouble.
///
/// ```
/// use pallas_kernels::softmax_backward::softmax_backward;
/// use pallas_rt::Array;
/// let y = Array::from_slice(&[0.25f32, 0.75], &[1, 2])?;
/// let dy = Array::from_slice(&[1.0f32, 0.0], &[1, 2])?;
/// assert_eq!(softmax_backward(&y, &dy)?.to_vec::<f32>()?, [0.1875, -0.1875]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn softmax_backward(y: &Array, dy: &Array) -> Result<Array> {
    softmax_gradient(y, dy, false)
}

/// Gradient by x of `log_softmax(x)`, from its result `y` and the gradient `dy` by that; f32, f16 or bf16, computed in
/// f32.
///
/// # Errors
/// As [`softmax_backward`].
///
/// ```
/// use pallas_kernels::softmax_backward::log_softmax_backward;
/// use pallas_rt::Array;
/// let y = Array::from_slice(&[0.25f32.ln(), 0.75f32.ln()], &[1, 2])?;
/// let dx = log_softmax_backward(&y, &Array::from_slice(&[1.0f32, 0.0], &[1, 2])?)?.to_vec::<f32>()?;
/// assert!((dx[0] - 0.75).abs() < 1e-6 && (dx[1] + 0.75).abs() < 1e-6);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn log_softmax_backward(y: &Array, dy: &Array) -> Result<Array> {
    softmax_gradient(y, dy, true)
}

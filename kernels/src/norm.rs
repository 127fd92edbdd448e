//! Layer norm and RMS norm over the last axis.
//!
//! ```text
//! layer_norm(x)_j = (x_j - μ) / sqrt(σ² + ε) · γ_j + β_j      μ = mean_k x_k, σ² = mean_k (x_k - μ)²
//! rms_norm(x)_j = x_j / sqrt(mean_k x_k² + ε) · γ_j
//! ```
//! (Ba et al. 2016; Zhang & Sennrich 2019.) Sums are f32. Short rows are one block; long ones are swept in blocks: one
//! sweep for the mean, one for the variance around it (no cancellation), one that writes.
use crate::dtype_dispatch::{floats, with_gradient};
use crate::element::Floating;
use crate::norm_backward::{layer_norm_backward, rms_norm_backward};
use crate::row_blocks::{
    check_epsilon, choose_long_row_block, choose_row_block, has_whole_row_blocks, reshape_parameter, reshape_to_rows,
};
use pallas_rt::Differentiable;
use pallas_rt::prelude::*;

/// Computes layer norm of whole rows that fit a block.
#[kernel(grid = (cdiv(R, BR)))]
pub fn layer_norm_whole_rows<E: Floating>(
    #[block([R, C] => [BR, C], |i| (i, 0), fill = 0.0)] x: In<E>,
    #[block([1, C] => [1, C], |_| (0, 0))] gamma: In<E>,
    #[block([1, C] => [1, C], |_| (0, 0))] beta: In<E>,
    #[block([R, C] => [BR, C], |i| (i, 0))] out: Out<E>,
    epsilon: f32,
    #[dim] BR: usize,
) {
    let x = x.load().cast::<E::Acc>();
    let scale = 1.0 / C as f64;
    let centred = x - x.sum(1) * scale;
    let variance = (centred * centred).sum(1) * scale;
    let y = centred * (variance + epsilon.cast::<E::Acc>()).rsqrt() * gamma.load().cast::<E::Acc>()
        + beta.load().cast::<E::Acc>();
    out.store(y.cast::<E>());
}

/// Computes RMS norm of whole rows that fit a block.
#[kernel(grid = (cdiv(R, BR)))]
pub fn rms_norm_whole_rows<E: Floating>(
    #[block([R, C] => [BR, C], |i| (i, 0), fill = 0.0)] x: In<E>,
    #[block([1, C] => [1, C], |_| (0, 0))] gamma: In<E>,
    #[block([R, C] => [BR, C], |i| (i, 0))] out: Out<E>,
    epsilon: f32,
    #[dim] BR: usize,
) {
    let x = x.load().cast::<E::Acc>();
    let mean = (x * x).sum(1) * (1.0 / C as f64);
    out.store((x * (mean + epsilon.cast::<E::Acc>()).rsqrt() * gamma.load().cast::<E::Acc>()).cast::<E>());
}

/// Computes the mean over each row of `(x - centre)^power`, in blocks of columns.
#[kernel(grid = (cdiv(R, BR), cdiv(C, BC)), semantics = (parallel, arbitrary))]
pub fn row_moment<E: Floating>(
    #[block([R, C] => [BR, BC], |i, j| (i, j), fill = 0.0)] x: In<E>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0), fill = 0.0)] centre: In<E::Acc>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] out: Out<E::Acc>,
    #[scratch([BR, 1])] sum: Scratch<E::Acc>,
    #[fixed] power: i32,
    #[dim] BR: usize,
    #[dim] BC: usize,
) {
    if program_id(1) == 0 {
        sum.fill(0.0);
    }
    // The centre is subtracted outside of the row as well: those columns are masked.
    let centred = select(x.valid(1), (x.load().cast::<E::Acc>() - centre.load()).powi(power), 0.0);
    sum.store(sum.load() + centred.sum(1));
    if program_id(1) == num_programs(1) - 1 {
        out.store(sum.load() / C.cast::<E::Acc>());
    }
}

/// Computes `(x - mean) / sqrt(variance + ε) · γ + β` from given statistics, in blocks of columns.
#[kernel(grid = (cdiv(R, BR), cdiv(C, BC)))]
pub fn normalise<E: Floating>(
    #[block([R, C] => [BR, BC], |i, j| (i, j))] x: In<E>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] mean: In<E::Acc>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] variance: In<E::Acc>,
    #[block([1, C] => [1, BC], |_, j| (0, j))] gamma: In<E>,
    #[block([1, C] => [1, BC], |_, j| (0, j))] beta: In<E>,
    #[block([R, C] => [BR, BC], |i, j| (i, j))] out: Out<E>,
    epsilon: f32,
    #[dim] BR: usize,
    #[dim] BC: usize,
) {
    let centred = x.load().cast::<E::Acc>() - mean.load();
    let y = centred * (variance.load() + epsilon.cast::<E::Acc>()).rsqrt() * gamma.load().cast::<E::Acc>()
        + beta.load().cast::<E::Acc>();
    out.store(y.cast::<E>());
}

/// Layer norm over the last axis with scale `gamma` and shift `beta`; f32, f16 or bf16, computed in f32.
///
/// # Errors
/// A scalar, parameters that are not vectors of the row's length, other element types, an epsilon that is NaN, infinite
/// or below 0; device errors.
///
/// ```
/// use pallas_kernels::norm::layer_norm;
/// use pallas_rt::Array;
/// let x = Array::from_slice(&[1.0f32, 3.0], &[1, 2])?;
/// let (gamma, beta) = (Array::from_slice(&[1.0f32, 1.0], &[2])?, Array::from_slice(&[0.0f32, 0.0], &[2])?);
/// assert_eq!(layer_norm(&x, &gamma, &beta, 0.0)?.to_vec::<f32>()?, [-1.0, 1.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn layer_norm(x: &Array, gamma: &Array, beta: &Array, epsilon: f32) -> Result<Array> {
    check_epsilon(epsilon)?;
    let n = reshape_to_rows(x)?.shape()[1];
    reshape_parameter("gamma", gamma, n)?;
    reshape_parameter("beta", beta, n)?;
    #[cfg(feature = "graph")]
    if let Some(out) = crate::composed_ops::compose_norm(x, gamma, Some(beta), epsilon) {
        return Ok(out);
    }
    let (call, [x, scale, shift]) = Differentiable::begin([x, gamma, beta])?;
    let flat = reshape_to_rows(&x)?;
    let (gamma, beta) = (reshape_parameter("gamma", &scale, n)?, reshape_parameter("beta", &shift, n)?);
    let out = floats!("layer_norm", x.dtype(), E => if has_whole_row_blocks(&flat) {
        let [br, _] = choose_row_block(&flat, 32, None);
        layer_norm_whole_rows::<E>(&flat, &gamma, &beta, epsilon, br)
    } else {
        let [br, bc] = choose_long_row_block(&flat);
        let zero = x.client().zeros(&[flat.shape()[0], 1], DType::F32)?;
        let mean = row_moment::<E>(&flat, &zero, 1, br, bc)?;
        let variance = row_moment::<E>(&flat, &mean, 2, br, bc)?;
        normalise::<E>(&flat, &mean, &variance, &gamma, &beta, epsilon, br, bc)
    })?;
    let [out] = with_gradient!(call, [out.reshape(x.shape())], &[&x, &scale], |[x, scale], [dy]| {
        let (dx, dgamma, dbeta) = layer_norm_backward(x, scale, &dy, epsilon)?;
        [dx, dgamma.reshape(scale.shape()), dbeta.reshape(shift.shape())]
    });
    Ok(out)
}

/// RMS norm over the last axis with scale `gamma`; f32, f16 or bf16, computed in f32.
///
/// # Errors
/// As [`layer_norm`].
///
/// ```
/// use pallas_kernels::norm::rms_norm;
/// use pallas_rt::Array;
/// let (x, gamma) = (Array::from_slice(&[2.0f32, -2.0], &[1, 2])?, Array::from_slice(&[1.0f32, 3.0], &[2])?);
/// assert_eq!(rms_norm(&x, &gamma, 0.0)?.to_vec::<f32>()?, [1.0, -3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn rms_norm(x: &Array, gamma: &Array, epsilon: f32) -> Result<Array> {
    check_epsilon(epsilon)?;
    let n = reshape_to_rows(x)?.shape()[1];
    reshape_parameter("gamma", gamma, n)?;
    #[cfg(feature = "graph")]
    if let Some(out) = crate::composed_ops::compose_norm(x, gamma, None, epsilon) {
        return Ok(out);
    }
    let (call, [x, scale]) = Differentiable::begin([x, gamma])?;
    let (flat, gamma) = (reshape_to_rows(&x)?, reshape_parameter("gamma", &scale, n)?);
    let out = floats!("rms_norm", x.dtype(), E => if has_whole_row_blocks(&flat) {
        let [br, _] = choose_row_block(&flat, 32, None);
        rms_norm_whole_rows::<E>(&flat, &gamma, epsilon, br)
    } else {
        let [br, bc] = choose_long_row_block(&flat);
        let zero = x.client().zeros(&[flat.shape()[0], 1], DType::F32)?;
        let beta = x.client().zeros(&[1, n], x.dtype())?;
        let square = row_moment::<E>(&flat, &zero, 2, br, bc)?;
        normalise::<E>(&flat, &zero, &square, &gamma, &beta, epsilon, br, bc)
    })?;
    let [out] = with_gradient!(call, [out.reshape(x.shape())], &[&x, &scale], |[x, scale], [dy]| {
        let (dx, dgamma) = rms_norm_backward(x, scale, &dy, epsilon)?;
        [dx, dgamma.reshape(scale.shape())]
    });
    Ok(out)
}

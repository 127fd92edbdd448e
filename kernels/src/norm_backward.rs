//! Gradients of layer norm and RMS norm over the last axis.
//!
//! ```text
//! x̂ = (x - μ)·r   r = 1 / sqrt(σ² + ε)   g = dy·γ          RMS norm: μ = 0, σ² = mean x²
//! dx = r·(g - mean g - x̂·mean(g·x̂))                        RMS norm: without mean g
//! dγ = Σ_rows dy·x̂   dβ = Σ_rows dy
//! ```
//! (Ba et al. 2016; Zhang & Sennrich 2019.) Sums are f32. Short rows are one block; long ones are swept: mean and
//! variance by [`row_moment`], a sweep for the two means of g, one that writes. Gradients of the parameters take blocks
//! of rows in turn, so that they are the same every time; on a CPU short rows are read once for all gradients, in as
//! many parts as keep it busy.
use crate::block_sizes::mesh_block_size;
use crate::dtype_dispatch::floats;
use crate::element::{Floating, Wide};
use crate::norm::row_moment;
use crate::online_softmax::min_busy_programs;
use crate::row_blocks::{
    cast_sums, check_epsilon, choose_long_row_block, choose_row_block, has_whole_row_blocks, is_divided_among_cores,
    reshape_parameter, reshape_to_rows,
};
use pallas_rt::prelude::*;

/// Gradient by whole rows of x, with the rows' mean, variance and normalised values (`hat`).
#[derive(Clone, Copy)]
struct RowGradients<A> {
    dx: Tile<A>,
    mean: Tile<A>,
    variance: Tile<A>,
    hat: Tile<A>,
}

/// Computes the gradient by rows `x`, given `g`, the gradient by the normalised rows; `adjust_variance` may adjust the
/// rows' variances. Without `subtracts_mean` it is that of RMS norm.
fn row_gradients<A: Wide>(
    x: Tile<A>,
    g: Tile<A>,
    epsilon: Scalar<A>,
    subtracts_mean: bool,
    adjust_variance: impl Fn(Tile<A>) -> Tile<A>,
) -> RowGradients<A> {
    let (rows, scale) = (x.shape()[0], 1.0 / x.shape()[1] as f64);
    let mean = if subtracts_mean { x.sum(1) * scale } else { zeros([rows, 1]) };
    let centred = x - mean;
    let variance = adjust_variance((centred * centred).sum(1) * scale);
    let r = (variance + epsilon).rsqrt();
    let hat = centred * r;
    let along = (g * hat).sum(1) * scale;
    let level = if subtracts_mean { g.sum(1) * scale } else { zeros([rows, 1]) };
    RowGradients { dx: (g - level - hat * along) * r, mean, variance, hat }
}

/// Computes the gradient by x, and the statistics, of rows that fit a block whole; without `centre` that of RMS norm.
#[kernel(grid = (cdiv(R, BR)))]
pub fn norm_backward_whole_rows<E: Floating>(
    #[block([R, C] => [BR, C], |i| (i, 0), fill = 0.0)] x: In<E>,
    #[block([1, C] => [1, C], |_| (0, 0))] gamma: In<E>,
    #[block([R, C] => [BR, C], |i| (i, 0), fill = 0.0)] dy: In<E>,
    #[block([R, C] => [BR, C], |i| (i, 0))] dx: Out<E>,
    #[block([R, 1] => [BR, 1], |i| (i, 0))] mean: Out<E::Acc>,
    #[block([R, 1] => [BR, 1], |i| (i, 0))] variance: Out<E::Acc>,
    epsilon: f32,
    #[fixed] centre: bool,
    #[dim] BR: usize,
) {
    let g = dy.load().cast::<E::Acc>() * gamma.load().cast::<E::Acc>();
    let found = row_gradients(x.load().cast::<E::Acc>(), g, epsilon.cast::<E::Acc>(), centre, |variance| variance);
    dx.store(found.dx.cast::<E>());
    mean.store(found.mean);
    variance.store(found.variance);
}

/// Computes all gradients of rows that fit a block whole, in one pass. The rows form `P` parts of `S` blocks; gradients
/// of the parameters are sums over the rows of each part.
#[kernel(grid = (P, S), semantics = (parallel, arbitrary))]
pub fn norm_backward_parts<E: Floating>(
    #[block([R, C] => [BR, C], |p, s| (p * S + s, 0), fill = 0.0)] x: In<E>,
    #[block([1, C] => [1, C], |_, _| (0, 0))] gamma: In<E>,
    #[block([R, C] => [BR, C], |p, s| (p * S + s, 0), fill = 0.0)] dy: In<E>,
    #[block([R, C] => [BR, C], |p, s| (p * S + s, 0))] dx: Out<E>,
    #[block([P, C] => [1, C], |p, _| (p, 0))] dgammas: Out<E::Acc>,
    #[block([P, C] => [1, C], |p, _| (p, 0))] dbetas: Out<E::Acc>,
    #[scratch([1, C])] gammas: Scratch<E::Acc>,
    #[scratch([1, C])] betas: Scratch<E::Acc>,
    epsilon: f32,
    #[fixed] centre: bool,
    #[dim] P: usize,
    #[dim] S: usize,
    #[dim] BR: usize,
) {
    if program_id(1) == 0 {
        gammas.fill(0.0);
        betas.fill(0.0);
    }
    // Parts may have more steps than there are blocks.
    if program_id(0) * S + program_id(1) < cdiv(R, BR) {
        let dy = dy.load().cast::<E::Acc>();
        let g = dy * gamma.load().cast::<E::Acc>();
        // After the last row the variance is 0, which would give NaN if ε is 0.
        let live = x.valid(0).reshape([BR, 1]);
        let variance = |variance: Tile<E::Acc>| select(live, variance, 1.0);
        let found = row_gradients(x.load().cast::<E::Acc>(), g, epsilon.cast::<E::Acc>(), centre, variance);
        // Computed before anything is stored, so that a CPU computes everything of a row in one loop.
        let (scales, shifts) = ((dy * found.hat).sum(0), dy.sum(0));
        dx.store(found.dx.cast::<E>());
        gammas.store(gammas.load() + scales);
        if centre {
            betas.store(betas.load() + shifts);
        }
    }
    if program_id(1) == num_programs(1) - 1 {
        dgammas.store(gammas.load());
        dbetas.store(betas.load());
    }
}

/// Sums the parameters' gradients over parts, of which there are at most `NP`.
#[kernel(grid = (cdiv(C, BC)))]
pub fn norm_backward_sums<E: Floating>(
    #[block([P, C] => [NP, BC], |j| (0, j), fill = 0.0)] dgammas: In<E::Acc>,
    #[block([P, C] => [NP, BC], |j| (0, j), fill = 0.0)] dbetas: In<E::Acc>,
    #[block([1, C] => [1, BC], |j| (0, j))] dgamma: Out<E>,
    #[block([1, C] => [1, BC], |j| (0, j))] dbeta: Out<E>,
    #[dim] NP: usize,
    #[dim] BC: usize,
) {
    dgamma.store(dgammas.load().sum(0).cast::<E>());
    dbeta.store(dbetas.load().sum(0).cast::<E>());
}

/// Computes two means over each row, in blocks of columns: `level`, the mean of g = dy·γ, and `along`, that of g·x̂,
/// where x̂ is the normalised x.
#[kernel(grid = (cdiv(R, BR), cdiv(C, BC)), semantics = (parallel, arbitrary))]
pub fn norm_backward_means<E: Floating>(
    #[block([R, C] => [BR, BC], |i, j| (i, j), fill = 0.0)] x: In<E>,
    #[block([1, C] => [1, BC], |_, j| (0, j), fill = 0.0)] gamma: In<E>,
    #[block([R, C] => [BR, BC], |i, j| (i, j), fill = 0.0)] dy: In<E>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0), fill = 0.0)] mean: In<E::Acc>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0), fill = 1.0)] variance: In<E::Acc>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] level: Out<E::Acc>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] along: Out<E::Acc>,
    #[scratch([BR, 1])] sum: Scratch<E::Acc>,
    #[scratch([BR, 1])] product: Scratch<E::Acc>,
    epsilon: f32,
    #[dim] BR: usize,
    #[dim] BC: usize,
) {
    if program_id(1) == 0 {
        sum.fill(0.0);
        product.fill(0.0);
    }
    let hat = (x.load().cast::<E::Acc>() - mean.load()) * (variance.load() + epsilon.cast::<E::Acc>()).rsqrt();
    let g = dy.load().cast::<E::Acc>() * gamma.load().cast::<E::Acc>();
    sum.store(sum.load() + g.sum(1));
    product.store(product.load() + (g * hat).sum(1));
    if program_id(1) == num_programs(1) - 1 {
        level.store(sum.load() / C.cast::<E::Acc>());
        along.store(product.load() / C.cast::<E::Acc>());
    }
}

/// Computes the gradient by x from the rows' statistics, in blocks of columns.
#[kernel(grid = (cdiv(R, BR), cdiv(C, BC)))]
pub fn norm_backward_apply<E: Floating>(
    #[block([R, C] => [BR, BC], |i, j| (i, j))] x: In<E>,
    #[block([1, C] => [1, BC], |_, j| (0, j))] gamma: In<E>,
    #[block([R, C] => [BR, BC], |i, j| (i, j))] dy: In<E>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] mean: In<E::Acc>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] variance: In<E::Acc>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] level: In<E::Acc>,
    #[block([R, 1] => [BR, 1], |i, _| (i, 0))] along: In<E::Acc>,
    #[block([R, C] => [BR, BC], |i, j| (i, j))] dx: Out<E>,
    epsilon: f32,
    #[dim] BR: usize,
    #[dim] BC: usize,
) {
    let r = (variance.load() + epsilon.cast::<E::Acc>()).rsqrt();
    let hat = (x.load().cast::<E::Acc>() - mean.load()) * r;
    let g = dy.load().cast::<E::Acc>() * gamma.load().cast::<E::Acc>();
    dx.store(((g - level.load() - hat * along.load()) * r).cast::<E>());
}

/// Computes gradients of scale and shift: sums over blocks of rows in the type of sums, so that devices which divide
/// the rows add up their parts before they are rounded.
#[kernel(grid = (cdiv(C, BC), cdiv(R, BR)), semantics = (parallel, arbitrary))]
pub fn norm_backward_parameters<E: Floating>(
    #[block([R, C] => [BR, BC], |j, i| (i, j), fill = 0.0)] x: In<E>,
    #[block([R, C] => [BR, BC], |j, i| (i, j), fill = 0.0)] dy: In<E>,
    #[block([R, 1] => [BR, 1], |_, i| (i, 0), fill = 0.0)] mean: In<E::Acc>,
    #[block([R, 1] => [BR, 1], |_, i| (i, 0), fill = 1.0)] variance: In<E::Acc>,
    #[block([1, C] => [1, BC], |j, _| (0, j))] dgamma: Out<E::Acc>,
    #[block([1, C] => [1, BC], |j, _| (0, j))] dbeta: Out<E::Acc>,
    #[scratch([1, BC])] gammas: Scratch<E::Acc>,
    #[scratch([1, BC])] betas: Scratch<E::Acc>,
    epsilon: f32,
    #[dim] BR: usize,
    #[dim] BC: usize,
) {
    if program_id(1) == 0 {
        gammas.fill(0.0);
        betas.fill(0.0);
    }
    let hat = (x.load().cast::<E::Acc>() - mean.load()) * (variance.load() + epsilon.cast::<E::Acc>()).rsqrt();
    let dy = dy.load().cast::<E::Acc>();
    gammas.store(gammas.load() + (dy * hat).sum(0));
    betas.store(betas.load() + dy.sum(0));
    if program_id(1) == num_programs(1) - 1 {
        dgamma.store(gammas.load());
        dbeta.store(betas.load());
    }
}

/// Number of rows of a block in the one-pass kernel: few enough to stay in cache.
const ONE_PASS_BLOCK_ROWS: usize = 8;

/// Computes gradients by x, gamma and beta, of layer norm with `subtracts_mean`, of RMS norm without.
#[track_caller]
#[inline]
fn norm_gradients(
    x: &Array,
    gamma: &Array,
    dy: &Array,
    epsilon: f32,
    subtracts_mean: bool,
) -> Result<(Array, Array, Array)> {
    check_epsilon(epsilon)?;
    let (flat, dy) = (reshape_to_rows(x)?, reshape_to_rows(dy)?);
    let n = flat.shape()[1];
    let gamma = reshape_parameter("gamma", gamma, n)?;
    floats!("norm_backward", x.dtype(), E => {
        // Where the number of cores is known, there are enough parts to occupy all of them. Devices of a mesh have
        // parts of the rows already.
        if has_whole_row_blocks(&flat) && is_divided_among_cores(x) {
            let [br, _] = choose_row_block(&flat, ONE_PASS_BLOCK_ROWS, None);
            let parts = min_busy_programs(x.client()).min(flat.shape()[0].div_ceil(br)).max(1);
            let steps = flat.shape()[0].div_ceil(parts * br);
            let (dx, dgammas, dbetas) =
                norm_backward_parts::<E>(&flat, &gamma, &dy, epsilon, subtracts_mean, parts, steps, br)?;
            return reshape_gradients(x, dx, norm_backward_sums::<E>(&dgammas, &dbetas, parts, 256)?);
        }
        let (dx, mean, variance) = if has_whole_row_blocks(&flat) {
            let [br, _] = choose_row_block(&flat, 8, None);
            norm_backward_whole_rows::<E>(&flat, &gamma, &dy, epsilon, subtracts_mean, br)?
        } else {
            let [br, bc] = choose_long_row_block(&flat);
            let zero = x.client().zeros(&[flat.shape()[0], 1], DType::F32)?;
            let mean = if subtracts_mean { row_moment::<E>(&flat, &zero, 1, br, bc)? } else { zero.clone() };
            let variance = row_moment::<E>(&flat, &mean, 2, br, bc)?;
            let (level, along) =
                norm_backward_means::<E>(&flat, &gamma, &dy, &mean, &variance, epsilon, br, bc)?;
            let level = if subtracts_mean { level } else { zero };
            let dx =
                norm_backward_apply::<E>(&flat, &gamma, &dy, &mean, &variance, &level, &along, epsilon, br, bc)?;
            (dx, mean, variance)
        };
        let br = mesh_block_size(flat.shape()[0], 32);
        let (dgamma, dbeta) = norm_backward_parameters::<E>(&flat, &dy, &mean, &variance, epsilon, br, 256)?;
        reshape_gradients(x, dx, (cast_sums(x.dtype(), dgamma)?, cast_sums(x.dtype(), dbeta)?))
    })
}

/// Reshapes gradients to the shapes of x, gamma and beta.
#[track_caller]
#[inline]
fn reshape_gradients(x: &Array, dx: Array, (dgamma, dbeta): (Array, Array)) -> Result<(Array, Array, Array)> {
    let n = dx.shape()[1];
    Ok((dx.reshape(x.shape()), dgamma.reshape(&[n]), dbeta.reshape(&[n])))
}

/// Gradients of layer norm by x, gamma and beta; f32, f16 or bf16, computed in f32.
///
/// # Errors
/// Scalars, shapes or element types that do not fit, an epsilon that is NaN, infinite or below 0; device errors.
///
/// ```
/// use pallas_kernels::norm_backward::layer_norm_backward;
/// use pallas_rt::Array;
/// let x = Array::from_slice(&[1.0f32, 3.0], &[1, 2])?;
/// let (gamma, dy) = (Array::from_slice(&[1.0f32, 1.0], &[2])?, Array::from_slice(&[5.0f32, 2.0], &[1, 2])?);
/// let (dx, dgamma, dbeta) = layer_norm_backward(&x, &gamma, &dy, 0.0)?;
/// assert_eq!(dx.to_vec::<f32>()?, [0.0, 0.0], "two elements are always normalised to -1 and 1");
/// assert_eq!((dgamma.to_vec::<f32>()?, dbeta.to_vec::<f32>()?), (vec![-5.0, 2.0], vec![5.0, 2.0]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn layer_norm_backward(x: &Array, gamma: &Array, dy: &Array, epsilon: f32) -> Result<(Array, Array, Array)> {
    norm_gradients(x, gamma, dy, epsilon, true)
}

/// Gradients of RMS norm by x and gamma; f32, f16 or bf16, computed in f32.
///
/// # Errors
/// As [`layer_norm_backward`].
///
/// ```
/// use pallas_kernels::norm_backward::rms_norm_backward;
/// use pallas_rt::Array;
/// let (x, gamma) = (Array::from_slice(&[2.0f32, 2.0], &[1, 2])?, Array::from_slice(&[1.0f32, 1.0], &[2])?);
/// let (dx, dgamma) = rms_norm_backward(&x, &gamma, &Array::from_slice(&[1.0f32, -1.0], &[1, 2])?, 0.0)?;
/// assert_eq!((dx.to_vec::<f32>()?, dgamma.to_vec::<f32>()?), (vec![0.5, -0.5], vec![1.0, -1.0]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn rms_norm_backward(x: &Array, gamma: &Array, dy: &Array, epsilon: f32) -> Result<(Array, Array)> {
    norm_gradients(x, gamma, dy, epsilon, false).map(|(dx, dgamma, _)| (dx, dgamma))
}

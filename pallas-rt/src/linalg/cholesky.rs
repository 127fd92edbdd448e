//! Factors of positive definite matrices.
use super::triangular::{SOLVE_LOWER, forward_substitute, solve_batched, solve_upper};
use super::{
    BLOCK_COLUMNS, CompiledUnary, check_square_matrix, column_indices, first_half_columns, flatten_batch, or_poisoned,
    row_indices, submatrix, unflatten_batch,
};
use crate::array::Array;
use crate::{custom_jvp, fori_loop, jit, keep, ops};
use pallas_device::error::Result;
use pallas_ir::Loc;
use std::sync::LazyLock;

/// The lower triangular matrix `l` with `l lᵀ = a`, for symmetric positive definite matrices; `jnp.linalg.cholesky`.
///
/// The mean of `a` and `aᵀ` is factored, as JAX does. Matrices that are not positive definite give NaN.
///
/// f32 or f64; other types and shapes give an array that holds an error.
///
/// ```
/// use pallas_rt::{Array, linalg};
/// let a = Array::from_slice(&[4.0f32, 2.0, 2.0, 10.0], &[2, 2])?;
/// assert_eq!(linalg::cholesky(&a).to_vec::<f32>()?, [2.0, 0.0, 1.0, 3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn cholesky(a: &Array) -> Array {
    let at = Loc::caller();
    let made = || {
        check_square_matrix("cholesky", a, at)?;
        let (flat, batch) = flatten_batch(a)?;
        Ok(unflatten_batch(&CHOLESKY_FACTOR(&((&flat + flat.t()) * 0.5))?, &batch))
    };
    or_poisoned(made(), a)
}

/// The solution `x` of `a x = b` by the factor that [`cholesky()`] gives, which is passed instead of the matrix;
/// `jax.scipy.linalg.cho_solve` of a lower factor. Shapes are those of [`solve`](super::solve()).
#[track_caller]
#[must_use]
pub fn cho_solve(factor: &Array, b: &Array) -> Array {
    let made = solve_batched("cho_solve", factor, b, Loc::caller(), |l, b| {
        let l = l.tril(0);
        solve_upper(&l.t(), &SOLVE_LOWER(&l, b)?)
    });
    or_poisoned(made, b)
}

/// Computes the lower factors of symmetric matrices, `[batch, n, n]`.
///
/// Derivative: I. Murray, "Differentiation of the Cholesky decomposition" (2016), equation 8.
static CHOLESKY_FACTOR: LazyLock<CompiledUnary> = LazyLock::new(|| {
    jit(custom_jvp(
        |a: &Array| {
            let l = factor_by_blocks(a)?;
            let is_definite = l.diagonal(0, 1, 2).gt(0.0).all(keep(1)).expand_dims(2);
            Ok::<_, crate::Error>(ops::select(&is_definite, &l, f64::NAN).tril(0))
        },
        |(a,): &(Array,), (da,): &(Array,)| {
            let l = CHOLESKY_FACTOR(a)?;
            let half = SOLVE_LOWER(&l, da)?;
            let inner = SOLVE_LOWER(&l, &half.t())?.t();
            let n = l.shape()[1];
            let weights = ops::tri(n, n, 0, l.dtype()) - ops::identity(n, l.dtype()) * 0.5;
            let dl = l.matmul(&(inner * weights));
            Ok((l, dl))
        },
    ))
    .into_fn()
});

/// Factors matrices by blocks: the left half of the columns, then the right half of what remains.
fn factor_by_blocks(a: &Array) -> Result<Array> {
    let n = a.shape()[1];
    if n <= BLOCK_COLUMNS {
        return factor_by_columns(a);
    }
    let h = first_half_columns(n);
    let first = factor_by_blocks(&submatrix(a, 0..h, 0..h))?;
    let below = forward_substitute(&first, &submatrix(a, h..n, 0..h).t(), false)?.t();
    let second = factor_by_blocks(&(submatrix(a, h..n, h..n) - below.matmul(&below.t())))?;
    let above = ops::zeros(&[a.shape()[0], h, n - h], a.dtype());
    let left = ops::concatenate(&[first, below], 1);
    Ok(ops::concatenate(&[left, ops::concatenate(&[above, second], 1)], 2))
}

/// Factors small matrices a column at a time: each column is divided by the root of its diagonal element, and its outer
/// product is subtracted from the columns right of it.
fn factor_by_columns(a: &Array) -> Result<Array> {
    let n = a.shape()[1];
    if a.shape().contains(&0) {
        return Ok(a.clone());
    }
    let all = fori_loop(0..n as i64, a, |j: &Array, a: &Array| {
        let column = a.dynamic_slice_in_dim(j, 1, 2);
        let (r, c) = (row_indices(n), column_indices(n));
        let scaled = &column / column.dynamic_slice_in_dim(j, 1, 1).sqrt();
        let own = ops::select(&r.ge(j), &scaled, 0.0);
        let rest = ops::select(&c.gt(j), a - &own * own.t(), a);
        ops::select(&c.eq(j), &own, &rest)
    })?;
    Ok(all.tril(0))
}

//! Elimination with partial pivoting: solutions, inverses, determinants.
use super::triangular::{flip_both_axes, forward_substitute, solve_batched};
use super::{
    BLOCK_COLUMNS, CompiledBinary, CompiledUnary, check_square_matrix, column_indices, first_half_columns,
    flatten_batch, identity_like, or_poisoned, pair_or_poisoned, row_indices, select_rows, submatrix, unflatten_batch,
};
use crate::array::Array;
use crate::{custom_jvp, fori_loop, jit, keep, ops};
use pallas_device::error::{Error, Result};
use pallas_ir::{DType, Loc};
use std::sync::LazyLock;

/// The solution `x` of `a x = b`; `jnp.linalg.solve`.
///
/// `b` is a vector, if it has one axis, or a matrix of right sides as columns. Axes before the matrices broadcast. A
/// singular matrix gives infinities or NaN.
///
/// Both are f32 or f64; other types and shapes give an array that holds an error.
///
/// ```
/// use pallas_rt::{Array, linalg};
/// let a = Array::from_slice(&[0.0f32, 2.0, 4.0, 1.0], &[2, 2])?;
/// let b = Array::from_slice(&[2.0f32, 5.0], &[2])?;
/// assert_eq!(linalg::solve(&a, &b).to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn solve(a: &Array, b: &Array) -> Array {
    or_poisoned(solve_batched("solve", a, b, Loc::caller(), |a, b| SOLVE(a, b)), b)
}

/// The inverse of square matrices; `jnp.linalg.inv`. To solve equations, [`solve()`] is cheaper and more accurate.
///
/// f32 or f64; other types and shapes give an array that holds an error. A singular matrix gives infinities or NaN.
#[track_caller]
#[must_use]
pub fn inv(a: &Array) -> Array {
    let at = Loc::caller();
    let made = || {
        let n = check_square_matrix("inv", a, at)?;
        let (flat, batch) = flatten_batch(a)?;
        Ok(unflatten_batch(&SOLVE(&flat, &identity_like(a, n).broadcast_to(flat.shape()))?, &batch))
    };
    or_poisoned(made(), a)
}

/// The sign and the logarithm of the magnitude of the determinant of square matrices; `jnp.linalg.slogdet`. A singular
/// matrix has the sign 0 and the logarithm `-inf`.
///
/// f32 or f64; other types and shapes give arrays that hold an error.
///
/// ```
/// use pallas_rt::{Array, linalg};
/// let a = Array::from_slice(&[0.0f32, 1.0, 1.0, 0.0], &[2, 2])?;
/// let (sign, log) = linalg::slogdet(&a);
/// assert_eq!((sign.to_vec::<f32>()?, log.to_vec::<f32>()?), (vec![-1.0], vec![0.0]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn slogdet(a: &Array) -> (Array, Array) {
    let at = Loc::caller();
    let made = || {
        check_square_matrix("slogdet", a, at)?;
        let (flat, batch) = flatten_batch(a)?;
        let (sign, log) = SLOGDET(&flat)?;
        Ok((sign.reshape(&batch), log.reshape(&batch)))
    };
    pair_or_poisoned(made(), a)
}

/// The determinant of square matrices; `jnp.linalg.det`.
///
/// f32 or f64; other types and shapes give an array that holds an error. The gradient at a singular matrix is NaN.
#[track_caller]
#[must_use]
pub fn det(a: &Array) -> Array {
    let at = Loc::caller();
    let made = || {
        check_square_matrix("det", a, at)?;
        let (flat, batch) = flatten_batch(a)?;
        Ok(DET(&flat)?.reshape(&batch))
    };
    or_poisoned(made(), a)
}

/// Solves `a x = b` for `[batch, n, n]` and `[batch, n, columns]`. A tangent is a solution with the same matrix.
static SOLVE: LazyLock<CompiledBinary> = LazyLock::new(|| {
    jit(custom_jvp(
        |a: &Array, b: &Array| {
            let (packed, order) = factor_lu(a)?;
            let y = forward_substitute(&packed, &select_rows(b, &order), true)?;
            let x = forward_substitute(&flip_both_axes(&packed.triu(0)), &y.flip(1), false)?;
            Ok::<_, Error>(x.flip(1))
        },
        |(a, b): &(Array, Array), (da, db): &(Array, Array)| {
            let x = SOLVE(a, b)?;
            let dx = SOLVE(a, &(db - da.matmul(&x)))?;
            Ok((x, dx))
        },
    ))
    .into_fn()
});

/// Computes signs and logarithms of the determinants of `[batch, n, n]`.
static SLOGDET: LazyLock<CompiledUnary<(Array, Array)>> = LazyLock::new(|| {
    jit(custom_jvp(
        |a: &Array| {
            let (diagonal, parity) = pivots_and_parity(a)?;
            let sign = diagonal.sign().prod(-1) * parity;
            Ok::<_, Error>((sign, diagonal.abs().log().sum(-1)))
        },
        |(a,): &(Array,), (da,): &(Array,)| {
            let (sign, log) = SLOGDET(a)?;
            let slope = SOLVE(a, da)?.trace(0, 1, 2);
            Ok(((sign.clone(), log), (sign.zeros_like(), slope)))
        },
    ))
    .into_fn()
});

/// Computes the determinants of `[batch, n, n]`.
static DET: LazyLock<CompiledUnary> = LazyLock::new(|| {
    jit(custom_jvp(
        |a: &Array| {
            let (diagonal, parity) = pivots_and_parity(a)?;
            Ok::<_, Error>(diagonal.prod(-1) * parity)
        },
        |(a,): &(Array,), (da,): &(Array,)| {
            let det = DET(a)?;
            let slope = &det * SOLVE(a, da)?.trace(0, 1, 2);
            Ok((det, slope))
        },
    ))
    .into_fn()
});

/// Returns the pivots of each matrix, and 1 or -1 for an even or odd permutation of its rows.
fn pivots_and_parity(a: &Array) -> Result<(Array, Array)> {
    let n = a.shape()[1];
    let (packed, order) = factor_lu(a)?;
    // A permutation is odd if an odd number of pairs is out of order.
    let (row, column) = (order.expand_dims(2), order.expand_dims(1));
    let is_out_of_order = row.lt(&column).logical_and(row_indices(n).gt(column_indices(n)));
    let pairs = is_out_of_order.cast(DType::I32).sum([1, 2]);
    let parity = (pairs & 1) * -2 + 1;
    Ok((packed.diagonal(0, 1, 2), parity.cast(a.dtype())))
}

/// Factors `[batch, m, n]` by blocks: the left half of the columns, then the right half of what remains. Returns both
/// triangular factors in one matrix, without the ones on the diagonal of the lower factor, and the order of the rows to
/// which they belong.
pub(super) fn factor_lu(a: &Array) -> Result<(Array, Array)> {
    let (m, n) = (a.shape()[1], a.shape()[2]);
    if n <= BLOCK_COLUMNS {
        return eliminate_by_columns(a);
    }
    let h = first_half_columns(n).min(m);
    let (left, order) = factor_lu(&submatrix(a, 0..m, 0..h))?;
    let right = select_rows(&submatrix(a, 0..m, h..n), &order);
    let upper = forward_substitute(&submatrix(&left, 0..h, 0..h), &submatrix(&right, 0..h, 0..n - h), true)?;
    if h == m {
        return Ok((ops::concatenate(&[left, upper], 2), order));
    }
    let rest = submatrix(&right, h..m, 0..n - h) - submatrix(&left, h..m, 0..h).matmul(&upper);
    let (rest, later) = factor_lu(&rest)?;
    let below = select_rows(&submatrix(&left, h..m, 0..h), &later);
    let left = ops::concatenate(&[submatrix(&left, 0..h, 0..h), below], 1);
    let tail = order.index((.., h as i64..)).take_along_axis(&later, 1);
    let order = ops::concatenate(&[order.index((.., ..h as i64)), tail], 1);
    Ok((ops::concatenate(&[left, ops::concatenate(&[upper, rest], 1)], 2), order))
}

/// Factors small matrices a column at a time: the largest element at or below the diagonal moves to it, and multiples
/// of its row are subtracted from the rows below.
fn eliminate_by_columns(a: &Array) -> Result<(Array, Array)> {
    let (batch, m, n) = (a.shape()[0], a.shape()[1], a.shape()[2]);
    let order = ops::arange(0, m as i32, 1, DType::I32).broadcast_to(&[batch, m]);
    if a.shape().contains(&0) {
        return Ok((a.clone(), order));
    }
    fori_loop(0..m.min(n) as i64, &(a.clone(), order), |j: &Array, (a, order): &(Array, Array)| {
        let (r, c) = (row_indices(m), column_indices(n));
        let size = ops::select(&r.ge(j), a.dynamic_slice_in_dim(j, 1, 2).abs(), -1.0);
        let p = size.argmax(1).expand_dims(1);
        let (is_here, is_there) = (r.eq(j), r.eq(&p));
        let there = ops::select(&is_there, a, 0.0).sum(keep(1));
        let a = ops::select(&is_there, a.dynamic_slice_in_dim(j, 1, 1), a);
        let a = ops::select(&is_here, &there, &a);
        let (r1, p) = (r.t(), p.index((.., 0)));
        let first = order.dynamic_slice_in_dim(j, 1, 1);
        let second = ops::select(&r1.eq(&p), order, 0).sum(keep(1));
        let order = ops::select(&r1.eq(&p), &first, order);
        let order = ops::select(&r1.eq(j), &second, &order);
        let pivot = there.dynamic_slice_in_dim(j, 1, 2);
        let quotient = a.dynamic_slice_in_dim(j, 1, 2) / ops::select(&pivot.eq(0.0), 1.0, &pivot);
        let is_below = r.gt(j);
        let rest = ops::select(&is_below.logical_and(c.gt(j)), &a - &quotient * &there, &a);
        (ops::select(&is_below.logical_and(c.eq(j)), &quotient, &rest), order)
    })
}

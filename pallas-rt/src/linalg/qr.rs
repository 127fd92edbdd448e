//! Orthogonal factors.
use super::triangular::SOLVE_LOWER;
use super::{
    CompiledUnary, check_matrix, column_indices, flatten_batch, identity_like, pair_or_poisoned, row_indices,
    unflatten_batch,
};
use crate::array::Array;
use crate::{Scan, custom_jvp, fori_loop, jit, keep, ops};
use pallas_device::error::Result;
use pallas_ir::{DType, Loc};
use std::sync::LazyLock;

/// The matrices `q`, whose columns are orthonormal, and `r`, an upper triangular one, with `q r = a`; `jnp.linalg.qr`.
/// Of a matrix of m rows and n columns, `q` has `min(m, n)` columns and `r` as many rows.
///
/// f32 or f64; other types and shapes give arrays that hold an error. Signs are those of LAPACK: by Householder
/// reflections (Golub and Van Loan, "Matrix Computations", 5.1).
///
/// ```
/// use pallas_rt::{Array, linalg};
/// let a = Array::from_slice(&[3.0f32, 1.0, 4.0, 2.0], &[2, 2])?;
/// let (q, r) = linalg::qr(&a);
/// let error = (q.matmul(&r) - &a).abs().max(..);
/// assert!(error.to_vec::<f32>()?[0] < 1e-6);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn qr(a: &Array) -> (Array, Array) {
    factor_batch("qr", a, Loc::caller(), |m, n| if m < n { &*COMPLETE_QR } else { &*REDUCED_QR })
}

/// The factors of [`qr()`] with all columns of `q` and all rows of `r`, so that `q` is square; `jnp.linalg.qr` with the
/// mode "complete".
#[track_caller]
#[must_use]
pub fn qr_complete(a: &Array) -> (Array, Array) {
    factor_batch("qr_complete", a, Loc::caller(), |m, n| if m == n { &*REDUCED_QR } else { &*COMPLETE_QR })
}

/// Factors all matrices of `a`, by the function that `f` returns for their numbers of rows and columns.
fn factor_batch(
    name: &'static str,
    a: &Array,
    at: Loc,
    f: impl Fn(usize, usize) -> &'static CompiledUnary<(Array, Array)>,
) -> (Array, Array) {
    let made = || {
        let [m, n] = check_matrix(name, a, at)?;
        let (flat, batch) = flatten_batch(a)?;
        let (q, r) = f(m, n)(&flat)?;
        Ok((unflatten_batch(&q, &batch), unflatten_batch(&r, &batch)))
    };
    pair_or_poisoned(made(), a)
}

/// Computes the reduced QR factors, `[batch, m, n]` and `[batch, n, n]`, of matrices with m ≥ n.
static REDUCED_QR: LazyLock<CompiledUnary<(Array, Array)>> = LazyLock::new(|| {
    jit(custom_jvp(
        |a: &Array| householder_qr(a, a.shape()[2]),
        |(a,): &(Array,), (da,): &(Array,)| qr_tangent(REDUCED_QR(a)?, da),
    ))
    .into_fn()
});
/// Factors matrices that have fewer rows than columns, or with all columns of `q`: derivatives go through the
/// reflections.
static COMPLETE_QR: LazyLock<CompiledUnary<(Array, Array)>> =
    LazyLock::new(|| jit(|a: &Array| householder_qr(a, a.shape()[1])).into_fn());

/// Returns factors and their tangents, for the matrices' tangent `da`; S. Walter and L. Lehmann, "Algorithmic
/// differentiation of linear algebra functions" (2010).
#[allow(clippy::type_complexity, reason = "two pairs, as a rule returns them")]
fn qr_tangent((q, r): (Array, Array), da: &Array) -> Result<((Array, Array), (Array, Array))> {
    // da r⁻¹, by the transposed equation.
    let right = SOLVE_LOWER(&r.t(), &da.t())?.t();
    let inner = q.t().matmul(&right);
    let below = inner.tril(-1);
    let turn = &below - below.t();
    let dq = q.matmul(&(&turn - &inner)) + right;
    let dr = (inner - turn).matmul(&r).triu(0);
    Ok(((q, r), (dq, dr)))
}

/// Factors `[batch, m, n]` by Householder reflections: returns the first `width` columns of the orthogonal factor, and
/// as many rows of the triangular one.
pub(super) fn householder_qr(a: &Array, width: usize) -> Result<(Array, Array)> {
    let (batch, m, n) = (a.shape()[0], a.shape()[1], a.shape()[2]);
    let steps = m.min(n);
    let start = identity_like(a, m).index((.., ..width as i64)).broadcast_to(&[batch, m, width]);
    if a.shape().contains(&0) {
        return Ok((start, ops::zeros(&[batch, width, n], a.dtype())));
    }
    let numbers = ops::arange(0, steps as i32, 1, DType::I32);
    let (r, (vectors, scales)) = Scan::new().run(a, &numbers, |a: &Array, j: &Array| {
        let (row, column) = (row_indices(m), column_indices(n));
        let x = ops::select(&row.ge(j), a.dynamic_slice_in_dim(j, 1, 2), 0.0);
        let first = x.dynamic_slice_in_dim(j, 1, 1);
        let tail = ops::select(&row.gt(j), &x, 0.0);
        // Divided by the largest element, squares neither overflow nor vanish.
        let size = x.abs().max(keep(1));
        let unit = ops::select(&size.gt(0.0), &size, 1.0);
        let norm = &unit * (&x / &unit).square().sum(keep(1)).sqrt();
        let is_done = tail.abs().max(keep(1)).eq(0.0);
        let signed = ops::select(&first.ge(0.0), -&norm, &norm);
        let beta = ops::select(&is_done, &first, &signed);
        let below = ops::select(&is_done, 0.0, &tail / ops::select(&is_done, 1.0, &first - &beta));
        let v = ops::select(&row.eq(j), 1.0, &below);
        let scale = ops::select(&is_done, 0.0, (&beta - &first) / ops::select(&is_done, 1.0, &beta));
        let product = (&v * a).sum(keep(1));
        let next = a - &scale * &v * product;
        // Exactly zero below the diagonal.
        let made = ops::select(&row.eq(j), &beta, ops::select(&row.gt(j), 0.0, &next));
        (ops::select(&column.eq(j), &made, &next), (v, scale))
    })?;
    let q = fori_loop(0..steps as i64, &start, move |i: &Array, q: &Array| {
        let j = (steps as i32 - 1) - i;
        let v = vectors.dynamic_index_in_dim(&j, 0);
        let scale = scales.dynamic_index_in_dim(&j, 0);
        let product = (&v * q).sum(keep(1));
        q - scale * v * product
    })?;
    Ok((q, r.index((.., ..width as i64, ..)).triu(0)))
}

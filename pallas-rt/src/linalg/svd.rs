//! Singular value decompositions.
use super::jacobi::orthogonalize_columns;
use super::qr::householder_qr;
use super::{CompiledUnary, check_matrix, flatten_batch, identity_like, or_poisoned, select_columns, unflatten_batch};
use crate::array::Array;
use crate::{custom_jvp, jit, keep, ops};
use pallas_device::error::{Error, Result};
use pallas_ir::Loc;
use std::sync::LazyLock;

/// The factors of a matrix: left singular vectors as columns, singular values, right singular vectors as rows.
type SvdFactors = (Array, Array, Array);

/// The matrices `u`, whose columns are orthonormal, and `vt`, whose rows are, and the singular values `s` in descending
/// order, with `u * s` times `vt` = `a`; `jnp.linalg.svd` with `full_matrices=False`. Of a matrix of m rows and n
/// columns, there are `min(m, n)` singular values.
///
/// f32 or f64; other types and shapes give arrays that hold an error. The signs of a pair of vectors are arbitrary. The
/// derivative of the vectors is not finite where two singular values are equal.
///
/// ```
/// use pallas_rt::{Array, linalg};
/// let a = Array::from_slice(&[0.0f32, 2.0, 3.0, 0.0], &[2, 2])?;
/// let (u, s, vt) = linalg::svd(&a);
/// assert_eq!(s.to_vec::<f32>()?, [3.0, 2.0]);
/// let error = ((u * s).matmul(&vt) - &a).abs().max(..);
/// assert!(error.to_vec::<f32>()?[0] < 1e-6);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn svd(a: &Array) -> (Array, Array, Array) {
    factor_batch("svd", a, Loc::caller(), false)
}

/// The factors of [`svd()`] with square matrices `u` and `vt`; `jnp.linalg.svd` as it is called without options. In
/// reverse mode it has no derivative unless the matrix is square.
#[track_caller]
#[must_use]
pub fn svd_complete(a: &Array) -> (Array, Array, Array) {
    factor_batch("svd_complete", a, Loc::caller(), true)
}

/// The singular values of matrices in descending order; `jnp.linalg.svdvals`.
///
/// f32 or f64; other types and shapes give an array that holds an error.
#[track_caller]
#[must_use]
pub fn svdvals(a: &Array) -> Array {
    factor_batch("svdvals", a, Loc::caller(), false).1
}

/// Factors all matrices of `a`; if `complete`, with square matrices `u` and `vt`.
fn factor_batch(name: &'static str, a: &Array, at: Loc, complete: bool) -> SvdFactors {
    let made = || {
        let [m, n] = check_matrix(name, a, at)?;
        let f = if complete && m != n { &*COMPLETE_SVD } else { &*REDUCED_SVD };
        let (flat, batch) = flatten_batch(a)?;
        let (u, s, vt) = f(&flat)?;
        Ok((unflatten_batch(&u, &batch), unflatten_batch(&s, &batch), unflatten_batch(&vt, &batch)))
    };
    made().unwrap_or_else(|error: Error| {
        let again = || or_poisoned(Err(Error::Traced { message: error.to_string() }), a);
        (again(), again(), again())
    })
}

/// Computes the factors of `[batch, m, n]` as [`svd()`] returns them.
static REDUCED_SVD: LazyLock<CompiledUnary<SvdFactors>> = LazyLock::new(|| {
    jit(custom_jvp(
        |a: &Array| compute_svd(a, false),
        |(a,): &(Array,), (da,): &(Array,)| svd_tangent(REDUCED_SVD(a)?, da),
    ))
    .into_fn()
});
/// Computes the factors of matrices that are not square as [`svd_complete()`] returns them.
static COMPLETE_SVD: LazyLock<CompiledUnary<SvdFactors>> =
    LazyLock::new(|| jit(|a: &Array| compute_svd(a, true)).into_fn());

/// Computes `u`, the singular values and `vᵀ` of matrices `[batch, m, n]`; `u` and `vᵀ` are square if `complete`, else
/// they have `min(m, n)` columns and rows.
fn compute_svd(a: &Array, complete: bool) -> Result<SvdFactors> {
    let (m, n) = (a.shape()[1], a.shape()[2]);
    if m < n {
        let (v, s, ut) = compute_svd(&a.t(), complete)?;
        return Ok((ut.t(), s, v.t()));
    }
    // Columns are rotated in pairs: of a tall matrix those of its triangular factor.
    let (q, r) = if m > n { householder_qr(a, m)? } else { (identity_like(a, m), a.clone()) };
    let (product, v) = orthogonalize_columns(&r.index((.., ..n as i64, ..)))?;
    let size = column_norms(&product);
    let order = size.argsort_descending(1);
    let (product, v) = (select_columns(&product, &order), select_columns(&v, &order));
    let s = size.take_along_axis(&order, 1);
    // Columns of length 0 have no direction: an orthogonal factor of the product has one for each.
    let columns = &product / ops::select(&s.gt(0.0), &s, 1.0).expand_dims(1);
    let (u, signs) = householder_qr(&columns, n)?;
    let signs = ops::select(&signs.diagonal(0, 1, 2).lt(0.0), -1.0, s.ones_like());
    let u = u * signs.expand_dims(1);
    let u = u.pad(&[(0, 0), (0, m - n), (0, m - n)], 0.0) + identity_tail(a, n);
    let u = q.matmul(&u).index((.., .., ..if complete { m } else { n } as i64));
    Ok((u, s, v.t()))
}

/// A square matrix of the size of `a` with ones on the diagonal from position `first` on, and zeros elsewhere.
fn identity_tail(a: &Array, first: usize) -> Array {
    let m = a.shape()[1];
    let is_after = ops::arange(0, m as i32, 1, pallas_ir::DType::I32).ge(first as i32);
    identity_like(a, m) * is_after.cast(a.dtype())
}

/// Returns the lengths of columns. Elements are divided by the largest one, so that squares neither overflow nor
/// vanish.
fn column_norms(x: &Array) -> Array {
    if x.shape().contains(&0) {
        return x.sum(1);
    }
    let size = x.abs().max(keep(1));
    let unit = ops::select(&size.gt(0.0), &size, 1.0);
    (&unit * (x / &unit).square().sum(keep(1)).sqrt()).index((.., 0))
}

/// Returns factors and their tangents, for the matrices' tangent `da`; J. Townsend, "Differentiating the singular value
/// decomposition" (2016).
#[allow(clippy::type_complexity, reason = "two triples, as a rule returns them")]
fn svd_tangent((u, s, vt): SvdFactors, da: &Array) -> Result<(SvdFactors, SvdFactors)> {
    let (m, n, k) = (da.shape()[1], da.shape()[2], s.shape()[1]);
    let (ut, v) = (u.t(), vt.t());
    let inner = ut.matmul(&da.matmul(&v));
    let (row, column) = (s.expand_dims(1), s.expand_dims(2));
    let eye = identity_like(&u, k);
    let between = (&row + &column) * (&row - &column);
    let weights = 1.0 / (between + &eye) - &eye;
    let (right, left) = (&row * &inner, &column * &inner);
    let mut du = u.matmul(&(&weights * (&right + right.t())));
    let mut dv = v.matmul(&(&weights * (&left + left.t())));
    if m > n {
        let moved = da.matmul(&v);
        du = du + (&moved - u.matmul(&ut.matmul(&moved))) / &row;
    }
    if n > m {
        let moved = da.t().matmul(&u);
        dv = dv + (&moved - v.matmul(&vt.matmul(&moved))) / &row;
    }
    let ds = inner.diagonal(0, 1, 2);
    Ok(((u, s, vt), (du, ds, dv.t())))
}

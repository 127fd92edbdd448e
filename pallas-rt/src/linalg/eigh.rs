//! Eigenvalues of symmetric matrices.
use super::jacobi::orthogonalize_columns;
use super::{
    CompiledUnary, check_square_matrix, flatten_batch, identity_like, pair_or_poisoned, select_columns, unflatten_batch,
};
use crate::array::Array;
use crate::{custom_jvp, jit, keep};
use pallas_device::error::Result;
use pallas_ir::Loc;
use std::sync::LazyLock;

/// The eigenvalues of symmetric matrices in ascending order, and the orthonormal eigenvectors as columns;
/// `jnp.linalg.eigh`.
///
/// The mean of `a` and `aᵀ` is taken, as JAX does. The sign of a vector is arbitrary; the derivative of the vectors is
/// not finite where two eigenvalues are equal. f32 or f64; other types and shapes give arrays that hold an error.
///
/// ```
/// use pallas_rt::{Array, linalg};
/// let a = Array::from_slice(&[2.0f32, 1.0, 1.0, 2.0], &[2, 2])?;
/// let (values, vectors) = linalg::eigh(&a);
/// let error = (a.matmul(&vectors) - &vectors * &values).abs().max(..);
/// assert!(error.to_vec::<f32>()?[0] < 1e-6);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn eigh(a: &Array) -> (Array, Array) {
    let at = Loc::caller();
    let made = || {
        check_square_matrix("eigh", a, at)?;
        let (flat, batch) = flatten_batch(a)?;
        let (values, vectors) = EIGH(&((&flat + flat.t()) * 0.5))?;
        Ok((unflatten_batch(&values, &batch), unflatten_batch(&vectors, &batch)))
    };
    pair_or_poisoned(made(), a)
}

/// The eigenvalues of symmetric matrices in ascending order; `jnp.linalg.eigvalsh`. See [`eigh()`].
#[track_caller]
#[must_use]
pub fn eigvalsh(a: &Array) -> Array {
    eigh(a).0
}

/// Computes eigenvalues and eigenvectors of `[batch, n, n]`. Derivative: J. Magnus, "On differentiating eigenvalues and
/// eigenvectors" (1985).
static EIGH: LazyLock<CompiledUnary<(Array, Array)>> = LazyLock::new(|| {
    jit(custom_jvp(compute_eigenpairs, |(a,): &(Array,), (da,): &(Array,)| {
        let (values, vectors) = EIGH(a)?;
        let inner = vectors.t().matmul(&da.matmul(&vectors));
        let eye = identity_like(a, a.shape()[1]);
        let between = values.expand_dims(1) - values.expand_dims(2);
        let weights = 1.0 / (between + &eye) - &eye;
        let tangents = (inner.diagonal(0, 1, 2), vectors.matmul(&(weights * inner)));
        Ok(((values, vectors), tangents))
    }))
    .into_fn()
});

/// Computes eigenvalues and eigenvectors. A multiple of the identity is added that leaves no negative eigenvalue; the
/// orthogonal matrix that then makes the columns orthogonal has the eigenvectors.
fn compute_eigenpairs(a: &Array) -> Result<(Array, Array)> {
    let n = a.shape()[1];
    if a.shape().contains(&0) {
        return Ok((a.diagonal(0, 1, 2), a.clone()));
    }
    // No eigenvalue is beyond the largest sum of magnitudes in a row (Gershgorin).
    let bound = a.abs().sum(keep(2)).max(keep(1));
    let (_, vectors) = orthogonalize_columns(&(a + identity_like(a, n) * bound))?;
    let values = (&vectors * a.matmul(&vectors)).sum(1);
    let order = values.argsort(1);
    Ok((values.take_along_axis(&order, 1), select_columns(&vectors, &order)))
}

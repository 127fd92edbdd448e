//! Systems without a solution or with many: least squares by singular values.
use super::{CompiledUnary, check_matrix, flatten_batch, or_poisoned, svd, svdvals, unflatten_batch};
use crate::array::Array;
use crate::{custom_jvp, jit, keep, ops};
use pallas_device::error::{Error, Result};
use pallas_ir::{At, DType, Diag, Loc};
use std::sync::LazyLock;

/// The distance from 1 to the next larger number of an element type.
fn machine_epsilon(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) }
}

/// The pseudo-inverse of matrices (Moore and Penrose); `jnp.linalg.pinv`. Singular values below `10 max(m, n)` times
/// the distance of 1 to the next number, times the largest one, count as zeros.
///
/// f32 or f64; other types and shapes give an array that holds an error.
///
/// ```
/// use pallas_rt::{Array, linalg};
/// let a = Array::from_slice(&[1.0f32, 2.0], &[2, 1])?;
/// let error = linalg::pinv(&a) - Array::from_slice(&[0.2f32, 0.4], &[1, 2])?;
/// assert!(error.abs().max(..).to_vec::<f32>()?[0] < 1e-6);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn pinv(a: &Array) -> Array {
    let at = Loc::caller();
    let made = || {
        check_matrix("pinv", a, at)?;
        let (flat, batch) = flatten_batch(a)?;
        Ok(unflatten_batch(&PINV(&flat)?, &batch))
    };
    or_poisoned(made(), a)
}

/// Computes the pseudo-inverses of `[batch, m, n]`. Derivative: G. Golub and V. Pereyra, "The differentiation of
/// pseudo-inverses and nonlinear least squares problems whose variables separate" (1973).
static PINV: LazyLock<CompiledUnary> = LazyLock::new(|| {
    jit(custom_jvp(
        |a: &Array| {
            let (m, n) = (a.shape()[1], a.shape()[2]);
            if a.shape().contains(&0) {
                return Ok(ops::zeros(&[a.shape()[0], n, m], a.dtype()));
            }
            let (u, s, vt) = svd(a);
            let limit = s.max(keep(1)) * (10.0 * m.max(n) as f64 * machine_epsilon(a.dtype()));
            let is_kept = s.gt(&limit);
            let inverse = ops::select(&is_kept, 1.0 / ops::select(&is_kept, &s, 1.0), 0.0);
            Ok::<_, Error>((vt.t() * inverse.expand_dims(1)).matmul(&u.t()))
        },
        |(a,): &(Array,), (da,): &(Array,)| {
            let p = PINV(a)?;
            let (pt, dat) = (p.t(), da.t());
            let inner = -p.matmul(da).matmul(&p);
            let left = p.matmul(&pt).matmul(&(&dat - dat.matmul(a).matmul(&p)));
            let right = dat.matmul(&pt).matmul(&p);
            let right = &right - p.matmul(&a.matmul(&right));
            Ok((p, inner + left + right))
        },
    ))
    .into_fn()
});

/// The solution of `a x = b` with the least sum of squared errors; if there are several, the shortest one;
/// `jnp.linalg.lstsq`, its first result. `a` is a matrix, `b` a vector or a matrix of right sides as columns.
///
/// f32 or f64; other types and shapes give an array that holds an error.
#[track_caller]
#[must_use]
pub fn lstsq(a: &Array, b: &Array) -> Array {
    let at = Loc::caller();
    let made = || {
        let [rows, _] = check_matrix("lstsq", a, at)?;
        b.check()?;
        if a.shape().len() != 2 || !(1..=2).contains(&b.shape().len()) || b.shape()[0] != rows || a.dtype() != b.dtype()
        {
            let message = format!("`lstsq` of {}{:?} and {}{:?}", a.dtype(), a.shape(), b.dtype(), b.shape());
            let help = "a matrix, and one or two axes of as many rows, of one element type";
            return Err(Error::operation(at, Diag::new("linalg", At::Operand(1), message, help)));
        }
        Ok(if b.shape().len() == 1 { pinv(a).matvec(b) } else { pinv(a).matmul(b) })
    };
    or_poisoned(made(), b)
}

/// The number of singular values of matrices that are not negligible, i32; `jnp.linalg.matrix_rank`. Values below
/// `max(m, n)` times the distance of 1 to the next number, times the largest value, are negligible.
///
/// f32 or f64; other types and shapes give an array that holds an error.
#[track_caller]
#[must_use]
pub fn matrix_rank(a: &Array) -> Array {
    let at = Loc::caller();
    let made = || -> Result<Array> {
        let [m, n] = check_matrix("matrix_rank", a, at)?;
        let s = svdvals(a);
        if m.min(n) == 0 {
            return Ok(s.cast(DType::I32).sum(-1));
        }
        let limit = s.max(keep(-1)) * (m.max(n) as f64 * machine_epsilon(a.dtype()));
        Ok(s.gt(&limit).cast(DType::I32).sum(-1))
    };
    or_poisoned(made(), a)
}

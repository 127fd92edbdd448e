//! Linear algebra: `jax.numpy.linalg` and the solvers of `jax.scipy.linalg`.
//!
//! Matrices are the last two axes of f32 or f64 arrays; all axes before them are a batch. A function is a program of
//! products of blocks and loops over the columns of a block, so that it runs, differentiates, batches and exports like
//! any other function of arrays. Derivatives are stated ([`custom_jvp`](crate::custom_jvp)) and equal those of JAX: of
//! a solution they solve with the same matrix instead of differentiating the elimination.
//!
//! A mistake in the shapes or element types is an array that holds the error, as in [`ops`]. A matrix that
//! has no such factors (one that is not positive definite, for [`cholesky()`]) gives NaN, as in JAX.
//!
//! ```
//! use pallas_rt::{Array, grad, linalg};
//! let a = Array::from_slice(&[4.0f32, 2.0, 2.0, 3.0], &[2, 2])?;
//! let b = Array::from_slice(&[2.0f32, 1.0], &[2])?;
//! assert_eq!(linalg::solve(&a, &b).to_vec::<f32>()?, [0.5, 0.0]);
//! // The gradient of the logarithm of the determinant is the inverse.
//! let slope = grad(|a: &Array| linalg::slogdet(a).1)(&a)?;
//! let error = (slope - linalg::inv(&a)).abs().max(..);
//! assert!(error.to_vec::<f32>()?[0] < 1e-6);
//! # Ok::<(), pallas_rt::Error>(())
//! ```

mod cholesky;
mod eigh;
mod jacobi;
mod least_squares;
mod lu;
mod norm;
mod qr;
mod svd;
#[cfg(test)]
mod tests;
mod triangular;

pub use cholesky::{cho_solve, cholesky};
pub use eigh::{eigh, eigvalsh};
pub use least_squares::{lstsq, matrix_rank, pinv};
pub use lu::{det, inv, slogdet, solve};
pub use norm::{MatrixNorm, cond, matrix_norm, matrix_power, multi_dot};
pub use qr::{qr, qr_complete};
pub use svd::{svd, svd_complete, svdvals};
pub use triangular::{Triangle, triangular_solve};

use crate::array::Array;
use crate::ops;
use pallas_device::error::{Error, Result};
use pallas_ir::{At, DType, Diag, Loc};

/// Maximum number of columns that are factored one after the other; wider matrices are split at a multiple of it into
/// blocks, so that most of the work is products of matrices.
const BLOCK_COLUMNS: usize = 32;

/// A compiled function of one array.
type CompiledUnary<R = Array> = Box<dyn Fn(&Array) -> Result<R> + Send + Sync>;
/// A compiled function of two arrays.
type CompiledBinary = Box<dyn Fn(&Array, &Array) -> Result<Array> + Send + Sync>;

/// Returns the array, or one with the type of `like` that holds the error.
fn or_poisoned(made: Result<Array>, like: &Array) -> Array {
    made.unwrap_or_else(|error| Array::new_poisoned(error, like.client().clone(), like.dtype(), like.shape()))
}

/// Returns both arrays, or two with the type of `like` that hold the error.
fn pair_or_poisoned(made: Result<(Array, Array)>, like: &Array) -> (Array, Array) {
    made.unwrap_or_else(|error| {
        let message = error.to_string();
        let second = Error::Traced { message };
        (or_poisoned(Err(error), like), or_poisoned(Err(second), like))
    })
}

/// Refuses arrays that are not matrices of f32 or f64; returns their numbers of rows and columns.
///
/// # Errors
/// As described; the error that the array holds.
fn check_matrix(name: &'static str, x: &Array, at: Loc) -> Result<[usize; 2]> {
    x.check()?;
    let wrong = |help: &str| {
        let message = format!("`{name}` of {}{:?}", x.dtype(), x.shape());
        Err(Error::operation(at, Diag::new("linalg", At::Op, message, help)))
    };
    if !matches!(x.dtype(), DType::F32 | DType::F64) {
        return wrong("matrices of f32 or f64: cast others");
    }
    match *x.shape() {
        [.., rows, columns] => Ok([rows, columns]),
        _ => wrong("a matrix is the last two axes"),
    }
}

/// Refuses arrays that are not square matrices of f32 or f64; returns their number of rows.
///
/// # Errors
/// As described.
fn check_square_matrix(name: &'static str, x: &Array, at: Loc) -> Result<usize> {
    let [rows, columns] = check_matrix(name, x, at)?;
    if rows != columns {
        let message = format!("`{name}` of matrices of {rows} rows and {columns} columns");
        return Err(Error::operation(at, Diag::new("linalg", At::Op, message, "square matrices")));
    }
    Ok(rows)
}

/// Merges the axes before a matrix into one axis of a batch; returns the array, and the extents of those axes.
fn flatten_batch(x: &Array) -> Result<(Array, Vec<usize>)> {
    let (batch, matrix) = x.shape().split_at(x.shape().len() - 2);
    let flat = x.reshape(&[&[batch.iter().product()], matrix].concat());
    Ok((flat, batch.to_vec()))
}

/// Splits the first axis of an array into the axes of a batch.
fn unflatten_batch(x: &Array, batch: &[usize]) -> Array {
    x.reshape(&[batch, &x.shape()[1..]].concat())
}

/// Row indices of a matrix with `n` rows as a column, i32.
fn row_indices(n: usize) -> Array {
    ops::arange(0, n as i32, 1, DType::I32).expand_dims(1)
}

/// Column indices of a matrix with `n` columns as a row, i32.
fn column_indices(n: usize) -> Array {
    ops::arange(0, n as i32, 1, DType::I32).expand_dims(0)
}

/// Number of columns in the first half of `n`, a multiple of [`BLOCK_COLUMNS`].
fn first_half_columns(n: usize) -> usize {
    (n / 2).next_multiple_of(BLOCK_COLUMNS)
}

/// Returns a range of rows and columns of each matrix of a batch.
fn submatrix(x: &Array, rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> Array {
    x.index((.., rows.start as i64..rows.end as i64, columns.start as i64..columns.end as i64))
}

/// The identity matrix of `n` rows, in the element type of `x`.
fn identity_like(x: &Array, n: usize) -> Array {
    ops::identity(n, x.dtype())
}

/// Returns rows of each matrix of a batch: those with the indices `order`, `[batch, rows]`.
fn select_rows(x: &Array, order: &Array) -> Array {
    let shape = [x.shape()[0], order.shape()[1], x.shape()[2]];
    x.take_along_axis(&order.expand_dims(2).broadcast_to(&shape), 1)
}

/// Returns columns of each matrix of a batch: those with the indices `order`, `[batch, columns]`.
fn select_columns(x: &Array, order: &Array) -> Array {
    let shape = [x.shape()[0], x.shape()[1], order.shape()[1]];
    x.take_along_axis(&order.expand_dims(1).broadcast_to(&shape), 2)
}

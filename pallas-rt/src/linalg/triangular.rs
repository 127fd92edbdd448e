//! Systems of equations with a triangular matrix.
use super::{
    BLOCK_COLUMNS, CompiledBinary, check_square_matrix, first_half_columns, flatten_batch, or_poisoned, row_indices,
    submatrix, unflatten_batch,
};
use crate::array::Array;
use crate::{custom_jvp, fori_loop, jit, ops};
use pallas_device::error::{Error, Result};
use pallas_ir::{At, Diag, Loc};
use std::sync::LazyLock;

/// The triangle of a matrix that [`triangular_solve`] reads; elements elsewhere are not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Triangle {
    /// On and below the diagonal.
    Lower,
    /// On and above the diagonal.
    Upper,
}

/// The solution `x` of `a x = b` for a triangular matrix `a`; `jax.scipy.linalg.solve_triangular`.
///
/// `b` is a vector, if it has one axis, or a matrix of right sides as columns. Axes before the matrices broadcast. For
/// the transposed matrix pass `a.t()` and the other triangle.
///
/// Both are f32 or f64; other types and shapes give an array that holds an error. A zero on the diagonal gives
/// infinities or NaN.
///
/// ```
/// use pallas_rt::{Array, linalg};
/// let a = Array::from_slice(&[2.0f32, 0.0, 1.0, 4.0], &[2, 2])?;
/// let b = Array::from_slice(&[2.0f32, 5.0], &[2])?;
/// let x = linalg::triangular_solve(&a, &b, linalg::Triangle::Lower);
/// assert_eq!(x.to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn triangular_solve(a: &Array, b: &Array, triangle: Triangle) -> Array {
    let at = Loc::caller();
    let made = solve_batched("triangular_solve", a, b, at, |a, b| match triangle {
        Triangle::Lower => SOLVE_LOWER(&a.tril(0), b),
        Triangle::Upper => {
            let turned = SOLVE_LOWER(&flip_both_axes(&a.triu(0)), &b.flip(1))?;
            Ok(turned.flip(1))
        }
    });
    or_poisoned(made, b)
}

/// Calls `solve` with a batch of square matrices and the matrices of their right sides, and returns the result in the
/// shape of a solution; `a` and `b` have shapes as in [`triangular_solve`].
///
/// # Errors
/// Shapes or element types that do not go together; the function's own.
pub(super) fn solve_batched(
    name: &'static str,
    a: &Array,
    b: &Array,
    at: Loc,
    solve: impl FnOnce(&Array, &Array) -> Result<Array>,
) -> Result<Array> {
    b.check()?;
    let n = check_square_matrix(name, a, at)?;
    let wrong = |help: &str| {
        let message =
            format!("`{name}` of {}{:?} and the right side {}{:?}", a.dtype(), a.shape(), b.dtype(), b.shape());
        Err(Error::operation(at, Diag::new("linalg", At::Operand(1), message, help)))
    };
    if a.dtype() != b.dtype() {
        return wrong("both have one element type: cast one");
    }
    let is_vector = b.shape().len() == 1;
    let column = if is_vector { b.expand_dims(1) } else { b.clone() };
    let rank = column.shape().len();
    if rank < 2 || column.shape()[rank - 2] != n {
        return wrong("the right side has as many rows as the matrix");
    }
    let (own, others) = (&a.shape()[..a.shape().len() - 2], &column.shape()[..rank - 2]);
    let batch = ops::broadcast_shape(&[own, others])?;
    let wide = |x: &Array| {
        let matrix = &x.shape()[x.shape().len() - 2..];
        flatten_batch(&x.broadcast_to(&[&batch[..], matrix].concat()))
    };
    let (a, _) = wide(a)?;
    let (column, _) = wide(&column)?;
    let x = unflatten_batch(&solve(&a, &column)?, &batch);
    let mut shape = x.shape().to_vec();
    if is_vector {
        shape.pop();
    }
    Ok(x.reshape(&shape))
}

/// Returns each matrix with its rows and columns in reverse order: the lower triangle becomes the upper one.
pub(super) fn flip_both_axes(x: &Array) -> Array {
    x.flip([1, 2])
}

/// Solves `l x = b` for lower triangular matrices `[batch, n, n]`, whose other elements are zeros, and `[batch, n,
/// columns]`.
pub(super) static SOLVE_LOWER: LazyLock<CompiledBinary> = LazyLock::new(|| {
    jit(custom_jvp(
        |l: &Array, b: &Array| forward_substitute(l, b, false),
        |(l, b): &(Array, Array), (dl, db): &(Array, Array)| {
            let x = SOLVE_LOWER(l, b)?;
            let dx = SOLVE_LOWER(l, &(db - dl.tril(0).matmul(&x)))?;
            Ok((x, dx))
        },
    ))
    .into_fn()
});

/// Solves `u x = b` for upper triangular matrices; shapes are those of [`SOLVE_LOWER`].
pub(super) fn solve_upper(u: &Array, b: &Array) -> Result<Array> {
    Ok(SOLVE_LOWER(&flip_both_axes(u), &b.flip(1))?.flip(1))
}

/// Solves `l x = b` by forward substitution: blocks of unknowns are computed one after the other, and subtracted from
/// the equations after them as a product of matrices. If `has_unit_diagonal`, the diagonal is read as ones.
pub(super) fn forward_substitute(l: &Array, b: &Array, has_unit_diagonal: bool) -> Result<Array> {
    let n = l.shape()[1];
    let columns = b.shape()[2];
    if n <= BLOCK_COLUMNS {
        return substitute_by_rows(l, b, has_unit_diagonal);
    }
    let h = first_half_columns(n);
    let first = forward_substitute(&submatrix(l, 0..h, 0..h), &submatrix(b, 0..h, 0..columns), has_unit_diagonal)?;
    let rest = submatrix(b, h..n, 0..columns) - submatrix(l, h..n, 0..h).matmul(&first);
    let second = forward_substitute(&submatrix(l, h..n, h..n), &rest, has_unit_diagonal)?;
    Ok(ops::concatenate(&[first, second], 1))
}

/// Solves small systems by forward substitution, a row at a time; see [`forward_substitute`].
fn substitute_by_rows(l: &Array, b: &Array, has_unit_diagonal: bool) -> Result<Array> {
    let n = l.shape()[1];
    if b.shape().contains(&0) {
        return Ok(b.clone());
    }
    fori_loop(0..n as i64, b, |j: &Array, x: &Array| {
        let column = l.dynamic_slice_in_dim(j, 1, 2);
        let row = x.dynamic_slice_in_dim(j, 1, 1);
        let row = if has_unit_diagonal { row } else { row / column.dynamic_slice_in_dim(j, 1, 1) };
        let r = row_indices(n);
        let later = ops::select(&r.gt(j), x - column * &row, x);
        ops::select(&r.eq(j), &row, &later)
    })
}

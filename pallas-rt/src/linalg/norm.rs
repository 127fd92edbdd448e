//! Norms and powers of matrices.
use super::{check_matrix, check_square_matrix, inv, or_poisoned, svdvals};
use crate::array::Array;
use crate::ops;
use pallas_device::error::{Error, Result};
use pallas_ir::{At, Diag, Loc};
use std::borrow::Borrow;

/// A norm of matrices; `jnp.linalg.norm` and `jnp.linalg.matrix_norm` of `"fro"`, `"nuc"`, 1, -1, 2, -2, `inf` and
/// `-inf`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MatrixNorm {
    /// The root of the sum of squares: `"fro"`.
    Frobenius,
    /// The sum of the singular values: `"nuc"`.
    Nuclear,
    /// The largest sum of magnitudes in a column: 1.
    One,
    /// The smallest sum of magnitudes in a column: -1.
    MinusOne,
    /// The largest singular value: 2.
    Two,
    /// The smallest singular value: -2.
    MinusTwo,
    /// The largest sum of magnitudes in a row: infinity.
    Infinity,
    /// The smallest sum of magnitudes in a row: -infinity.
    MinusInfinity,
}

/// A norm of each matrix (the last two axes); see [`MatrixNorm`].
///
/// f32 or f64; other types and shapes give an array that holds an error.
///
/// ```
/// use pallas_rt::{Array, linalg};
/// let a = Array::from_slice(&[3.0f32, 0.0, 0.0, -4.0], &[2, 2])?;
/// assert_eq!(linalg::matrix_norm(&a, linalg::MatrixNorm::Two).to_vec::<f32>()?, [4.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn matrix_norm(a: &Array, norm: MatrixNorm) -> Array {
    let at = Loc::caller();
    let made = || {
        check_matrix("matrix_norm", a, at)?;
        Ok(match norm {
            MatrixNorm::Frobenius => a.norm([-2, -1]),
            MatrixNorm::Nuclear => svdvals(a).sum(-1),
            MatrixNorm::One => a.abs().sum(-2).max(-1),
            MatrixNorm::MinusOne => a.abs().sum(-2).min(-1),
            MatrixNorm::Two => svdvals(a).max(-1),
            MatrixNorm::MinusTwo => svdvals(a).min(-1),
            MatrixNorm::Infinity => a.abs().sum(-1).max(-1),
            MatrixNorm::MinusInfinity => a.abs().sum(-1).min(-1),
        })
    };
    or_poisoned(made(), a)
}

/// The largest singular value of each matrix divided by the smallest one; `jnp.linalg.cond`.
///
/// f32 or f64; other types and shapes give an array that holds an error.
#[track_caller]
#[must_use]
pub fn cond(a: &Array) -> Array {
    let at = Loc::caller();
    let made = || {
        check_matrix("cond", a, at)?;
        let s = svdvals(a);
        Ok(s.max(-1) / s.min(-1))
    };
    or_poisoned(made(), a)
}

/// The product of `power` copies of a square matrix, or of its inverse for a negative power; `jnp.linalg.matrix_power`.
///
/// f32 or f64; other types and shapes give an array that holds an error.
#[track_caller]
#[must_use]
pub fn matrix_power(a: &Array, power: i32) -> Array {
    let at = Loc::caller();
    let made = || {
        let n = check_square_matrix("matrix_power", a, at)?;
        let mut base = if power < 0 { inv(a) } else { a.clone() };
        let mut rest = power.unsigned_abs();
        if rest == 0 {
            return Ok(ops::identity(n, a.dtype()).broadcast_to(a.shape()));
        }
        let mut product: Option<Array> = None;
        loop {
            if rest & 1 == 1 {
                product = Some(product.map_or_else(|| base.clone(), |product| product.matmul(&base)));
            }
            rest >>= 1;
            match product {
                Some(product) if rest == 0 => return Ok(product),
                _ => base = base.matmul(&base),
            }
        }
    };
    or_poisoned(made(), a)
}

/// The product of two matrices or more, in the order that takes the fewest multiplications; the first and the last may
/// be vectors; `jnp.linalg.multi_dot`.
///
/// The order is that of T. Cormen et al., "Introduction to Algorithms", 15.2.
#[track_caller]
#[must_use]
pub fn multi_dot<A: Borrow<Array>>(arrays: &[A]) -> Array {
    let arrays: Vec<&Array> = arrays.iter().map(Borrow::borrow).collect();
    let (count, at) = (arrays.len(), Loc::caller());
    let wrong = |message: String| {
        let help = "matrices, of which the first and the last may be vectors";
        Err(Error::operation(at, Diag::new("linalg", At::Op, message, help)))
    };
    let made = || -> Result<Array> {
        if count < 2 {
            return wrong(format!("`multi_dot` of {count} arrays"));
        }
        for (i, x) in arrays.iter().enumerate() {
            let is_vector = x.check()?.shape().len() == 1 && (i == 0 || i == count - 1);
            if !is_vector && x.shape().len() != 2 {
                return wrong(format!("array {i} of `multi_dot` has shape {:?}", x.shape()));
            }
        }
        // Extents between the arrays: a vector in front is a row, one at the end a column.
        let mut extents: Vec<usize> = arrays.iter().map(|x| x.shape()[0]).collect();
        if arrays[0].shape().len() == 1 {
            extents[0] = 1;
        }
        let last = arrays[count - 1].shape();
        extents.push(if last.len() == 1 { 1 } else { last[1] });
        Ok(multiply_in_order(&arrays, &optimal_split_points(&extents), 0, count - 1))
    };
    match arrays.first() {
        Some(first) => or_poisoned(made(), first),
        None => Array::new_poisoned(
            Error::operation(at, Diag::new("linalg", At::Op, "`multi_dot` of no array".into(), "two matrices or more")),
            crate::Client::cpu(),
            pallas_ir::DType::F32,
            &[],
        ),
    }
}

/// Returns the cheapest order of a product of matrices: for its first and last index, the last index of its left
/// factor. `extents` are the numbers of rows, then that of the last matrix's columns.
fn optimal_split_points(extents: &[usize]) -> Vec<Vec<usize>> {
    let n = extents.len() - 1;
    let (mut cost, mut cut) = (vec![vec![0u128; n]; n], vec![vec![0; n]; n]);
    for length in 1..n {
        for i in 0..n - length {
            let j = i + length;
            let price = |k: usize| {
                let own = [extents[i], extents[k + 1], extents[j + 1]].map(|n| n as u128);
                cost[i][k] + cost[k + 1][j] + own.iter().product::<u128>()
            };
            // Of equal prices the first arrays are multiplied first.
            let best = (i..j).rev().min_by_key(|&k| price(k)).expect("there is a cut");
            (cost[i][j], cut[i][j]) = (price(best), best);
        }
    }
    cut
}

/// Multiplies the arrays from `first` to `last` in the order that [`optimal_split_points`] gave.
fn multiply_in_order(arrays: &[&Array], split_points: &[Vec<usize>], first: usize, last: usize) -> Array {
    if first == last {
        return arrays[first].clone();
    }
    let k = split_points[first][last];
    multiply_in_order(arrays, split_points, first, k).matmul(&multiply_in_order(arrays, split_points, k + 1, last))
}

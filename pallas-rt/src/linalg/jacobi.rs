//! One-sided Jacobi: rotations of pairs of columns until all are orthogonal.
//!
//! M. Hestenes, "Inversion of matrices by biorthogonalization and related results" (1958); the pairs of a round by R.
//! Brent and F. Luk, "The solution of singular-value and symmetric eigenvalue problems on multiprocessor arrays"
//! (1985).
use crate::array::Array;
use crate::{fori_loop, keep, ops, while_loop};
use pallas_device::error::Result;
use pallas_ir::DType;

/// Maximum number of sweeps over all pairs; they converge quadratically after a few.
const MAX_SWEEPS: i32 = 40;

/// Multiplies `[batch, m, n]` by an orthogonal matrix that makes its columns orthogonal; returns the product and that
/// matrix, `[batch, n, n]`. Columns are in no order.
pub(super) fn orthogonalize_columns(a: &Array) -> Result<(Array, Array)> {
    let (batch, m, n) = (a.shape()[0], a.shape()[1], a.shape()[2]);
    let square = ops::identity(n, a.dtype()).broadcast_to(&[batch, n, n]);
    if n < 2 || a.shape().contains(&0) {
        return Ok((a.clone(), square));
    }
    // Columns as rows, each followed by that of the orthogonal matrix; a zero column makes their number even.
    let half = n.div_ceil(2);
    let lines = ops::concatenate(&[a.t(), square], 2).pad(&[(0, 0), (0, 2 * half - n), (0, 0)], 0.0);
    let pairs = lines.reshape(&[batch, 2, half, m + n]);
    let small = if a.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let sweep = ops::zeros(&[], DType::I32);
    let off = ops::full(&[], 1.0, a.dtype());
    let (_, _, pairs) = while_loop(
        &(sweep, off, pairs),
        |(sweep, off, _): &(Array, Array, Array)| off.gt(small).logical_and(sweep.lt(MAX_SWEEPS)),
        |(sweep, _, pairs): &(Array, Array, Array)| {
            let start = (ops::zeros(&[], pairs.dtype()), pairs.clone());
            let rounds = (2 * half - 1) as i64;
            let (off, pairs) = fori_loop(0..rounds, &start, move |_: &Array, (off, pairs): &(Array, Array)| {
                let (angle, pairs) = rotate_pairs(pairs, m);
                (off.maximum(angle), pairs)
            })?;
            Ok::<_, crate::Error>((sweep + 1, off, pairs))
        },
    )?;
    let lines = pairs.reshape(&[batch, 2 * half, m + n]);
    // The zero column is where no element of the orthogonal matrix is: it is sorted behind the others.
    let own = lines.index((.., .., m as i64..));
    let order = own.abs().max(2).eq(0.0).cast(DType::I32).argsort(1).index((.., ..n as i64));
    let lines = super::select_rows(&lines, &order);
    Ok((lines.index((.., .., ..m as i64)).t(), lines.index((.., .., m as i64..)).t()))
}

/// Rotates the two lines of each pair, `[batch, 2, half, length]`, so that their first `compared_elements` elements are
/// orthogonal. Returns the largest cosine between the lines of a pair before, and new pairs of lines that were not yet
/// together in this sweep.
fn rotate_pairs(pairs: &Array, compared_elements: usize) -> (Array, Array) {
    let half = pairs.shape()[2] as i64;
    let line = |i: i64| pairs.index((.., i));
    let (p, q) = (line(0), line(1));
    let head = |x: &Array| x.index((.., .., ..compared_elements as i64));
    let (a, b) = (head(&p), head(&q));
    let (alpha, beta, gamma) = (a.square().sum(keep(2)), b.square().sum(keep(2)), (&a * &b).sum(keep(2)));
    let scale = alpha.sqrt() * beta.sqrt();
    let cosine = ops::select(&scale.gt(0.0), gamma.abs() / ops::select(&scale.gt(0.0), &scale, 1.0), 0.0);
    let is_turned = gamma.ne(0.0);
    let zeta = (beta - alpha) / (ops::select(&is_turned, &gamma, 1.0) * 2.0);
    let sign = ops::select(&zeta.lt(0.0), -1.0, zeta.ones_like());
    let tangent = ops::select(&is_turned, sign / (zeta.abs() + zeta.hypot(1.0)), 0.0);
    let c = (tangent.square() + 1.0).rsqrt();
    let s = &c * tangent;
    let (p, q) = (&c * &p - &s * &q, &s * &p + &c * &q);
    if half == 1 {
        return (cosine.max(..), ops::stack(&[p, q], 1));
    }
    let part = |x: &Array, range: std::ops::Range<i64>| x.index((.., range));
    let first = ops::concatenate(&[part(&p, 0..1), part(&q, 0..1), part(&p, 1..half - 1)], 1);
    let second = ops::concatenate(&[part(&q, 1..half), part(&p, half - 1..half)], 1);
    (cosine.max(..), ops::stack(&[first, second], 1))
}

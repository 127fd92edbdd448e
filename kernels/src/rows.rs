//! Arrays as matrices of rows.
use crate::blocks::{Choice, Need, choose};
use crate::wrong::wrong;
use pallas_rt::prelude::*;

/// `[.., n]` as `[rows, n]`.
///
/// # Errors
/// The array is a scalar.
#[track_caller]
pub(crate) fn rows(x: &Array) -> Result<Array> {
    match x.shape().split_last() {
        None => wrong("a row operation needs an array of at least one dimension".into()),
        Some((&n, outer)) => x.reshape(&[outer.iter().product(), n]),
    }
}

/// A vector of the row's length, as a row.
///
/// # Errors
/// It is another vector, or none.
#[track_caller]
pub(crate) fn parameter(name: &str, x: &Array, n: usize) -> Result<Array> {
    if x.shape() != [n] {
        return wrong(format!("`{name}` has shape {:?}, rows have {n} elements", x.shape()));
    }
    x.reshape(&[1, n])
}

/// Refuses an epsilon of a norm that is NaN, infinite or negative.
#[track_caller]
pub(crate) fn check_epsilon(epsilon: f32) -> Result<()> {
    if epsilon.is_finite() && epsilon >= 0.0 {
        return Ok(());
    }
    wrong(format!("`epsilon` is {epsilon}, expected a finite number of at least 0"))
}

/// Number of rows of `n` elements in a block: at most `most`, and few enough that all tiles fit registers.
pub(crate) fn rows_of_block(x: &Array, n: usize, most: usize) -> usize {
    // The input rows, the computed rows, a gradient or a parameter, and the result.
    const TILES: usize = 4;
    let smaller = [16, 4, 1].into_iter().filter(|rows| *rows < most);
    let candidates = [most].into_iter().chain(smaller).map(|rows| ([rows], Need::live_elements(TILES * rows * n)));
    let [rows] = choose(Choice::Rows, x.client().target(), candidates);
    rows
}
/// Evaluates an expression with `$BR` the rows of a block that [`rows_of_block`] chooses.
macro_rules! in_rows {
    ($x:expr, $n:expr, $most:literal, $BR:ident => $call:expr) => {
        match $crate::rows::rows_of_block($x, $n, $most) {
            1 => {
                const $BR: usize = 1;
                $call
            }
            4 => {
                const $BR: usize = 4;
                $call
            }
            16 => {
                const $BR: usize = 16;
                $call
            }
            _ => {
                const $BR: usize = $most;
                $call
            }
        }
    };
}
pub(crate) use in_rows;

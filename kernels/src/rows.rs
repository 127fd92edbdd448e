//! Arrays as matrices of rows.
use pallas_rt::prelude::*;

/// `[.., n]` as `[rows, n]`.
///
/// # Errors
/// The array is a scalar.
pub(crate) fn rows(x: &Array) -> Result<Array> {
    match x.shape().split_last() {
        None => Err(Error::Value { message: "a row operation needs an array of at least one dimension".into() }),
        Some((&n, outer)) => x.reshape(&[outer.iter().product(), n]),
    }
}

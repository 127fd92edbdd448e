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

/// A vector of the row's length, as a row.
///
/// # Errors
/// It is another vector, or none.
pub(crate) fn parameter(name: &str, x: &Array, n: usize) -> Result<Array> {
    if x.shape() != [n] {
        let message = format!("`{name}` has shape {:?}, rows have {n} elements", x.shape());
        return Err(Error::Value { message });
    }
    x.reshape(&[1, n])
}

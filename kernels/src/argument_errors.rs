//! Errors of arguments that do not fit.
use pallas_rt::ir::Loc;
use pallas_rt::prelude::*;

/// Returns an error with the source position of the user's call.
///
/// Every function from here to the user's call has `#[track_caller]`, and no closure is between them, since a closure
/// would be the caller. A test checks both.
#[track_caller]
pub(crate) fn argument_error<T>(message: String) -> Result<T> {
    Err(Error::Value { message: format!("{}: {message}", Loc::caller()) })
}

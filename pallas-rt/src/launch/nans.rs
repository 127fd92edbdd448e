//! The search for the operation of a kernel that makes NaN.
use super::run;
use crate::exec::{Compiled, LaunchArguments};
use crate::{Array, Client, Error, Result, nans};
use pallas_ir::{At, Diag};

/// Runs a call. If a result has NaN and no argument has, runs it once more on the strict interpreter, which finds the
/// operation that makes NaN.
///
/// # Errors
/// `nan` with the operation, its program and line; what the call returns.
pub(super) fn execute_finding_nans(
    client: &Client,
    compiled: &Compiled,
    call: LaunchArguments<'_>,
    body: &dyn Fn(),
) -> Result<Vec<Array>> {
    let again = run::copy_to_interpreter(&call)?;
    let at = call.at;
    let outputs = run::execute(client, compiled, call, body)?;
    let is_given = |array: &Option<(Array, bool)>| {
        array.as_ref().map_or(Ok(false), |(array, _)| nans::first_nan_position(array).map(|at| at.is_some()))
    };
    let given = again.arrays.iter().map(is_given).collect::<Result<Vec<bool>>>()?;
    let Some(output) =
        outputs.iter().map(nans::first_nan_position).collect::<Result<Vec<_>>>()?.iter().position(Option::is_some)
    else {
        return Ok(outputs);
    };
    if given.contains(&true) || again.params.iter().flatten().any(|x| x.dtype.is_float() && x.as_f64().is_nan()) {
        return Ok(outputs);
    }
    nans::without_nan_checks(|| run::interpret(&Client::interpreter(), compiled.traced(), again, body, true))?;
    let message = format!("result {output} has NaN, which the strict interpreter does not make");
    let help = "the device rounds or overflows otherwise than the interpreter: compare with `check`";
    Err(Error::kernel(&compiled.traced().name, at, "", Diag::new("nan", At::Op, message, help)))
}

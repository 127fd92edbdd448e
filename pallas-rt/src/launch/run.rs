//! Runs of a call. On the strict interpreter the body runs as Rust, once per program, and every operation is computed
//! immediately.
use crate::exec::{self, Compiled, LaunchArguments, OperandArraysWithDonation};
use crate::lang::context;
use crate::{Array, Client, DeviceKind, Result};
use pallas_ir::Kernel;
use std::sync::Arc;

/// The seed of the pseudo-random order of parallel programs, equal in every run.
const SCHEDULE_SEED: u64 = 0x5eed;

/// Runs a call: its body as Rust on the interpreter, its compiled kernel elsewhere.
pub(super) fn execute(
    client: &Client,
    compiled: &Compiled,
    call: LaunchArguments<'_>,
    body: &dyn Fn(),
) -> Result<Vec<Array>> {
    if client.kind() == DeviceKind::Interpreter {
        return interpret(client, compiled.traced(), call, body, false);
    }
    exec::run_kernel(compiled, client, call)
}

/// Returns the call with copies of its arrays on the interpreter, none of them donated.
pub(super) fn copy_to_interpreter<'a>(call: &LaunchArguments<'a>) -> Result<LaunchArguments<'a>> {
    let interpreter = Client::interpreter();
    let copied = |(array, _): &(Array, bool)| Ok((array.to_device(&interpreter)?, false));
    let arrays: OperandArraysWithDonation =
        call.arrays.iter().map(|array| array.as_ref().map(copied).transpose()).collect::<Result<_>>()?;
    Ok(LaunchArguments { arrays, lent: vec![], ..*call })
}

/// Runs a call whose arrays are on an interpreter's client. If it `finds_nans`, an operation that makes NaN is a fault.
pub(super) fn interpret(
    client: &Client,
    kernel: &Arc<Kernel>,
    call: LaunchArguments<'_>,
    body: &dyn Fn(),
    finds_nans: bool,
) -> Result<Vec<Array>> {
    let at = call.at;
    exec::interpret_kernel(client, kernel, call, |mut machine| {
        machine.finds_nans = finds_nans;
        for steps in machine.schedule(SCHEDULE_SEED) {
            machine.begin_parallel_program();
            for program in steps {
                machine.begin_step(program);
                machine = context::run_eagerly(machine, at, body)?;
            }
        }
        Ok(machine)
    })
}

//! Calls on the strict interpreter: the body runs as Rust, once per program, and every operation is computed
//! immediately.
use super::bind::Sizes;
use super::spec::Body;
use super::trace;
use crate::exec::{self, Call};
use crate::lang::context;
use crate::{Array, Client, Result};
use pallas_ir::Kernel;
use std::sync::Arc;

/// The seed of the pseudo-random order of parallel programs, equal in every run.
const SEED: u64 = 0x5eed;

/// Runs a call whose arrays are on an interpreter's client. If it `finds_nans`, an operation that makes NaN is a fault.
pub(super) fn run(
    client: &Client,
    kernel: &Arc<Kernel>,
    call: Call<'_>,
    sizes: &Sizes,
    body: &dyn Body,
    finds_nans: bool,
) -> Result<Vec<Array>> {
    let frame = trace::frame(sizes);
    let at = call.at;
    exec::interpret(client, kernel, call, |mut machine| {
        machine.finds_nans = finds_nans;
        for steps in machine.schedule(SEED) {
            machine.begin_lane();
            for program in steps {
                machine.begin_step(program);
                machine = context::eager(machine, at, || body.run(&frame))?;
            }
        }
        Ok(machine)
    })
}

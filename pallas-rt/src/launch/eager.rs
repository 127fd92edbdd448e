//! Calls on the strict interpreter: the body runs as Rust, once per program, every operation computed at once.
use super::bind::Sizes;
use super::spec::Body;
use super::trace;
use crate::device::interpreter::{check_room, finish, machine};
use crate::exec::{self, Call};
use crate::lang::context;
use crate::{Array, Client, Result};
use pallas_ir::Kernel;
use std::sync::Arc;

/// The seed of the order of parallel programs: random, and the same each time.
const SEED: u64 = 0x5eed;

/// Runs a call, whose arrays live on an interpreter's client.
pub(super) fn run(
    client: &Client,
    kernel: &Arc<Kernel>,
    call: Call<'_>,
    sizes: &Sizes,
    body: Body<'_>,
) -> Result<Vec<Array>> {
    if call.geometry.is_empty() {
        return exec::empty(client, kernel, &call);
    }
    check_room(client, kernel)?;
    let frame = trace::frame(sizes);
    exec::with_outputs(client, kernel, call, |launch| {
        let mut machine = machine(kernel, launch)?;
        for steps in machine.schedule(SEED) {
            machine.begin_lane();
            for program in steps {
                machine.begin_step(program);
                machine = context::eager(machine, launch.at, || body(&frame))?;
            }
        }
        // SAFETY: the outputs' memory is fresh, donated, or lent by a caller who has it for itself.
        unsafe { finish(machine, launch) }
    })
}

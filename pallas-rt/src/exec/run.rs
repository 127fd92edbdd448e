//! One launch of a kernel: allocates memory for its outputs, and calls the executable for its client.
use super::compiled::Compiled;
use super::output_aliases;
use crate::array::Array;
use crate::array::Client;
use pallas_codegen::interp::Machine;
use pallas_device::devices::interpreter;
use pallas_device::error::Result;
use pallas_device::{Buffer, ByOperand, DeviceKind, LAUNCHES, Launch, LaunchGeometry, output_indices};
use pallas_ir::{Kernel, Literal, Loc, OperandKind};
use smallvec::smallvec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// By operand, its array, and true if that is donated; `None` for outputs, parameters and scratch.
pub(crate) type OperandArraysWithDonation = Vec<Option<(Array, bool)>>;

/// The arguments of a launch, besides the kernel and the client.
pub(crate) struct LaunchArguments<'a> {
    /// The grid and the shapes of the launch.
    pub geometry: &'a LaunchGeometry,
    /// The line of the kernel, for errors of operations without a line.
    pub at: Loc,
    /// The line of the call, for errors of a launch that goes on after the call.
    pub called: Loc,
    /// By operand, the value of a parameter.
    pub params: &'a [Option<Literal>],
    /// By operand, the array of an input or prefetch.
    pub arrays: OperandArraysWithDonation,
    /// The arrays to which the outputs are written, one for each output; empty if they are to be allocated. The caller
    /// has exclusive access to their memory.
    pub lent: Vec<Array>,
}

/// Runs a kernel on a client that has all arrays of the call; returns its outputs.
pub(crate) fn run_kernel(compiled: &Compiled, client: &Client, mut call: LaunchArguments<'_>) -> Result<Vec<Array>> {
    let sharing;
    let mut compiled = compiled;
    // The interpreter reads and writes copies; without programs nothing is written.
    if client.kind() != DeviceKind::Interpreter && call.lent.is_empty() && !call.geometry.is_empty() {
        let pairs = output_aliases::find_donation_pairs(compiled.traced(), &mut call.arrays);
        if !pairs.is_empty() {
            sharing = compiled.find_or_make_aliasing_variant(pairs);
            compiled = &sharing;
        }
    }
    launch_with_outputs(client, compiled.traced(), call, |launch| {
        // SAFETY: the outputs' memory is new, donated, or lent by a caller that has exclusive access to it.
        unsafe { compiled.executable_for(client).run(client, launch) }
    })
}

/// Runs a kernel on an interpreter's client: `run` executes all programs on the machine. Returns the outputs.
pub(crate) fn interpret_kernel(
    client: &Client,
    kernel: &Arc<Kernel>,
    call: LaunchArguments<'_>,
    run: impl FnOnce(Machine) -> Result<Machine>,
) -> Result<Vec<Array>> {
    launch_with_outputs(client, kernel, call, |launch| {
        let machine = run(interpreter::create_machine(client, kernel, launch)?)?;
        // SAFETY: as in `run_kernel`.
        unsafe { interpreter::finish_launch(machine, launch) }
    })
}

/// Allocates the outputs, calls `f` with the launch unless it has no programs, and returns the outputs.
fn launch_with_outputs(
    client: &Client,
    kernel: &Kernel,
    mut call: LaunchArguments<'_>,
    f: impl FnOnce(&Launch<'_>) -> Result<()>,
) -> Result<Vec<Array>> {
    let results = allocate_outputs(client, kernel, &mut call)?;
    if call.geometry.is_empty() {
        return Ok(results);
    }
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    let mut buffers: ByOperand<Option<&Buffer>> = smallvec![None; call.arrays.len()];
    for (buffer, array) in buffers.iter_mut().zip(&call.arrays) {
        *buffer = array.as_ref().map(|(array, _)| array.buffer()).transpose()?;
    }
    for (i, result) in output_indices(kernel).zip(&results) {
        buffers[i] = Some(result.buffer()?);
        if let OperandKind::Output { alias: Some(from), .. } = &kernel.operands[i].kind {
            buffers[from.index()] = buffers[i];
        }
    }
    let (geometry, at, called, params) = (call.geometry, call.at, call.called, call.params);
    f(&Launch { kernel, at, called, geometry, params, buffers: &buffers })?;
    drop(buffers);
    Ok(results)
}

/// Returns the bytes of `count` elements of this value.
pub(super) fn repeat_value_bytes(value: Literal, count: usize) -> Vec<u8> {
    value.to_bytes().repeat(count)
}

/// Returns an array for each output: the one lent for it, the donated or copied memory of the input it aliases, or new
/// memory, which is filled with the `empty` value if there are no programs to write it.
fn allocate_outputs(client: &Client, kernel: &Kernel, call: &mut LaunchArguments<'_>) -> Result<Vec<Array>> {
    if !call.lent.is_empty() {
        return Ok(std::mem::take(&mut call.lent));
    }
    let mut results = vec![];
    for i in output_indices(kernel) {
        let (dtype, shape) = (kernel.operands[i].dtype, &call.geometry.shapes[i]);
        let OperandKind::Output { alias, empty } = &kernel.operands[i].kind else { continue };
        results.push(match alias {
            Some(from) => {
                let (array, donated) = call.arrays[from.index()].take().expect("an alias is an input, and no other's");
                let own = if donated { array.try_reuse_memory(dtype, shape) } else { Err(array) };
                own.or_else(|shared| shared.deep_copy())?
            }
            None if call.geometry.is_empty() => {
                client.array_from_bytes(dtype, shape, &repeat_value_bytes(*empty, shape.iter().product()))?
            }
            None => client.empty(shape, dtype)?,
        });
    }
    Ok(results)
}

//! The strict interpreter as a device: runs the tile IR as traced, or, operation by operation, the body that it was
//! traced from.
use super::client::Client;
use super::lowered_cache::KernelSource;
use super::runtime::{Executable, Launch, LaunchGeometry, describe_launch, output_indices};
use crate::error::Result;
use crate::timeline;
use pallas_codegen::interp::{self, Argument, Data, Fault, Machine, walk};
use pallas_ir::{Kernel, OperandKind};
use std::sync::Arc;

/// A traced kernel, in the form that the interpreter runs.
pub(super) struct InterpretedKernel(pub(super) Arc<KernelSource>);

impl Executable for InterpretedKernel {
    fn memory_needed(&self, _: &Client, _: &LaunchGeometry) -> Result<u64> {
        Ok(memory_needed(&self.0.traced))
    }

    fn estimated_compiled_bytes(&self) -> u64 {
        0
    }

    unsafe fn run(&self, client: &Client, launch: &Launch<'_>) -> Result<()> {
        timeline::run_in_span(
            timeline::SpanKind::Launch,
            || describe_launch(launch.kernel, launch.geometry),
            || {
                let mut machine = create_machine(client, &self.0.traced, launch)?;
                walk::run_all_programs(&mut machine)?;
                // SAFETY: the caller has exclusive access to the outputs.
                unsafe { finish_launch(machine, launch) }
            },
        )
    }
}

/// Bytes of tiles and scratch: for each element the value and a flag that it is defined; for scratch also the programs
/// that read and wrote it.
fn memory_needed(kernel: &Kernel) -> u64 {
    let tiles = kernel.values.iter().filter(|ty| !ty.is_scalar());
    let scratch = kernel.operands.iter().filter(|o| o.kind == OperandKind::Scratch);
    let bytes = |elements: usize, each: usize| elements as u64 * each as u64;
    let tiles: u64 = tiles.map(|ty| bytes(ty.elements(), ty.dtype.bytes() + 1)).sum();
    tiles + scratch.map(|o| bytes(o.block_shape().iter().product(), o.dtype.bytes() + 9)).sum::<u64>()
}

/// Returns a machine with copies of the launch's inputs. Refuses tiles and scratch that exceed the client's memory
/// limit.
pub fn create_machine(client: &Client, kernel: &Arc<Kernel>, launch: &Launch<'_>) -> Result<Machine> {
    client.check_memory_fits(&kernel.name, memory_needed(kernel))?;
    let geometry = launch.geometry;
    let mut arguments = vec![];
    for (i, operand) in kernel.operands.iter().enumerate() {
        let shape = geometry.shapes[i].clone();
        arguments.push(match (&operand.kind, launch.buffers[i], launch.params[i]) {
            (OperandKind::Param, _, Some(x)) => Argument::Param(x),
            (OperandKind::Input | OperandKind::Prefetch, Some(buffer), _) => {
                Argument::Array(shape, Data::from_bytes(operand.dtype, &buffer.contents()?))
            }
            _ => Argument::Uninitialized(shape),
        });
    }
    Ok(Machine::new(kernel.clone(), geometry.sizes.clone(), geometry.grid.clone(), arguments))
}

/// Ends a launch: writes the outputs to their buffers and prints what the kernel printed.
///
/// # Errors
/// An output element that no program wrote.
///
/// # Safety
/// The contract of [`Executable::run`].
pub unsafe fn finish_launch(machine: Machine, launch: &Launch<'_>) -> Result<()> {
    // The fault of an element that was never written gets the kernel's source position.
    let (data, log) = machine.finish().map_err(|fault| Fault { loc: launch.at, ..fault })?;
    interp::print_debug_lines(&log);
    for (i, data) in output_indices(launch.kernel).zip(data) {
        let buffer = launch.buffers[i].expect("outputs have memory");
        // SAFETY: the caller has exclusive access to the outputs.
        unsafe { buffer.overwrite(&data.to_bytes()) };
    }
    Ok(())
}

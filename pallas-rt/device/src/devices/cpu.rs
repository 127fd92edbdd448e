//! The CPU as a device: runs plans of lowered kernels on the host's threads.
use super::buffer::Buffer;
use super::client::Client;
use super::host::HostRuntime;
use super::ledger::MemoryLedger;
use super::lowered_cache::KernelSource;
use super::memory::HostBlock;
use super::queue::{LaunchUses, StartPtr};
use super::runtime::{ByOperand, Executable, Launch, LaunchGeometry, describe_launch, output_indices};
use crate::error::{Error, Result};
use crate::timeline;
use pallas_codegen::cpu;
use pallas_codegen::cpu::thread_team::{LaunchThreads, RayonPool};
use pallas_ir::{Kernel, Literal, OperandKind};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// A kernel for the CPU, which is compiled at its first launch.
pub(super) struct CpuKernel {
    source: Arc<KernelSource>,
    executable: OnceLock<Arc<cpu::Executable>>,
}

impl CpuKernel {
    pub(super) fn new(source: Arc<KernelSource>) -> CpuKernel {
        CpuKernel { source, executable: OnceLock::new() }
    }

    /// The compiled kernel.
    pub(super) fn executable(&self) -> &Arc<cpu::Executable> {
        self.executable.get_or_init(|| {
            let (traced, lowered) = (self.source.traced.clone(), self.source.lowered().clone());
            let compile = || cpu::Executable::compile(traced, lowered, self.source.sizes);
            Arc::new(timeline::time_compilation(compile))
        })
    }
}

impl Executable for CpuKernel {
    /// Returns the bytes of tiles and scratch of the programs that run at the same time.
    fn memory_needed(&self, _: &Client, geometry: &LaunchGeometry) -> Result<u64> {
        let executable = self.executable();
        let threads = executable.thread_count(&geometry.parallel) as u64;
        Ok(threads.saturating_mul(executable.bytes_per_program() as u64))
    }

    fn estimated_compiled_bytes(&self) -> u64 {
        self.executable.get().map_or(0, |executable| executable.estimate_plan_bytes())
    }

    /// Runs a small launch within the call, unless it depends on launches that have not finished. Other launches run on
    /// the queue's thread, except those of a call from a rayon thread, which run within the call, in that thread's
    /// pool.
    unsafe fn run(&self, client: &Client, launch: &Launch<'_>) -> Result<()> {
        let (executable, geometry) = (self.executable(), launch.geometry);
        for ((operand, shape), buffer) in launch.kernel.operands.iter().zip(&geometry.shapes).zip(launch.buffers) {
            let array = !matches!(operand.kind, OperandKind::Scratch | OperandKind::Param);
            let bytes = shape.iter().try_fold(operand.dtype.bytes(), |bytes, &n| bytes.checked_mul(n));
            let whole = |buffer: &&Buffer| shape.contains(&0) || bytes == Some(buffer.len());
            assert!(!array || buffer.as_ref().is_some_and(whole), "`{}` has no memory of {shape:?}", operand.name);
        }
        let ledger = client.runtime().ledger();
        client.check_memory_fits(&launch.kernel.name, self.memory_needed(client, geometry)?)?;
        let uses = |i: usize| launch.buffers[i].and_then(Buffer::host_block).map(HostBlock::launch_uses);
        let all = || (0..launch.buffers.len()).filter_map(uses);
        let own_pool = rayon_core::current_thread_index().is_some();
        if own_pool || (executable.is_small_launch(&geometry.parallel) && !all().any(LaunchUses::is_busy)) {
            all().for_each(LaunchUses::wait_for_all);
            indices_of_read_operands(launch.kernel).filter_map(uses).try_for_each(LaunchUses::wait_for_writes)?;
            output_indices(launch.kernel).filter_map(uses).for_each(LaunchUses::forget_last_write_outcome);
            let start = |i: usize| launch.buffers[i].map_or(std::ptr::null_mut(), Buffer::start_ptr);
            let describe = || describe_launch(launch.kernel, geometry);
            // SAFETY: no launch uses the blocks, and the caller has exclusive access to those of outputs.
            let run =
                || unsafe { execute_all_programs(executable, geometry, launch.params, ledger, &RayonPool, start) };
            return timeline::run_in_span(timeline::SpanKind::Launch, describe, run);
        }
        let starts: Vec<StartPtr> = launch
            .buffers
            .iter()
            .map(|buffer| StartPtr(buffer.map_or(std::ptr::null_mut(), Buffer::start_ptr)))
            .collect();
        let (reads, writes) =
            (indices_of_read_operands(launch.kernel).filter_map(uses), output_indices(launch.kernel).filter_map(uses));
        let (reads, writes): (Vec<&LaunchUses>, Vec<&LaunchUses>) = (reads.collect(), writes.collect());
        let (executable, geometry, params) = (executable.clone(), geometry.clone(), launch.params.to_vec());
        let (ledger, called) = (ledger.clone(), launch.called);
        // SAFETY: the queue runs it after every launch before it has finished, and blocks wait for it before they are
        // read, written or freed.
        let run = move || unsafe {
            execute_all_programs(&executable, &geometry, &params, &ledger, &RayonPool, |i| starts[i].0)
        };
        let run = move || run().map_err(|error| error.called_at(called));
        let described = timeline::is_recording().then(|| describe_launch(launch.kernel, launch.geometry));
        let work = move || timeline::run_in_span(timeline::SpanKind::Launch, || described.unwrap_or_default(), run);
        let runtime: &dyn Any = &**client.runtime();
        let HostRuntime { queue, .. } = runtime.downcast_ref().expect("the client is the CPU's");
        // SAFETY: `work` uses only the memory of the launch's buffers, whose blocks are passed here.
        unsafe { queue.add_launch(&launch.kernel.name, &reads, &writes, work) };
        Ok(())
    }
}

/// Indices of operands whose contents are read: inputs, prefetch operands, and outputs that alias an input.
fn indices_of_read_operands(kernel: &Kernel) -> impl Iterator<Item = usize> + '_ {
    (0..kernel.operands.len()).filter(|&i| match kernel.operands[i].kind {
        OperandKind::Input | OperandKind::Prefetch => true,
        OperandKind::Output { alias, .. } => alias.is_some(),
        OperandKind::Scratch | OperandKind::Param => false,
    })
}

/// Runs every program of a launch on these threads.
///
/// # Safety
/// `operand_start` gives the memory of each operand, which has the bytes of its shape. Nothing else writes it during
/// the call, and nothing else reads the memory of outputs.
pub(super) unsafe fn execute_all_programs(
    executable: &cpu::Executable,
    geometry: &LaunchGeometry,
    params: &[Option<Literal>],
    ledger: &MemoryLedger,
    threads: &dyn LaunchThreads,
    operand_start: impl Fn(usize) -> *mut u8,
) -> Result<()> {
    let shapes = geometry.shapes.iter().enumerate();
    // SAFETY: the caller's.
    let memory: ByOperand<_> =
        shapes.map(|(i, shape)| unsafe { cpu::LaunchMemory::new(operand_start(i), shape) }).collect();
    let (sizes, grid, steps) = (&geometry.sizes, &geometry.parallel, &geometry.sequential);
    let launch = cpu::Launch { sizes, grid, steps, memory: &memory, params };
    let stopped = |stop| match stop {
        cpu::LaunchError::Fault(fault) => Error::from(fault),
        cpu::LaunchError::OutOfMemory(bytes) => {
            ledger.refused_allocation_error(bytes as u64, "out of memory for tiles".into())
        }
    };
    // SAFETY: the caller's. Sizes, grid, shapes and parameters are in the order of the kernel's declarations.
    pallas_codegen::interp::print_debug_lines(&unsafe { executable.run(&launch, threads) }.map_err(stopped)?);
    Ok(())
}

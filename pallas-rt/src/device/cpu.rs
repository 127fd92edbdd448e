//! The CPU: plans of lowered kernels on the host's threads.
use super::client::Client;
use super::host::Host;
use super::ledger::{Ledger, Reservation};
use super::limits::Device;
use super::runtime::{Executable, Geometry, Launch, Runtime, Storage};
use super::source::Source;
use crate::cpu;
use crate::error::{Error, Result};
use std::sync::{Arc, OnceLock};

/// The runtime of the CPU backend.
pub(super) struct Cpu(pub(super) Host);

impl Runtime for Cpu {
    fn device(&self) -> &Device {
        &self.0.device
    }

    fn ledger(&self) -> &Arc<Ledger> {
        &self.0.ledger
    }

    fn allocate(self: Arc<Self>, bytes: usize, zeroed: bool) -> Result<(Storage, Reservation)> {
        self.0.allocate(bytes, zeroed).map(|(memory, reservation)| (Storage::Host(memory), reservation))
    }

    fn release_kept_memory(&self) {
        self.0.stock.clear();
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }

    fn compile(&self, source: Arc<Source>) -> Box<dyn Executable> {
        Box::new(Native { source, executable: OnceLock::new() })
    }
}

/// A kernel for the CPU, compiled at its first launch.
struct Native {
    source: Arc<Source>,
    executable: OnceLock<cpu::Executable>,
}

impl Native {
    fn executable(&self) -> &cpu::Executable {
        self.executable.get_or_init(|| cpu::Executable::compile(self.source.lowered().clone()))
    }
}

impl Executable for Native {
    /// Tiles and scratch of the programs that run at the same time.
    fn memory_needed(&self, _: &Client, geometry: &Geometry) -> Result<u64> {
        let executable = self.executable();
        let threads = executable.threads(&geometry.parallel) as u64;
        Ok(threads.saturating_mul(executable.bytes_a_program() as u64))
    }

    fn bytes(&self) -> u64 {
        self.executable.get().map_or(0, cpu::Executable::bytes)
    }

    unsafe fn run(&self, client: &Client, launch: &Launch<'_>) -> Result<()> {
        let geometry = launch.geometry;
        client.check_room(&launch.kernel.name, self.memory_needed(client, geometry)?)?;
        let memory = launch.buffers.iter().zip(&geometry.shapes).map(|(buffer, shape)| {
            // Inputs are only read. Outputs are written through a shared reference: `exec` holds the only array that uses
            // their memory, or `into` does by `&mut`.
            let ptr = buffer.map_or(std::ptr::null_mut(), |buffer| buffer.as_ptr().cast_mut());
            cpu::Memory { ptr, shape }
        });
        let memory: Vec<cpu::Memory<'_>> = memory.collect();
        let (sizes, grid, params) = (&geometry.sizes[..], &geometry.parallel[..], launch.params);
        let log = self.executable().run(&cpu::Launch { sizes, grid, memory: &memory, params });
        crate::interp::print(&log.map_err(Error::from)?);
        Ok(())
    }
}

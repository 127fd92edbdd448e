//! The host as a device: memory accounted in the ledger and kept for reuse, for the CPU and the interpreter.
use super::cpu::CpuKernel;
use super::interpreter::InterpretedKernel;
use super::ledger::MemoryLedger;
use super::lowered_cache::KernelSource;
use super::memory::{HostBlock, physical_memory_bytes};
use super::memory_pool::{MemoryPool, size_class};
use super::name::{Device, DeviceKind};
use super::queue::LaunchQueue;
use super::runtime::{Executable, Runtime};
use super::storage::{BufferStorage, HostMemory, InitialContents};
use crate::error::Result;
use std::sync::Arc;

/// Runtime of the CPU backend, or of the interpreter.
pub(super) struct HostRuntime {
    device: Device,
    ledger: Arc<MemoryLedger>,
    stock: Arc<MemoryPool<HostBlock>>,
    /// Launches of the CPU that continue after their call returns; the interpreter has none.
    pub(super) queue: LaunchQueue,
}

impl HostRuntime {
    pub(super) fn new(device: Device) -> HostRuntime {
        let ledger = MemoryLedger::new(device.id(), physical_memory_bytes());
        let stock = Arc::new(MemoryPool::new(ledger.clone()));
        HostRuntime { device, ledger, stock, queue: LaunchQueue::default() }
    }
}

impl Runtime for HostRuntime {
    fn device(&self) -> &Device {
        &self.device
    }

    fn ledger(&self) -> &Arc<MemoryLedger> {
        &self.ledger
    }

    /// Allocates a block of the size class of `bytes`.
    fn allocate(self: Arc<Self>, bytes: usize, first: InitialContents) -> Result<BufferStorage> {
        let (ledger, stock) = (&self.ledger, &self.stock);
        let class = size_class(bytes as u64).and_then(|class| usize::try_from(class).ok());
        let class =
            class.ok_or_else(|| ledger.refused_allocation_error(bytes as u64, "more than the address space".into()))?;
        let reservation = ledger.reserve(class as u64)?;
        let block = match stock.take_block(class as u64, first != InitialContents::Unspecified) {
            Some(mut block) => {
                // Launches of the previous owner may still run; those of the next owner run after them.
                block.launch_uses().forget_last_write_outcome();
                if first == InitialContents::Zeros {
                    block.bytes_to_overwrite(bytes).fill(0);
                }
                block
            }
            None => {
                stock.shrink_for(class as u64);
                HostBlock::zeroed(class)
                    .ok_or_else(|| ledger.refused_allocation_error(class as u64, "out of memory".into()))?
            }
        };
        Ok(BufferStorage::Host(HostMemory::new(reservation, block, stock)))
    }

    fn release_kept_memory(&self) {
        self.stock.drop_all();
    }

    fn wait(&self) -> Result<()> {
        self.queue.wait_for_all()
    }

    fn compile(&self, source: Arc<KernelSource>) -> Box<dyn Executable> {
        match self.device.kind {
            DeviceKind::Interpreter => Box::new(InterpretedKernel(source)),
            DeviceKind::Cpu | DeviceKind::Gpu => Box::new(CpuKernel::new(source)),
        }
    }
}

//! The host as a device: memory accounted in the ledger and kept for reuse, for the CPU and the interpreter.
use super::cpu::Native;
use super::interpreter::Traced;
use super::ledger::Ledger;
use super::memory::{Block, physical_bytes};
use super::memory_pool::{Stock, size_class};
use super::name::{Device, DeviceKind};
use super::queue::Queue;
use super::runtime::{Executable, Runtime};
use super::source::Source;
use super::storage::{First, HostMemory, Storage};
use crate::error::Result;
use std::sync::Arc;

/// Runtime of the CPU backend, or of the interpreter.
pub(super) struct Host {
    device: Device,
    ledger: Arc<Ledger>,
    stock: Arc<Stock<Block>>,
    /// Launches of the CPU that continue after their call returns; the interpreter has none.
    pub(super) queue: Queue,
}

impl Host {
    pub(super) fn new(device: Device) -> Host {
        let ledger = Ledger::new(device.id(), physical_bytes());
        let stock = Arc::new(Stock::new(ledger.clone()));
        Host { device, ledger, stock, queue: Queue::default() }
    }
}

impl Runtime for Host {
    fn device(&self) -> &Device {
        &self.device
    }

    fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Allocates a block of the size class of `bytes`.
    fn allocate(self: Arc<Self>, bytes: usize, first: First) -> Result<Storage> {
        let (ledger, stock) = (&self.ledger, &self.stock);
        let class = size_class(bytes as u64).and_then(|class| usize::try_from(class).ok());
        let class = class.ok_or_else(|| ledger.refused(bytes as u64, "more than the address space".into()))?;
        let reservation = ledger.reserve(class as u64)?;
        let block = match stock.take(class as u64, first != First::Any) {
            Some(mut block) => {
                // Launches of the previous owner may still run; those of the next owner run after them.
                block.uses().forget_outcome();
                if first == First::Zeros {
                    block.overwritten(bytes).fill(0);
                }
                block
            }
            None => {
                stock.make_room(class as u64);
                Block::zeroed(class).ok_or_else(|| ledger.refused(class as u64, "out of memory".into()))?
            }
        };
        Ok(Storage::Host(HostMemory::new(reservation, block, stock)))
    }

    fn release_kept_memory(&self) {
        self.stock.clear();
    }

    fn wait(&self) -> Result<()> {
        self.queue.wait()
    }

    fn compile(&self, source: Arc<Source>) -> Box<dyn Executable> {
        match self.device.kind {
            DeviceKind::Interpreter => Box::new(Traced(source)),
            DeviceKind::Cpu | DeviceKind::Gpu => Box::new(Native::new(source)),
        }
    }
}

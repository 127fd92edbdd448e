//! Host memory as the CPU and the interpreter use it: booked, and kept for reuse.
use super::ledger::{Ledger, Reservation};
use super::memory::{Block, physical_bytes};
use super::name::Device;
use super::reuse::{Stock, size_class};
use crate::error::Result;
use std::sync::Arc;

/// The host's memory as one client sees it.
pub(super) struct Host {
    pub(super) device: Device,
    pub(super) ledger: Arc<Ledger>,
    pub(super) stock: Arc<Stock<Block>>,
}

impl Host {
    pub(super) fn new(device: Device) -> Host {
        let ledger = Ledger::new(device.id(), physical_bytes());
        let stock = Arc::new(Stock::new(ledger.clone()));
        Host { device, ledger, stock }
    }

    /// A block of the size class of `bytes`, and its booking.
    pub(super) fn allocate(&self, bytes: usize, zeroed: bool) -> Result<(HostMemory, Reservation)> {
        let (ledger, stock) = (&self.ledger, &self.stock);
        let class = size_class(bytes as u64).and_then(|class| usize::try_from(class).ok());
        let class = class.ok_or_else(|| ledger.refused(bytes as u64, "more than the address space".into()))?;
        let reservation = ledger.reserve(class as u64)?;
        let block = match stock.take(class as u64) {
            Some(mut block) => {
                // Launches of its last owner may go on; those of its next one come after them.
                block.uses().forget_outcome();
                if zeroed {
                    block.overwritten(bytes).fill(0);
                }
                block
            }
            None => {
                stock.make_room(class as u64);
                Block::zeroed(class).ok_or_else(|| ledger.refused(class as u64, "out of memory".into()))?
            }
        };
        Ok((HostMemory { block: Some(block), stock: stock.clone() }, reservation))
    }
}

/// A block of host memory. Dropped, it is kept for the next allocation of its size.
pub(crate) struct HostMemory {
    /// `None` only while being dropped.
    block: Option<Block>,
    stock: Arc<Stock<Block>>,
}

impl HostMemory {
    pub(super) fn block(&self) -> &Block {
        self.block.as_ref().expect("there until it is dropped")
    }

    pub(super) fn block_mut(&mut self) -> &mut Block {
        self.block.as_mut().expect("there until it is dropped")
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.block.take().into_iter().for_each(|block| self.stock.give(block));
    }
}

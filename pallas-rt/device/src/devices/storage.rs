//! The memory of buffers: a block of the host's, or memory that is reached through a driver.
use super::ledger::Reservation;
use super::memory::Block;
use super::reuse::Stock;
use crate::error::Result;
use std::any::Any;
use std::sync::Arc;

/// First contents of new memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    /// Anything: a launch writes it.
    Any,
    /// Anything: the host writes it at once, and should not have to wait for launches of the memory's previous owner.
    Host,
    /// Zeros.
    Zeros,
}

/// The memory of a buffer.
pub enum Storage {
    /// Bytes that the host can address.
    Host(HostMemory),
    /// Memory of a device that is accessed through a driver.
    Device(Box<dyn DeviceMemory>),
}

/// Memory that the host accesses by copying.
pub trait DeviceMemory: Any + Send + Sync {
    /// Copies the first `bytes` bytes to the host, after all work launched so far.
    fn read(&self, bytes: usize) -> Result<Vec<u8>>;

    /// Overwrites the bytes from the start, after all work launched so far.
    fn write(&self, bytes: &[u8]) -> Result<()>;

    /// Overwrites the first `bytes` bytes with those of other memory of the same device, which begin at `start`, a multiple
    /// of 4, without waiting on the host.
    fn copy_from(&self, other: &dyn DeviceMemory, start: usize, bytes: usize) -> Result<()>;
}

/// A block of host memory and its reservation. A dropped block is kept for the next allocation of its size.
pub struct HostMemory {
    /// `None` only during the drop.
    held: Option<(Reservation, Block)>,
    stock: Arc<Stock<Block>>,
}

impl HostMemory {
    pub(super) fn new(reservation: Reservation, block: Block, stock: &Arc<Stock<Block>>) -> HostMemory {
        HostMemory { held: Some((reservation, block)), stock: stock.clone() }
    }

    pub(super) fn block(&self) -> &Block {
        &self.held.as_ref().expect("there until it is dropped").1
    }

    pub(super) fn block_mut(&mut self) -> &mut Block {
        &mut self.held.as_mut().expect("there until it is dropped").1
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let Some((reservation, block)) = self.held.take() else { return };
        // The memory kept for reuse is limited by what is not reserved.
        drop(reservation);
        self.stock.give(block);
    }
}

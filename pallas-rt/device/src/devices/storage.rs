//! The memory of buffers: a block of the host, or memory that is accessed through a driver.
use super::ledger::MemoryReservation;
use super::memory::HostBlock;
use super::memory_pool::MemoryPool;
use crate::error::Result;
use std::any::Any;
use std::sync::Arc;

/// Initial contents of new memory: zeros, or unspecified ones, which a launch or the host overwrites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InitialContents {
    /// Unspecified, for memory that a launch writes.
    Unspecified,
    /// Unspecified, for memory that the host writes at once; it should not have to wait for launches of the previous
    /// owner.
    HostWrites,
    /// All bytes are 0.
    Zeros,
}

/// The memory of a buffer: a block of the host, or memory of a device that a driver accesses.
pub enum BufferStorage {
    /// Bytes that the host can address.
    Host(HostMemory),
    /// Memory of a device, accessed through a driver.
    Device(Box<dyn DeviceMemory>),
}

/// Memory that the host accesses by copying.
pub trait DeviceMemory: Any + Send + Sync {
    /// Copies the first `bytes` bytes to the host, after all work launched so far.
    fn read(&self, bytes: usize) -> Result<Vec<u8>>;

    /// Overwrites the bytes from the start with `bytes`, after all work launched so far.
    fn write(&self, bytes: &[u8]) -> Result<()>;

    /// Overwrites the first `bytes` bytes with those of other memory of the same device, from byte `start` on, a
    /// multiple of 4, without blocking the host.
    fn copy_from(&self, other: &dyn DeviceMemory, start: usize, bytes: usize) -> Result<()>;
}

/// A block of host memory and its reservation. The memory of a dropped block is kept for the next allocation of its
/// size.
pub struct HostMemory {
    /// The block; `None` only during the drop.
    held: Option<(MemoryReservation, HostBlock)>,
    stock: Arc<MemoryPool<HostBlock>>,
}

impl HostMemory {
    pub(super) fn new(
        reservation: MemoryReservation,
        block: HostBlock,
        pool: &Arc<MemoryPool<HostBlock>>,
    ) -> HostMemory {
        HostMemory { held: Some((reservation, block)), stock: pool.clone() }
    }

    pub(super) fn block(&self) -> &HostBlock {
        &self.held.as_ref().expect("there until it is dropped").1
    }

    pub(super) fn block_mut(&mut self) -> &mut HostBlock {
        &mut self.held.as_mut().expect("there until it is dropped").1
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let Some((reservation, block)) = self.held.take() else { return };
        // The memory kept for reuse is limited by what is not reserved.
        drop(reservation);
        self.stock.return_block(block);
    }
}

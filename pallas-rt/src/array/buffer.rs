//! Bytes on a device.
use super::client::Client;
use super::ledger::Reservation;
use super::memory::Block;
use crate::error::Result;
use std::fmt;

/// A piece of a client's memory. Dropped, it is kept for the next allocation of its size.
///
/// Shared buffers are only read; writing needs `&mut`, which the uniquely owned [`Array`](crate::Array) gives.
pub struct Buffer {
    client: Client,
    len: usize,
    storage: Storage,
    /// `None` for memory that the user owns.
    reservation: Option<Reservation>,
}

enum Storage {
    /// `None` only while being dropped.
    Host(Option<Block>),
    #[cfg(feature = "gpu")]
    Gpu(crate::gpu::Memory),
}

impl Buffer {
    /// `len` bytes with unspecified contents.
    pub(crate) fn uninitialised(client: &Client, len: usize) -> Result<Buffer> {
        Buffer::allocate(client, len, false)
    }

    /// `len` zeros.
    pub(crate) fn zeroed(client: &Client, len: usize) -> Result<Buffer> {
        Buffer::allocate(client, len, true)
    }

    /// These bytes.
    pub(crate) fn holding(client: &Client, bytes: &[u8]) -> Result<Buffer> {
        let mut buffer = Buffer::uninitialised(client, bytes.len())?;
        buffer.write(bytes)?;
        Ok(buffer)
    }

    #[cfg(feature = "gpu")]
    fn allocate(client: &Client, len: usize, zeroed: bool) -> Result<Buffer> {
        match (client.allocate_host(len, zeroed), client.gpu_runtime()) {
            (None, Some(gpu)) => {
                let (memory, reservation) = gpu.allocate(len, zeroed)?;
                Ok(Buffer {
                    client: client.clone(),
                    len,
                    storage: Storage::Gpu(memory),
                    reservation: Some(reservation),
                })
            }
            (host, _) => Buffer::on_host(client, len, host),
        }
    }

    #[cfg(not(feature = "gpu"))]
    fn allocate(client: &Client, len: usize, zeroed: bool) -> Result<Buffer> {
        Buffer::on_host(client, len, client.allocate_host(len, zeroed))
    }

    fn on_host(client: &Client, len: usize, allocation: Option<Result<(Block, Reservation)>>) -> Result<Buffer> {
        let (block, reservation) = allocation.expect("a client's memory is on the host or on a GPU")?;
        let storage = Storage::Host(Some(block));
        Ok(Buffer { client: client.clone(), len, storage, reservation: Some(reservation) })
    }

    /// A buffer of the user's own.
    #[cfg(feature = "gpu")]
    pub(crate) fn of_wgpu(client: &Client, memory: crate::gpu::Memory, len: usize) -> Buffer {
        Buffer { client: client.clone(), len, storage: Storage::Gpu(memory), reservation: None }
    }

    /// The client it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes in place, where they are in host memory.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.storage {
            Storage::Host(block) => block.as_ref().map(|block| block.bytes(self.len)),
            #[cfg(feature = "gpu")]
            Storage::Gpu(_) => None,
        }
    }

    /// The bytes in place, to be written, where they are in host memory.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.storage {
            Storage::Host(block) => block.as_mut().map(|block| block.bytes_mut(self.len)),
            #[cfg(feature = "gpu")]
            Storage::Gpu(_) => None,
        }
    }

    /// Start of the host memory, a multiple of 64; null on a GPU.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.storage {
            Storage::Host(block) => block.as_ref().map_or(std::ptr::null(), Block::as_ptr),
            #[cfg(feature = "gpu")]
            Storage::Gpu(_) => std::ptr::null(),
        }
    }

    /// Start of the host memory, to be written; null on a GPU.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        match &mut self.storage {
            Storage::Host(block) => block.as_mut().map_or(std::ptr::null_mut(), Block::as_mut_ptr),
            #[cfg(feature = "gpu")]
            Storage::Gpu(_) => std::ptr::null_mut(),
        }
    }

    /// The wgpu buffer, on a GPU. It is a multiple of 16 bytes and may be longer than [`Buffer::len`].
    #[cfg(feature = "gpu")]
    pub fn wgpu(&self) -> Option<&wgpu::Buffer> {
        match &self.storage {
            Storage::Host(_) => None,
            Storage::Gpu(memory) => Some(memory.wgpu()),
        }
    }

    /// Copies the bytes to the host; waits for the kernels that write them.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        match &self.storage {
            Storage::Host(_) => Ok(self.bytes().unwrap_or_default().to_vec()),
            #[cfg(feature = "gpu")]
            Storage::Gpu(memory) => memory.read(self.len),
        }
    }

    /// Overwrites all bytes with those of a buffer of the same client and length; the host does not wait.
    pub(crate) fn copy_from(&mut self, other: &Buffer) -> Result<()> {
        assert!(self.len == other.len && self.client == other.client, "{other:?} into {self:?}");
        match (&mut self.storage, &other.storage) {
            (Storage::Host(Some(to)), Storage::Host(Some(from))) => {
                to.bytes_mut(self.len).copy_from_slice(from.bytes(self.len));
                Ok(())
            }
            #[cfg(feature = "gpu")]
            (Storage::Gpu(to), Storage::Gpu(from)) => to.copy_from(from, self.len),
            _ => unreachable!("living buffers of one client are of one kind"),
        }
    }

    /// Overwrites the bytes from the start.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= self.len, "{} bytes into a buffer of {}", bytes.len(), self.len);
        match &mut self.storage {
            Storage::Host(block) => {
                if let Some(block) = block {
                    block.bytes_mut(bytes.len()).copy_from_slice(bytes);
                }
                Ok(())
            }
            #[cfg(feature = "gpu")]
            Storage::Gpu(memory) => memory.write(bytes),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Booked out before the block is offered to the stock, whose room is what is not in use.
        self.reservation = None;
        match &mut self.storage {
            Storage::Host(block) => {
                if let Some(block) = block.take() {
                    self.client.free_host(block);
                }
            }
            #[cfg(feature = "gpu")]
            Storage::Gpu(_) => {}
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes on {})", self.len, self.client.device())
    }
}

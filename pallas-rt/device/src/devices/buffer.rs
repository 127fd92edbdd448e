//! Buffers: bytes in a client's memory.
use super::client::Client;
use super::memory::HostBlock;
use super::storage::{BufferStorage, DeviceMemory, InitialContents};
use crate::error::Result;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};

/// Memory of a client. The memory of a dropped buffer is kept for the next allocation of its size.
///
/// Shared buffers are read-only; writing needs a [`BufferMut`], which an `Array` with a single owner gives.
///
/// ```
/// use pallas_rt::Client;
/// let mut x = Client::cpu().array(&[1i32, 2], &[2])?;
/// assert_eq!(x.buffer()?.len(), 8);
/// let buffer = x.buffer_mut()?.expect("the array has no other owner");
/// let bytes = buffer.bytes_mut()?.expect("the CPU's buffers are in host memory");
/// bytes[..4].copy_from_slice(&7i32.to_ne_bytes());
/// assert_eq!(x.to_vec::<i32>()?, [7, 2]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
pub struct Buffer {
    client: Client,
    len: usize,
    storage: BufferStorage,
}

/// A panic cannot break an invariant: shared bytes are only read, and an exclusive owner may write any bytes.
impl UnwindSafe for Buffer {}
impl RefUnwindSafe for Buffer {}

impl Buffer {
    /// Allocates `len` bytes: zeros if `zeroed`, else with unspecified contents.
    #[doc(hidden)]
    pub fn allocate(client: &Client, len: usize, zeroed: bool) -> Result<Buffer> {
        Buffer::new(client, len, if zeroed { InitialContents::Zeros } else { InitialContents::Unspecified })
    }

    /// Allocates `len` bytes that the host will write.
    #[doc(hidden)]
    pub fn allocate_for_host(client: &Client, len: usize) -> Result<Buffer> {
        Buffer::new(client, len, InitialContents::HostWrites)
    }

    fn new(client: &Client, len: usize, first: InitialContents) -> Result<Buffer> {
        let storage = client.runtime().clone().allocate(len, first)?;
        Ok(Buffer { client: client.clone(), len, storage })
    }

    /// Wraps device memory that the user allocated.
    #[allow(dead_code, reason = "for the wgpu runtime, which a build may lack")]
    pub(super) fn from_user_memory(client: &Client, len: usize, memory: Box<dyn DeviceMemory>) -> Buffer {
        Buffer { client: client.clone(), len, storage: BufferStorage::Device(memory) }
    }

    /// Allocates a buffer that holds these bytes.
    #[doc(hidden)]
    pub fn from_bytes(client: &Client, bytes: &[u8]) -> Result<Buffer> {
        let mut buffer = Buffer::allocate_for_host(client, bytes.len())?;
        buffer.write(bytes)?;
        Ok(buffer)
    }

    /// The client whose memory it is.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Borrows the bytes if they are in host memory, else returns `None`. Waits for the kernels that write them.
    ///
    /// # Errors
    /// The error of the last of these kernels.
    pub fn bytes(&self) -> Result<Option<&[u8]>> {
        match &self.storage {
            BufferStorage::Host(memory) => memory.block().bytes(self.len).map(Some),
            BufferStorage::Device(_) => Ok(None),
        }
    }

    /// Borrows the bytes for writing; see [`BufferMut::bytes_mut`].
    #[doc(hidden)]
    pub fn bytes_mut(&mut self) -> Result<Option<&mut [u8]>> {
        match &mut self.storage {
            BufferStorage::Host(memory) => memory.block_mut().bytes_mut(self.len).map(Some),
            BufferStorage::Device(_) => Ok(None),
        }
    }

    /// Start of the host memory, a multiple of 64; null on a GPU. Waits for the kernels that write the bytes.
    pub fn as_ptr(&self) -> *const u8 {
        // The error is reported when the array is read.
        let _ = self.bytes();
        self.start_ptr()
    }

    /// Start of the host memory for writing; see [`BufferMut::as_mut_ptr`].
    #[doc(hidden)]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        if let Some(block) = self.host_block() {
            block.launch_uses().wait_for_all();
        }
        self.start_ptr()
    }

    /// Start of the host memory, which kernels may still be using; null on a GPU.
    pub(super) fn start_ptr(&self) -> *mut u8 {
        self.host_block().map_or(std::ptr::null_mut(), HostBlock::start_ptr)
    }

    /// The block of host memory; `None` on a GPU.
    pub(super) fn host_block(&self) -> Option<&HostBlock> {
        match &self.storage {
            BufferStorage::Host(memory) => Some(memory.block()),
            BufferStorage::Device(_) => None,
        }
    }

    /// The device memory; `None` if the bytes are in host memory.
    #[allow(dead_code, reason = "for the wgpu runtime, which a build may lack")]
    pub(super) fn device_memory(&self) -> Option<&dyn DeviceMemory> {
        match &self.storage {
            BufferStorage::Host(_) => None,
            BufferStorage::Device(memory) => Some(&**memory),
        }
    }

    /// Waits for the kernels that write the bytes, without reading them.
    ///
    /// # Errors
    /// The error of the last of these kernels; a lost device.
    #[doc(hidden)]
    pub fn wait(&self) -> Result<()> {
        match &self.storage {
            BufferStorage::Host(memory) => memory.block().launch_uses().wait_for_writes(),
            BufferStorage::Device(_) => self.client.block_until_ready(),
        }
    }

    /// The bytes, copied from the device if they are not in host memory. Waits for the kernels that write them.
    #[doc(hidden)]
    pub fn contents(&self) -> Result<Cow<'_, [u8]>> {
        match &self.storage {
            BufferStorage::Host(memory) => memory.block().bytes(self.len).map(Cow::Borrowed),
            BufferStorage::Device(memory) => memory.read(self.len).map(Cow::Owned),
        }
    }

    /// Overwrites all bytes with those of a buffer of the same client and length, without blocking the host.
    #[doc(hidden)]
    pub fn copy_from(&mut self, other: &Buffer) -> Result<()> {
        assert!(self.len == other.len, "{other:?} into {self:?}");
        self.copy_part(other, 0)
    }

    /// Overwrites all bytes with those of `other`, a buffer of the same client, from byte `start` on, which is a
    /// multiple of 4; does not block the host.
    #[doc(hidden)]
    pub fn copy_part(&mut self, other: &Buffer, start: usize) -> Result<()> {
        let end = start + self.len;
        assert!(end <= other.len && start.is_multiple_of(4), "bytes {start}.. of {other:?} into {self:?}");
        assert!(self.client == other.client, "{other:?} into {self:?}");
        match (&mut self.storage, &other.storage) {
            (BufferStorage::Host(to), BufferStorage::Host(from)) => {
                to.block_mut().bytes_to_overwrite(self.len).copy_from_slice(&from.block().bytes(end)?[start..]);
                Ok(())
            }
            (BufferStorage::Device(to), BufferStorage::Device(from)) => to.copy_from(&**from, start, self.len),
            (BufferStorage::Host(_), BufferStorage::Device(_)) | (BufferStorage::Device(_), BufferStorage::Host(_)) => {
                unreachable!("buffers of one client are of one kind")
            }
        }
    }

    /// Overwrites the first bytes through a shared reference; the buffer is in host memory.
    ///
    /// # Safety
    /// Nobody else reads or writes the buffer meanwhile.
    pub(super) unsafe fn overwrite(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "{} bytes into a buffer of {}", bytes.len(), self.len);
        // SAFETY: the block has `len` bytes, and the caller guarantees exclusive access.
        unsafe { self.start_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Overwrites the first bytes with `bytes`.
    #[doc(hidden)]
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= self.len, "{} bytes into a buffer of {}", bytes.len(), self.len);
        match &mut self.storage {
            BufferStorage::Host(memory) => {
                memory.block_mut().bytes_to_overwrite(bytes.len()).copy_from_slice(bytes);
                Ok(())
            }
            BufferStorage::Device(memory) => memory.write(bytes),
        }
    }
}

/// Exclusive access to the memory of an array. Not a `&mut Buffer`, which could be swapped for memory of another
/// length.
///
/// ```compile_fail
/// use pallas_rt::Client;
/// let (mut x, mut y) = (Client::cpu().array(&[1i32, 2], &[2])?, Client::cpu().array(&[1i32], &[1])?);
/// std::mem::swap(&mut **x.buffer_mut()?.unwrap(), &mut **y.buffer_mut()?.unwrap());
/// # Ok::<(), pallas_rt::Error>(())
/// ```
///
/// ```compile_fail,E0616
/// use pallas_rt::Client;
/// let (mut x, mut y) = (Client::cpu().array(&[1i32, 2], &[2])?, Client::cpu().array(&[1i32], &[1])?);
/// std::mem::swap(x.buffer_mut()?.unwrap().0, y.buffer_mut()?.unwrap().0);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Debug)]
pub struct BufferMut<'a>(&'a mut Buffer);

impl<'a> BufferMut<'a> {
    /// Wraps the memory of an array that has a single owner.
    #[doc(hidden)]
    pub fn new(buffer: &'a mut Buffer) -> BufferMut<'a> {
        BufferMut(buffer)
    }

    /// Borrows the bytes for writing if they are in host memory, else returns `None`. Waits for the kernels that use
    /// them.
    ///
    /// # Errors
    /// The error of the last kernel that wrote them.
    pub fn bytes_mut(self) -> Result<Option<&'a mut [u8]>> {
        self.0.bytes_mut()
    }

    /// Start of the host memory for writing; null on a GPU. Waits for the kernels that use it.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

impl Deref for BufferMut<'_> {
    type Target = Buffer;
    fn deref(&self) -> &Buffer {
        self.0
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes on {})", self.len, self.client.device())
    }
}

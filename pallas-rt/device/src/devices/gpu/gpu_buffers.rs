//! Buffers of a device: allocation, upload, read-back.
//!
//! Elements lie in a buffer as on the host: 32-bit types a word each, smaller ones packed, little-endian. A buffer is a
//! multiple of 16 bytes, so that shaders may view it as `vec4`s.
use super::device::{CaughtError, Gpu};
use crate::devices::ledger::MemoryReservation;
use crate::devices::memory_pool::{PooledBlock, size_class};
use crate::devices::runtime::Runtime;
use crate::devices::storage::DeviceMemory;
use crate::error::{Error, Result};
use std::any::Any;
use std::sync::{Arc, mpsc};

/// Size in bytes from which an upload is submitted at once, so that wgpu's staging memory does not pile up.
const MIN_LARGE_UPLOAD_BYTES: usize = 16 << 20;

/// Usages of every buffer, all the same, so that a freed buffer serves any purpose.
const BUFFER_USAGES: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE
    .union(wgpu::BufferUsages::UNIFORM)
    .union(wgpu::BufferUsages::COPY_SRC)
    .union(wgpu::BufferUsages::COPY_DST);

/// A buffer that this crate allocated.
pub(super) struct GpuBlock(wgpu::Buffer);

impl PooledBlock for GpuBlock {
    fn size(&self) -> u64 {
        self.0.size()
    }
}

/// A buffer in use. When it is dropped it is kept for the next allocation of its size; kernels that still use it run
/// before the next owner's, since a device has one queue.
pub struct GpuMemory {
    gpu: Arc<Gpu>,
    buffer: wgpu::Buffer,
    /// The buffer's reservation in the ledger; `None` for a buffer of the user's, which is not kept for reuse.
    reservation: Option<MemoryReservation>,
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        // The reservation is released first, since the reuse limit is what is not reserved.
        if self.reservation.take().is_some() && !self.gpu.is_lost() {
            let _turn = self.gpu.lock_wgpu();
            self.gpu.stock.return_block(GpuBlock(self.buffer.clone()));
        }
    }
}

impl Gpu {
    /// Allocates a buffer of at least `len` bytes: zeros if `zeroed`, else with unspecified contents.
    pub(super) fn allocate_buffer(self: &Arc<Self>, len: u64, zeroed: bool) -> Result<GpuMemory> {
        self.check_device_not_lost()?;
        let _turn = self.lock_wgpu();
        let size = self.size_for_allocation(len)?;
        let reservation = Some(self.ledger().reserve(size)?);
        let (buffer, fresh) = match self.stock.take_block(size, false) {
            Some(GpuBlock(buffer)) => (buffer, false),
            None => (self.create_buffer(size)?, true),
        };
        let memory = GpuMemory { gpu: self.clone(), buffer, reservation };
        if zeroed && !fresh {
            // wgpu clears fresh buffers itself.
            self.encode("clear a buffer", |encoder| encoder.clear_buffer(&memory.buffer, 0, None))?;
        }
        Ok(memory)
    }

    /// The size class for `len` bytes, or the exact size if only that is within the device's limits.
    fn size_for_allocation(&self, len: u64) -> Result<u64> {
        let limits = &self.device().target;
        let most = limits.max_buffer_bytes.min(limits.max_binding_bytes);
        let exact = len.max(16).next_multiple_of(16);
        if exact > most {
            return Err(Error::Limit {
                what: "bytes in one array".into(),
                asked: len,
                limit: most,
                device: self.device().to_string(),
                help: "split the array, or use the CPU: `Client::cpu()`",
            });
        }
        Ok(size_class(exact).filter(|&class| class <= most).unwrap_or(exact))
    }

    /// Creates a buffer; if memory is short, frees buffers kept for reuse and tries again.
    fn create_buffer(&self, size: u64) -> Result<wgpu::Buffer> {
        self.stock.shrink_for(size);
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage: BUFFER_USAGES, mapped_at_creation: false };
        let create = || self.capture_error(|| self.wgpu.create_buffer(&descriptor));
        let created = match create() {
            // Release the memory kept for reuse and try again; it is free once the work that used it is done.
            Err(CaughtError::Memory(_)) => {
                self.stock.drop_all();
                self.wait()?;
                create()
            }
            created => created,
        };
        created.map_err(|caught| match caught {
            CaughtError::Memory(cause) => self.ledger().refused_allocation_error(size, cause),
            CaughtError::Refused(message) => self.refused_action_error("allocate a buffer", message),
        })
    }

    /// Wraps a buffer of the user's as the memory of an array of this length in bytes and shape.
    pub fn wrap_wgpu_buffer(self: &Arc<Self>, buffer: wgpu::Buffer, len: usize, shape: &[usize]) -> Result<GpuMemory> {
        use wgpu::BufferUsages as Usage;
        let needed = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
        if !buffer.usage().contains(needed) {
            return Err(Error::Unsupported {
                what: format!("use for a buffer with the usages {:?} only", buffer.usage()),
                device: self.device().to_string(),
                help: "create it with STORAGE | COPY_SRC | COPY_DST",
            });
        }
        let expected = len.max(16).next_multiple_of(16);
        let found = usize::try_from(buffer.size()).unwrap_or(usize::MAX);
        if found < expected {
            return Err(Error::Length {
                called: pallas_ir::Loc::NONE,
                shape: shape.to_vec(),
                expected,
                found,
                unit: "bytes (rounded up to 16)",
            });
        }
        Ok(GpuMemory { gpu: self.clone(), buffer, reservation: None })
    }
}

impl GpuMemory {
    /// Overwrites the bytes from the start, before the commands that this thread has recorded and not submitted.
    pub(super) fn upload(&self, bytes: &[u8]) -> Result<()> {
        let (words, tail) = bytes.split_at(bytes.len() & !3);
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        self.gpu.try_action("upload data", || {
            let queue = &self.gpu.queue;
            if !words.is_empty() {
                queue.write_buffer(&self.buffer, 0, words);
            }
            if !tail.is_empty() {
                queue.write_buffer(&self.buffer, words.len() as u64, &last);
            }
            if bytes.len() >= MIN_LARGE_UPLOAD_BYTES {
                queue.submit([]);
            }
        })
    }

    /// The wgpu buffer.
    pub fn wgpu(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}

/// Binds the first `len` bytes of a buffer, rounded up to 16.
pub(super) fn bind_prefix(buffer: &wgpu::Buffer, len: u64) -> wgpu::BindingResource<'_> {
    let size = wgpu::BufferSize::new(len.max(16).next_multiple_of(16));
    wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: 0, size })
}

impl DeviceMemory for GpuMemory {
    /// Overwrites the bytes from the start, after all work submitted so far.
    fn write(&self, bytes: &[u8]) -> Result<()> {
        self.gpu.flush()?;
        self.upload(bytes)
    }

    /// Overwrites the first `len` bytes with another buffer's from `start`, after all work submitted so far.
    fn copy_from(&self, other: &dyn DeviceMemory, start: usize, len: usize) -> Result<()> {
        let other = (other as &dyn Any).downcast_ref::<GpuMemory>().expect("memory of one device is of one kind");
        if len == 0 {
            return self.gpu.check_device_not_lost();
        }
        let bytes = (len as u64).next_multiple_of(4);
        self.gpu.encode("copy an array", |encoder| {
            encoder.copy_buffer_to_buffer(&other.buffer, start as u64, &self.buffer, 0, bytes);
        })
    }

    /// Copies the first `len` bytes to the host. Waits for the work submitted so far and for none that comes later.
    fn read(&self, len: usize) -> Result<Vec<u8>> {
        if len == 0 {
            return self.gpu.check_device_not_lost().map(|()| Vec::new());
        }
        let gpu = &self.gpu;
        let _turn = gpu.lock_wgpu();
        gpu.flush_and_check()?;
        let size = (len as u64).next_multiple_of(4);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let (sender, receiver) = mpsc::channel();
        let (staging, submission) = gpu.try_action("read an array back", || {
            let staging = gpu.wgpu.create_buffer(&descriptor);
            let mut encoder = gpu.wgpu.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&self.buffer, 0, &staging, 0, size);
            let submission = gpu.queue.submit([encoder.finish()]);
            staging.map_async(wgpu::MapMode::Read, .., move |result| {
                // The receiver is gone only if the reader gave up.
                let _ = sender.send(result);
            });
            (staging, submission)
        })?;
        gpu.poll(wgpu::PollType::Wait { submission_index: Some(submission), timeout: None })?;
        // Another thread's poll may be the one that runs the callback, so wait for it rather than look.
        match receiver.recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(gpu.refused_action_error("map an array for reading", error.to_string())),
            Err(_) => return Err(gpu.record_device_loss("it dropped a read-back".into())),
        }
        let view = staging
            .get_mapped_range(..)
            .map_err(|error| gpu.refused_action_error("map an array", error.to_string()))?;
        Ok(view[..len].to_vec())
    }
}

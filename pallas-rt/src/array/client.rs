//! A client: one device with its memory.
use super::device::{Device, DeviceKind, DeviceLimits};
use super::ledger::{Ledger, MemoryStats, Reservation};
use super::memory::{Block, physical_bytes};
use super::reuse::{Stock, size_class};
use crate::error::{Error, Result};
use pallas_ir::DType;
use std::fmt;
use std::sync::Arc;

/// A device that runs kernels, with its memory. Cheap to clone; usable from several threads at once.
///
/// Arrays live on a client, and a call runs where its arrays live. `Client::cpu()` twice is the same client;
/// [`Client::isolated`] makes another one of the same device.
///
/// ```
/// use pallas_rt::{Array, Client};
/// let client = Client::from_env()?; // PALLAS_DEVICE, else the best GPU, else the CPU
/// println!("{}", client.why());
/// let x = client.array(&[1.0f32, 2.0, 3.0], &[3])?;
/// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    why: Arc<str>,
}

struct Shared {
    device: Device,
    ledger: Arc<Ledger>,
    memory: Memory,
}

/// Where a client's buffers are.
enum Memory {
    Host(Stock<Block>),
    #[cfg(feature = "gpu")]
    Gpu(Arc<crate::gpu::Gpu>),
}

impl Client {
    pub(crate) fn on_host(kind: DeviceKind, why: &str) -> Self {
        Client::in_host_memory(Device::host(kind), why)
    }

    /// The CPU, telling whoever asks that it is a device with such limits: functions choose blocks for that one, and
    /// [`explain`](crate::explain) has its shaders, whether it is there or not.
    ///
    /// ```
    /// use pallas_rt::{Client, Profile};
    /// let mut limits = Client::cpu().limits().clone();
    /// (limits.profile, limits.workgroup_bytes) = (Profile::Gpu, 48 << 10);
    /// (limits.max_threads, limits.max_threads_per_axis) = (256, [256, 256, 64]);
    /// assert_eq!(Client::cpu_as(limits).limits().workgroup_bytes, 48 << 10);
    /// ```
    pub fn cpu_as(limits: DeviceLimits) -> Self {
        Client::in_host_memory(Device { limits, ..Device::host(DeviceKind::Cpu) }, "with the limits of another device")
    }

    fn in_host_memory(device: Device, why: &str) -> Self {
        let ledger = Ledger::new(device.id(), physical_bytes());
        let memory = Memory::Host(Stock::new(ledger.clone()));
        Client { shared: Arc::new(Shared { device, ledger, memory }), why: why.into() }
    }

    #[cfg(feature = "gpu")]
    pub(crate) fn on_gpu(gpu: crate::gpu::Gpu, why: &str) -> Self {
        let (device, ledger) = (gpu.device().clone(), gpu.ledger().clone());
        let memory = Memory::Gpu(Arc::new(gpu));
        Client { shared: Arc::new(Shared { device, ledger, memory }), why: why.into() }
    }

    /// The same client, chosen for another reason.
    pub(crate) fn because(mut self, why: &str) -> Self {
        self.why = why.into();
        self
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Which executor runs this client's kernels.
    pub fn kind(&self) -> DeviceKind {
        self.device().kind
    }

    /// What the device can do.
    pub fn limits(&self) -> &DeviceLimits {
        &self.device().limits
    }

    /// Which device this is and why it was chosen.
    pub fn why(&self) -> String {
        format!("{}: {}", self.device(), self.why)
    }

    /// Memory in use, its peak, and the limit.
    pub fn memory(&self) -> MemoryStats {
        self.shared.ledger.stats()
    }

    /// Sets the most bytes that arrays and scratch may occupy; an allocation beyond it is an error and changes nothing.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.shared.ledger.set_limit(bytes);
    }

    /// Gives freed memory that was kept for reuse back to the system.
    pub fn release_kept_memory(&self) {
        match &self.shared.memory {
            Memory::Host(stock) => stock.clear(),
            #[cfg(feature = "gpu")]
            Memory::Gpu(gpu) => gpu.release_kept_memory(),
        }
    }

    /// Waits until everything dispatched so far is done.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub fn block_until_ready(&self) -> Result<()> {
        match &self.shared.memory {
            Memory::Host(_) => Ok(()),
            #[cfg(feature = "gpu")]
            Memory::Gpu(gpu) => gpu.wait(),
        }
    }

    /// The GPU runtime, on a GPU.
    #[cfg(feature = "gpu")]
    pub(crate) fn gpu_runtime(&self) -> Option<&Arc<crate::gpu::Gpu>> {
        match &self.shared.memory {
            Memory::Host(_) => None,
            Memory::Gpu(gpu) => Some(gpu),
        }
    }

    /// Refuses element types that the device cannot hold.
    pub(crate) fn check_dtype(&self, dtype: DType) -> Result<()> {
        let is_64_bit = matches!(dtype, DType::F64 | DType::I64 | DType::U64);
        if !is_64_bit || self.limits().has_64_bit {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("element type {dtype}"),
            device: self.device().to_string(),
            help: "use a type of 32 bits or less, or the CPU: `Client::cpu()`",
        })
    }

    /// Host memory for `bytes`, with unspecified contents unless `zeroed`. `None` on a GPU.
    pub(crate) fn allocate_host(&self, bytes: usize, zeroed: bool) -> Option<Result<(Block, Reservation)>> {
        match &self.shared.memory {
            Memory::Host(stock) => Some(self.allocate_in(stock, bytes, zeroed)),
            #[cfg(feature = "gpu")]
            Memory::Gpu(_) => None,
        }
    }

    fn allocate_in(&self, stock: &Stock<Block>, bytes: usize, zeroed: bool) -> Result<(Block, Reservation)> {
        let ledger = &self.shared.ledger;
        let class = size_class(bytes as u64).and_then(|class| usize::try_from(class).ok());
        let class = class.ok_or_else(|| ledger.refused(bytes as u64, "more than the address space".into()))?;
        let reservation = ledger.reserve(class as u64)?;
        if let Some(mut block) = stock.take(class as u64) {
            if zeroed {
                block.bytes_mut(bytes).fill(0);
            }
            return Ok((block, reservation));
        }
        stock.make_room(class as u64);
        let block = Block::zeroed(class).ok_or_else(|| ledger.refused(class as u64, "out of memory".into()))?;
        Ok((block, reservation))
    }

    /// Takes a freed host block back.
    pub(crate) fn free_host(&self, block: Block) {
        match &self.shared.memory {
            Memory::Host(stock) => stock.give(block),
            #[cfg(feature = "gpu")]
            Memory::Gpu(_) => drop(block),
        }
    }
}

/// Two clients are equal if arrays of one can be used with the other.
impl PartialEq for Client {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for Client {}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.why())
    }
}

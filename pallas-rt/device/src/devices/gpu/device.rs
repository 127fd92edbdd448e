//! One wgpu device with its queue, and the conversion of its errors.
use super::command_encoder::CommandsByThread;
use super::counters::AtomicCounters;
use super::gpu_buffers::GpuBlock;
use super::opengl_lock::WgpuLock;
use crate::devices::ledger::MemoryLedger;
use crate::devices::lru::Lru;
use crate::devices::memory::physical_memory_bytes;
use crate::devices::memory_pool::MemoryPool;
use crate::devices::name::Device;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

/// Runtime of one wgpu device. Every method may be called from several threads.
pub struct Gpu {
    pub(super) device: Device,
    pub(super) wgpu: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) ledger: Arc<MemoryLedger>,
    pub(super) stock: MemoryPool<GpuBlock>,
    /// Compiled pipelines, by the fingerprint of their job.
    pub(super) pipelines: Lru<u128, PipelineSlot>,
    pub(super) counts: AtomicCounters,
    pub(super) programs: CommandsByThread,
    pub(super) trouble: Arc<DriverErrors>,
    /// Lock on wgpu that is held while the fields above are dropped.
    last: Option<WgpuLock>,
}

/// A pipeline, locked while it is compiled, so that only threads that need it wait for it.
pub(super) type PipelineSlot = Arc<Mutex<Option<wgpu::ComputePipeline>>>;

impl Drop for Gpu {
    fn drop(&mut self) {
        self.last = self.lock_wgpu();
    }
}

/// Errors that the driver reports outside of calls.
#[derive(Default)]
pub(super) struct DriverErrors {
    /// Reason why the device is lost.
    pub(super) lost: OnceLock<String>,
    /// The first error that no scope caught, until a caller waits and receives it.
    pub(super) stray: Mutex<Option<String>>,
}

/// An error that wgpu reported during a call.
pub(super) enum CaughtError {
    /// The device has no memory for the call.
    Memory(String),
    /// Any other error: a refused shader, an invalid binding.
    Refused(String),
}

impl Gpu {
    /// Creates a runtime for a device of the user's, whose callbacks are left to the user.
    pub(super) fn from_user_device(device: Device, wgpu: wgpu::Device, queue: wgpu::Queue) -> Gpu {
        // A software adapter uses the host's memory; no interface tells how much memory a graphics card has.
        let limit = if device.software { physical_memory_bytes() } else { u64::MAX };
        let ledger = MemoryLedger::new(device.to_string(), limit);
        let stock = MemoryPool::new(ledger.clone());
        // The cache of kernels counts the bytes of pipelines, so they count 0 here.
        let pipelines = Lru::new(|_| 0);
        let (counts, programs, trouble) = (AtomicCounters::default(), CommandsByThread::default(), Arc::default());
        Gpu { device, wgpu, queue, ledger, stock, pipelines, counts, programs, trouble, last: None }
    }

    /// Creates a runtime that owns its device and receives the driver's reports, at which wgpu would panic.
    pub(super) fn from_own_device(device: Device, wgpu: wgpu::Device, queue: wgpu::Queue) -> Gpu {
        let gpu = Gpu::from_user_device(device, wgpu, queue);
        let trouble = gpu.trouble.clone();
        gpu.wgpu.on_uncaptured_error(Arc::new(move |error| {
            trouble.stray.lock().get_or_insert(error.to_string());
        }));
        let trouble = gpu.trouble.clone();
        gpu.wgpu.set_device_lost_callback(move |reason, message| {
            trouble.lost.get_or_init(|| format!("{reason:?} {message}").trim().to_string());
        });
        gpu
    }

    /// Locks wgpu for this thread if the adapter is OpenGL's, which only one thread at a time may use; returns `None`
    /// for any other adapter.
    pub(super) fn lock_wgpu(&self) -> Option<WgpuLock> {
        (self.device.api == Device::GL).then(WgpuLock::take)
    }

    /// Returns an error if the device is lost.
    pub(super) fn check_device_not_lost(&self) -> Result<()> {
        match self.trouble.lost.get() {
            None => Ok(()),
            Some(message) => Err(Error::DeviceLost { device: self.device.to_string(), message: message.clone() }),
        }
    }

    /// Records that the device is lost, and returns the error.
    pub(super) fn record_device_loss(&self, message: String) -> Error {
        let message = self.trouble.lost.get_or_init(|| message).clone();
        Error::DeviceLost { device: self.device.to_string(), message }
    }

    /// Runs wgpu calls and returns the first error that they report on this thread.
    pub(super) fn capture_error<T>(&self, calls: impl FnOnce() -> T) -> std::result::Result<T, CaughtError> {
        let _turn = self.lock_wgpu();
        let memory = self.wgpu.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let internal = self.wgpu.push_error_scope(wgpu::ErrorFilter::Internal);
        let validation = self.wgpu.push_error_scope(wgpu::ErrorFilter::Validation);
        let value = calls();
        // On native platforms the reports are there when the call returns; nothing is waited for.
        let validation = pollster::block_on(validation.pop());
        let internal = pollster::block_on(internal.pop());
        if let Some(error) = pollster::block_on(memory.pop()) {
            return Err(CaughtError::Memory(error.to_string()));
        }
        match validation.or(internal) {
            Some(error) => Err(CaughtError::Refused(error.to_string().trim().to_string())),
            None => Ok(value),
        }
    }

    /// Runs wgpu calls and returns their first error, which says that `action` failed.
    pub(super) fn try_action<T>(&self, action: &str, calls: impl FnOnce() -> T) -> Result<T> {
        self.check_device_not_lost()?;
        self.capture_error(calls).map_err(|caught| match caught {
            CaughtError::Memory(cause) => {
                self.ledger.refused_allocation_error(0, format!("no memory to {action}: {cause}"))
            }
            CaughtError::Refused(message) => self.refused_action_error(action, message),
        })
    }

    /// Returns the error of an `action` that the driver refused with this message; if the device is lost, the error of
    /// that.
    pub(super) fn refused_action_error(&self, action: &str, message: String) -> Error {
        match self.check_device_not_lost() {
            Err(lost) => lost,
            Ok(()) => Error::Driver { action: action.into(), device: self.device.to_string(), message },
        }
    }

    /// Lets wgpu process finished work; `kind` says whether to wait.
    pub(super) fn poll(&self, kind: wgpu::PollType) -> Result<()> {
        self.check_device_not_lost()?;
        let _turn = self.lock_wgpu();
        // wgpu panics if it polls a lost device; this crate's locks are not held at that point.
        match catch_unwind(AssertUnwindSafe(|| self.wgpu.poll(kind))) {
            Ok(Ok(_)) => self.check_device_not_lost(),
            Ok(Err(error)) => Err(self.refused_action_error("wait for its work", error.to_string())),
            Err(_) => Err(self.record_device_loss("it failed while its work was waited for".into())),
        }
    }
}

//! Clients: a device with its memory.
use super::ledger::MemoryStats;
use super::name::{Device, DeviceKind};
use super::runtime::Runtime;
use crate::error::{DisplayedBytes, Error, Result};
use pallas_codegen::target::Target;
use pallas_ir::{At, DType, Diag, Loc};
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};

/// A device that runs kernels, with its memory; `pallas_rt::Client` adds arrays to it.
#[derive(Clone)]
pub struct Client {
    origin: Arc<ClientState>,
    /// Held by users' clients and their arrays, not by compiled functions, so that its count says whether users are
    /// left.
    #[allow(dead_code, reason = "it is there to be counted")]
    held: Option<Arc<()>>,
}

/// State that clones of a client share: a single allocation, since every array has a clone.
struct ClientState {
    runtime: Arc<dyn Runtime>,
    why: String,
    #[cfg_attr(not(feature = "mesh"), allow(dead_code, reason = "functions of arrays keep programs by clients"))]
    life: Weak<()>,
}

/// A panic leaves a client valid: locks are held for single operations, none of which leaves partial changes.
impl UnwindSafe for Client {}
impl RefUnwindSafe for Client {}

impl Client {
    pub(super) fn new(runtime: impl Runtime, why: &str) -> Self {
        let held = Arc::new(());
        let origin = ClientState { runtime: Arc::new(runtime), why: why.into(), life: Arc::downgrade(&held) };
        Client { origin: Arc::new(origin), held: Some(held) }
    }

    /// Returns a handle that does not count as a use of the client, for compiled functions in caches, which are dropped
    /// when [`is_in_use`](Client::is_in_use) is false: counted handles in them would keep the client for ever.
    #[cfg(feature = "mesh")]
    #[doc(hidden)]
    pub fn without_use_count(&self) -> Client {
        Client { held: None, ..self.clone() }
    }

    /// Returns a handle that counts as a use of the client while it lives, for arrays that users hold: as long as there
    /// is one, caches keep the client's compiled functions.
    #[cfg(feature = "mesh")]
    #[doc(hidden)]
    pub fn with_use_count(&self) -> Client {
        Client { held: self.origin.life.upgrade(), ..self.clone() }
    }

    /// Returns true while users hold the client or an array of it; when they do not, caches drop its compiled
    /// functions.
    #[cfg(feature = "mesh")]
    #[doc(hidden)]
    pub fn is_in_use(&self) -> bool {
        self.origin.life.strong_count() > 0
    }

    /// Returns the client with `why` as the reason for which its device was chosen, for messages.
    #[doc(hidden)]
    pub fn with_choice_reason(self, why: &str) -> Self {
        let ClientState { runtime, life, .. } = &*self.origin;
        let origin = ClientState { runtime: runtime.clone(), why: why.into(), life: life.clone() };
        Client { origin: Arc::new(origin), ..self }
    }

    /// Name, kind and limits of the device.
    pub fn device(&self) -> &Device {
        self.origin.runtime.device()
    }

    /// Kind of the device that runs this client's kernels.
    pub fn kind(&self) -> DeviceKind {
        self.device().kind
    }

    /// Limits of the device, and how it executes a kernel.
    pub fn target(&self) -> &Target {
        &self.device().target
    }

    /// Description of the device and of the reason why it was chosen.
    pub fn why(&self) -> String {
        format!("{}: {}", self.device(), self.origin.why)
    }

    /// Memory in use, its peak and the limit, in bytes.
    pub fn memory(&self) -> MemoryStats {
        self.origin.runtime.ledger().stats()
    }

    /// Sets the maximum number of bytes of arrays and scratch. An allocation beyond it is an error and changes nothing.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.origin.runtime.ledger().set_limit(bytes);
    }

    /// Returns freed memory that is kept for reuse to the system.
    pub fn release_kept_memory(&self) {
        self.origin.runtime.release_kept_memory();
    }

    /// Waits until all work launched so far has finished.
    ///
    /// # Errors
    /// The first error of that work that no reader has received; [`Error::DeviceLost`].
    pub fn block_until_ready(&self) -> Result<()> {
        self.origin.runtime.wait()
    }

    /// Returns an error if tiles and scratch of a kernel exceed the memory limit.
    #[doc(hidden)]
    pub fn check_memory_fits(&self, kernel: &str, bytes: u64) -> Result<()> {
        if self.has_memory_for(bytes) {
            return Ok(());
        }
        let message = format!(
            "its tiles and scratch take {}, {} of memory are free",
            DisplayedBytes(bytes),
            DisplayedBytes(self.free_bytes())
        );
        let diag = Diag::new("memory", At::Op, message, "use smaller blocks, or raise `set_memory_limit`");
        Err(Error::kernel(kernel, Loc::NONE, "", diag))
    }

    /// Returns true if a launch that needs `bytes` bytes besides its arrays is within the memory limit. On the host,
    /// bytes that fit the cache of a thread are not counted.
    #[doc(hidden)]
    pub fn has_memory_for(&self, bytes: u64) -> bool {
        const MAX_UNCOUNTED_HOST_BYTES: u64 = 16 << 20;
        let uncounted = if self.kind() == DeviceKind::Gpu { 0 } else { MAX_UNCOUNTED_HOST_BYTES };
        bytes <= uncounted || bytes <= self.free_bytes()
    }

    /// Number of bytes below the memory limit that are not in use.
    fn free_bytes(&self) -> u64 {
        let memory = self.memory();
        memory.limit.saturating_sub(memory.in_use)
    }

    /// Calls `f`, which launches several kernels on this thread; they are submitted together at its end.
    ///
    /// # Errors
    /// Those of `f`, and of the submission.
    #[cfg(feature = "mesh")]
    #[doc(hidden)]
    pub fn submit_together<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        /// Ends the series of launches of `submit_together` when it is dropped, even if the caller's function panics.
        struct OpenSubmission<'a>(&'a Client);
        impl Drop for OpenSubmission<'_> {
            fn drop(&mut self) {
                // `f` has failed, and its error is reported instead of this one.
                let _ = self.0.origin.runtime.end_submission();
            }
        }
        self.origin.runtime.begin_submission();
        let open = OpenSubmission(self);
        let made = f();
        std::mem::forget(open);
        let submitted = self.origin.runtime.end_submission();
        let made = made?;
        submitted.map(|()| made)
    }

    /// The implementation of this client's device.
    #[doc(hidden)]
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.origin.runtime
    }

    /// Returns an error for element types that the device does not support.
    #[doc(hidden)]
    pub fn check_dtype(&self, dtype: DType) -> Result<()> {
        let is_64_bit = matches!(dtype, DType::F64 | DType::I64 | DType::U64);
        if !is_64_bit || self.target().has_64_bit {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("element type {dtype}"),
            device: self.device().to_string(),
            help: "use a type of 32 bits or less, or the CPU: `Client::cpu()`",
        })
    }
}

impl std::hash::Hash for Client {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.origin.runtime).hash(state);
    }
}

/// Compares by device memory: two clients are equal if arrays of one can be used with the other.
impl PartialEq for Client {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.origin.runtime, &other.origin.runtime)
    }
}

impl Eq for Client {}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.why())
    }
}

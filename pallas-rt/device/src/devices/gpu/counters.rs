//! Counters of the pipelines and dispatches of a GPU client.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of pipelines and dispatches of a GPU client so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct GpuCounters {
    /// Pipelines made; those that this client had already do not count.
    pub pipelines_compiled: u64,
    /// Pipelines among them that the driver made of a binary from disk.
    pub binaries_reused: u64,
    /// Dispatches submitted.
    pub dispatches: u64,
    /// Submissions to the queue, of launches, copies and clears; a jitted function's launches share one.
    pub submissions: u64,
}

/// The counts of a device.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) compiled: AtomicU64,
    pub(super) reused: AtomicU64,
    pub(super) dispatches: AtomicU64,
    pub(super) submissions: AtomicU64,
}

impl Counts {
    pub(super) fn read(&self) -> GpuCounters {
        GpuCounters {
            pipelines_compiled: self.compiled.load(Relaxed),
            binaries_reused: self.reused.load(Relaxed),
            dispatches: self.dispatches.load(Relaxed),
            submissions: self.submissions.load(Relaxed),
        }
    }
}

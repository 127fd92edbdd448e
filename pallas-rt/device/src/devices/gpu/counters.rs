//! Counters of the pipelines and dispatches of a GPU client.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of pipelines and dispatches of a GPU client so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct GpuCounters {
    /// Number of pipelines created; those that this client had already do not count.
    pub pipelines_compiled: u64,
    /// Number of these pipelines that the driver created from a binary on disk.
    pub binaries_reused: u64,
    /// Number of dispatches submitted.
    pub dispatches: u64,
    /// Number of submissions to the queue, of launches, copies and clears; the launches of a jitted function share one.
    pub submissions: u64,
}

/// Counters of one device, updated by several threads.
#[derive(Default)]
pub(super) struct AtomicCounters {
    pub(super) compiled: AtomicU64,
    pub(super) reused: AtomicU64,
    pub(super) dispatches: AtomicU64,
    pub(super) submissions: AtomicU64,
}

impl AtomicCounters {
    /// The counts so far.
    pub(super) fn snapshot(&self) -> GpuCounters {
        GpuCounters {
            pipelines_compiled: self.compiled.load(Relaxed),
            binaries_reused: self.reused.load(Relaxed),
            dispatches: self.dispatches.load(Relaxed),
            submissions: self.submissions.load(Relaxed),
        }
    }
}

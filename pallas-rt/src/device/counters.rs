//! Numbers of traces, compilations and launches of this process.
use crate::disk;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers of events in this process. Entries on disk save passes and shaders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Kernel bodies traced.
    pub traces: u64,
    /// Passes run over traced kernels.
    pub passes: u64,
    /// Shaders emitted, the passes of their placement among it.
    pub shaders: u64,
    /// Entries on disk that were of use.
    pub disk_hits: u64,
    /// Entries written to disk.
    pub disk_writes: u64,
    /// Entries on disk that were deleted: torn, of no use, or beyond the limit.
    pub disk_removed: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Calls that found their compiled kernel in the cache; a thread's last calls are found without it.
    pub cache_hits: u64,
    /// Compiled kernels and pipelines that left their cache, whose [limits](crate::CacheLimits) were reached.
    pub cache_evictions: u64,
}

pub(crate) static TRACES: AtomicU64 = AtomicU64::new(0);
pub(super) static PASSES: AtomicU64 = AtomicU64::new(0);
pub(super) static SHADERS: AtomicU64 = AtomicU64::new(0);
pub(crate) static LAUNCHES: AtomicU64 = AtomicU64::new(0);
pub(crate) static CACHE_HITS: AtomicU64 = AtomicU64::new(0);
pub(super) static EVICTIONS: AtomicU64 = AtomicU64::new(0);

/// The numbers so far.
pub fn counters() -> Counters {
    Counters {
        traces: TRACES.load(Relaxed),
        passes: PASSES.load(Relaxed),
        shaders: SHADERS.load(Relaxed),
        disk_hits: disk::HITS.load(Relaxed),
        disk_writes: disk::WRITES.load(Relaxed),
        disk_removed: disk::REMOVED.load(Relaxed),
        launches: LAUNCHES.load(Relaxed),
        cache_hits: CACHE_HITS.load(Relaxed),
        cache_evictions: EVICTIONS.load(Relaxed),
    }
}

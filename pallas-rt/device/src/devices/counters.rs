//! Counters of traces, compilations and launches in this process.
use crate::{disk, timeline};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counts of events in this process, as [`counters`] returns them. Entries on disk save passes and shaders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Kernel bodies traced.
    pub traces: u64,
    /// Passes run on traced kernels.
    pub passes: u64,
    /// Shaders emitted, including the passes of their placement.
    pub shaders: u64,
    /// Entries read from disk and used.
    pub disk_hits: u64,
    /// Entries looked for on disk and not found there, or not used.
    pub disk_misses: u64,
    /// Entries written to disk.
    pub disk_writes: u64,
    /// Entries deleted from disk: incomplete, invalid, or beyond the limit.
    pub disk_removed: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Calls that found their compiled kernel in the cache. A thread's most recent calls do not look there.
    pub cache_hits: u64,
    /// Functions traced by `jit` and the transformations of functions.
    pub jit_traces: u64,
    /// Functions compiled by `jit`.
    pub jit_compiles: u64,
    /// Calls of functions of `jit`, but for those inside of functions that are being traced.
    pub jit_calls: u64,
    /// Compiled kernels and pipelines evicted from their cache because of its [limits](crate::CacheLimits).
    pub cache_evictions: u64,
    /// Time that threads spent compiling: passes, plans, shaders and partitioning. It is no part of the time of runs;
    /// entries on disk save it.
    pub compile_time: Duration,
}

/// Kernels that were traced.
pub static TRACES: AtomicU64 = AtomicU64::new(0);
pub(super) static PASSES: AtomicU64 = AtomicU64::new(0);
pub(super) static SHADERS: AtomicU64 = AtomicU64::new(0);
/// Kernels that were launched.
pub static LAUNCHES: AtomicU64 = AtomicU64::new(0);
/// Kernels that were compiled before.
pub static CACHE_HITS: AtomicU64 = AtomicU64::new(0);
/// Functions that were traced.
pub static JIT_TRACES: AtomicU64 = AtomicU64::new(0);
/// Functions that were compiled.
pub static JIT_COMPILES: AtomicU64 = AtomicU64::new(0);
/// Calls of compiled functions.
pub static JIT_CALLS: AtomicU64 = AtomicU64::new(0);
pub(super) static EVICTIONS: AtomicU64 = AtomicU64::new(0);

/// Returns the counts so far, of all threads. Subtract two results to count the events between them.
///
/// ```
/// use pallas_rt::prelude::*;
///
/// #[kernel(grid = (cdiv(N, 8)))]
/// fn doubled(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
///     out.store(x.load() * 2.0);
/// }
/// let x = Client::cpu().full(&[20], 1.0f32)?;
/// let before = pallas_rt::counters();
/// doubled(&x)?;
/// let after = pallas_rt::counters();
/// assert!(after.launches - before.launches >= 1);
/// # Ok::<(), Error>(())
/// ```
pub fn counters() -> Counters {
    Counters {
        traces: TRACES.load(Relaxed),
        passes: PASSES.load(Relaxed),
        shaders: SHADERS.load(Relaxed),
        disk_hits: disk::HITS.load(Relaxed),
        disk_misses: disk::MISSES.load(Relaxed),
        disk_writes: disk::WRITES.load(Relaxed),
        disk_removed: disk::REMOVED.load(Relaxed),
        launches: LAUNCHES.load(Relaxed),
        cache_hits: CACHE_HITS.load(Relaxed),
        jit_traces: JIT_TRACES.load(Relaxed),
        jit_compiles: JIT_COMPILES.load(Relaxed),
        jit_calls: JIT_CALLS.load(Relaxed),
        cache_evictions: EVICTIONS.load(Relaxed),
        compile_time: timeline::compile_time(),
    }
}

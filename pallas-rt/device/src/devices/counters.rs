//! Counters of traces, compilations and launches in this process.
use crate::{disk, timeline};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counts of events in this process, as [`counters`] returns them. Entries on disk make passes and shaders unnecessary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Number of kernel bodies traced.
    pub traces: u64,
    /// Number of passes run on traced kernels: a kernel runs through several.
    pub passes: u64,
    /// Number of shaders generated, including their placement passes.
    pub shaders: u64,
    /// Number of entries read from disk and used.
    pub disk_hits: u64,
    /// Number of entries looked for on disk and not found, or found and not used.
    pub disk_misses: u64,
    /// Number of entries written to disk.
    pub disk_writes: u64,
    /// Number of entries deleted from disk: incomplete, invalid, or beyond the limit.
    pub disk_removed: u64,
    /// Number of kernels launched.
    pub launches: u64,
    /// Number of calls that found their compiled kernel in the cache. A repetition of a thread's most recent calls is
    /// not counted.
    pub cache_hits: u64,
    /// Number of functions traced by `jit` and by transformations of functions.
    pub jit_traces: u64,
    /// Number of functions compiled by `jit`.
    pub jit_compiles: u64,
    /// Number of calls of functions of `jit`, without those inside of functions being traced.
    pub jit_calls: u64,
    /// Number of compiled kernels and pipelines evicted from their caches because of [limits](crate::CacheLimits).
    pub cache_evictions: u64,
    /// Time that threads spent compiling: passes, plans, shaders and partitioning. Not part of the time of runs;
    /// entries on disk save it.
    pub compile_time: Duration,
}

/// Number of kernels that were traced.
pub static KERNEL_TRACES: AtomicU64 = AtomicU64::new(0);
/// Number of passes run on traced kernels.
pub(super) static PASSES_RUN: AtomicU64 = AtomicU64::new(0);
/// Number of shaders that were generated.
pub(super) static SHADERS_GENERATED: AtomicU64 = AtomicU64::new(0);
/// Number of kernels that were launched.
pub static LAUNCHES: AtomicU64 = AtomicU64::new(0);
/// Number of calls whose kernel was compiled before.
pub static CACHE_HITS: AtomicU64 = AtomicU64::new(0);
/// Number of functions that were traced.
pub static JIT_TRACES: AtomicU64 = AtomicU64::new(0);
/// Number of functions that were compiled.
pub static JIT_COMPILES: AtomicU64 = AtomicU64::new(0);
/// Number of calls of compiled functions.
pub static JIT_CALLS: AtomicU64 = AtomicU64::new(0);
/// Number of compiled kernels and pipelines that were evicted.
pub(super) static CACHE_EVICTIONS: AtomicU64 = AtomicU64::new(0);

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
        traces: KERNEL_TRACES.load(Relaxed),
        passes: PASSES_RUN.load(Relaxed),
        shaders: SHADERS_GENERATED.load(Relaxed),
        disk_hits: disk::DISK_HITS.load(Relaxed),
        disk_misses: disk::DISK_MISSES.load(Relaxed),
        disk_writes: disk::DISK_WRITES.load(Relaxed),
        disk_removed: disk::DISK_REMOVALS.load(Relaxed),
        launches: LAUNCHES.load(Relaxed),
        cache_hits: CACHE_HITS.load(Relaxed),
        jit_traces: JIT_TRACES.load(Relaxed),
        jit_compiles: JIT_COMPILES.load(Relaxed),
        jit_calls: JIT_CALLS.load(Relaxed),
        cache_evictions: CACHE_EVICTIONS.load(Relaxed),
        compile_time: timeline::compile_time(),
    }
}

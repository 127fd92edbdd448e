//! Devices, their memory and queues, the disk cache, and engines that exchange arrays among devices.
//!
//! `pallas-rt` exports what users may import from here; methods that only it needs are hidden from documentation. No
//! module knows an array's type, a graph or a kernel of a user. Modules, each after those that it depends on:
//!
//! - `error`, `timeline`: errors; what was traced, compiled and launched when;
//! - `collective`: engines that exchange arrays: lockstep, threads, MPI processes;
//! - `disk`, `startup`: entries that outlive the process; the startup configuration;
//! - `devices`: clients, memory, queues; the trait that CPU, interpreter and wgpu implement.
#![warn(clippy::print_stdout)]
#![cfg_attr(not(feature = "mesh"), allow(dead_code, unused_imports, reason = "programs on meshes use the rest"))]
#[cfg(feature = "mesh")]
pub mod collective;
#[cfg(debug_assertions)]
pub mod counted;
pub mod devices;
pub mod disk;
pub mod error;
pub mod startup;
pub mod timeline;

pub use devices::{
    Buffer, BufferMut, ByOperand, CACHE_HITS, CacheLimits, Client, Counters, Device, DeviceKind, Executable, JIT_CALLS,
    JIT_COMPILES, JIT_TRACES, KERNEL_TRACES, KernelSource, LAUNCHES, Launch, LaunchGeometry, Lru, MemoryStats,
    argument_indices, counters, find_multiples_of_four, output_indices, set_cache_limits,
};

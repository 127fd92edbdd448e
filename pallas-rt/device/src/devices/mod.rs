//! Devices, their memory, and the runtimes that launch kernels on them. Modules, each after those that it depends on:
//!
//! - `name`: names and kinds of devices;
//! - `ledger`: memory in use, and its limit;
//! - `memory_pool`: freed blocks kept for the next allocation, by size class;
//! - `queue`: launches of the CPU that continue after their call returns; `memory`: host blocks, and elements as bytes;
//! - `counters`: counts of traces, compilations and launches; `lru`: a cache with limits;
//! - `lowered_cache`: a traced kernel with its lowered form, from disk if it is stored there;
//! - `storage`: the memory of buffers;
//! - `runtime`: the trait that every kind of device implements; `client`: one device with its memory; `buffer`: bytes
//!   on a device;
//! - `cpu`, `interpreter`: kernels compiled for them; `host`: the runtime of both;
//! - `gpu`: the wgpu runtime, or, in a build without it, functions that return errors;
//! - `client_choice`: chooses a device by name, by environment, or the best one;
//! - `sequence`: many launches of the CPU that run as one.
#[allow(unsafe_code, reason = "the interpreter overwrites outputs")]
mod buffer;
mod client;
mod client_choice;
mod counters;
#[allow(unsafe_code, reason = "vouches for the memory of launches")]
mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
#[cfg(not(feature = "gpu"))]
#[path = "no_gpu.rs"]
mod gpu;
mod host;
#[allow(unsafe_code, reason = "overwrites outputs")]
pub mod interpreter;
mod ledger;
pub mod lowered_cache;
mod lru;
#[allow(unsafe_code, reason = "allocates, and sees elements as bytes")]
pub mod memory;
mod memory_pool;
mod name;
#[allow(unsafe_code, reason = "work goes on that uses raw memory")]
mod queue;
#[allow(unsafe_code, reason = "launches trust their caller with memory")]
mod runtime;
#[cfg(feature = "mesh")]
#[allow(unsafe_code, reason = "work goes on that uses raw memory")]
pub mod sequence;
mod storage;

pub use buffer::{Buffer, BufferMut};
pub use client::Client;
pub use counters::{CACHE_HITS, Counters, JIT_CALLS, JIT_COMPILES, JIT_TRACES, KERNEL_TRACES, LAUNCHES, counters};
#[cfg(feature = "gpu")]
pub use gpu::GpuCounters;
pub use ledger::MemoryStats;
pub use lowered_cache::KernelSource;
pub use lru::{CacheLimits, Lru, set_cache_limits};
pub use name::{Device, DeviceKind};
pub use runtime::{
    ByOperand, Executable, Launch, LaunchGeometry, argument_indices, find_multiples_of_four, output_indices,
};

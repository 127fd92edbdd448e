//! Kernels over tiles: tracing, interpreter, CPU and WGSL backends, devices.
extern crate self as pallas_rt;

mod array;
mod error;
#[cfg(feature = "gpu")]
mod gpu;
pub mod interp;
pub mod lang;
pub mod passes;

pub use array::{Array, Buffer, Client, Device, DeviceKind, DeviceLimits, MemoryStats, Profile};
pub use error::{Error, KernelError, Result};
#[cfg(feature = "gpu")]
pub use {gpu::GpuCounters, wgpu};

pub use pallas_ir as ir;

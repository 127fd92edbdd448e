//! Kernels over tiles: tracing, interpreter, CPU and WGSL backends, devices.
extern crate self as pallas_rt;

pub mod interp;
pub mod passes;

pub use pallas_ir as ir;

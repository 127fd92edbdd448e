//! Executions of a kernel's tile IR: the strict interpreter, passes, native CPU code, WGSL.
//!
//! `pallas-rt` binds arrays to kernels, holds devices, and exports what users see; nothing here is theirs to import.
//! No module here knows an array, a device or a graph.
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_mut, reason = "the kernels for x86-64 use the rest")
)]
pub mod cpu;
pub mod interp;
pub mod passes;
#[allow(unsafe_code, reason = "slices of raw memory")]
pub mod raw;
pub mod target;
// Unit tests write shaders as well.
#[cfg(any(feature = "wgsl", test))]
pub mod wgsl;

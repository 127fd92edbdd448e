//! Arrays: a shape, an element type and a buffer on a device.
//!
//! - `host`: shapes and elements to bytes and back;
//! - `data`: the array; `wgpu`: arrays in wgpu buffers of the program's own;
//! - `show`: how an array prints.
mod data;
mod host;
mod show;
#[cfg(test)]
mod tests;
#[cfg(feature = "gpu")]
mod wgpu;

pub use data::Array;
#[allow(unused_imports, reason = "for the tracer")]
pub(crate) use data::{Traced, What};

//! Arrays: a shape, an element type and a buffer on a device.
//!
//! - `axis`: numbers of axes; `host`: shapes and elements to bytes and back;
//! - `client`: a device on which arrays are made; `data`: the array; `blocks`: one in several blocks; `poison`: one
//!   that holds an error; `wgpu`: arrays in wgpu buffers of the program's own;
//! - `reshape`: other shapes of the same elements; `show`: how an array prints.
mod axis;
mod blocks;
#[allow(unsafe_code, reason = "sees a device's client as one of arrays")]
mod client;
mod data;
mod host;
mod reshape;
mod show;
#[cfg(test)]
mod tests;
#[cfg(feature = "gpu")]
mod wgpu;

pub(crate) use axis::canonicalize_axis;
pub(crate) use blocks::ShardedBlocks;
pub use client::Client;
pub use data::Array;
pub(crate) use data::{ArrayContents, TracedValue};
pub use reshape::Extent;

//! The runtime behind wgpu: adapters, memory, pipelines, dispatch. Nothing here knows a kernel.
//!
//! - `adapter`: which adapters there are and what they can do;
//! - `runtime`: one device and its queue, and how its errors become ours;
//! - `memory`: buffers, uploads, read-back;
//! - `pipeline`: shader text to compiled pipelines, cached;
//! - `job`: bindings and dispatches of one launch;
//! - `clients`: the clients of this process' adapters, and those around a user's own device.
mod adapter;
mod clients;
mod job;
mod memory;
#[allow(unsafe_code, reason = "proven shaders run unchecked")]
mod pipeline;
mod runtime;

pub(crate) use adapter::devices;
pub(crate) use clients::{best, client, fresh_client};
pub(crate) use job::{Binding, Dispatch, ShaderJob};
pub(crate) use memory::Memory;
pub use pipeline::GpuCounters;
pub(crate) use runtime::Gpu;

#[cfg(test)]
mod tests;

//! The wgpu runtime: adapters, memory, pipelines, dispatches; in `launch`, kernels as shaders.
//!
//! - `adapter`: the adapters and their capabilities;
//! - `device`: one device and its queue, and the conversion of its errors; `counters`: counts of its work;
//!   `opengl_lock`: a lock for one thread at a time on OpenGL;
//! - `gpu_buffers`: buffers, uploads, read-back;
//! - `pipeline`: shader text to compiled pipelines, cached;
//! - `job`: bindings and dispatches of one launch; `command_encoder`: launches that are submitted together;
//! - `launch`: shaders of a kernel and their dispatches; `compiled_shader`: a shader as stored on disk;
//! - `split_long_loops`: the ranges of a launch whose loops are too long for the driver;
//! - `runtime`: implements the trait of all kinds of devices;
//! - `clients`: the clients of this process' adapters, and those of devices that the user created.
mod adapter;
mod clients;
mod command_encoder;
mod compiled_shader;
mod counters;
mod device;
mod gpu_buffers;
#[allow(unsafe_code, reason = "jobs trust their caller with the shader")]
mod job;
#[allow(unsafe_code, reason = "launches trust their caller with memory")]
mod launch;
mod opengl_lock;
#[allow(unsafe_code, reason = "proven shaders run unchecked")]
mod pipeline;
mod runtime;
mod split_long_loops;

pub(super) use adapter::devices;
pub(super) use clients::{best_gpu_client, fresh_client, shared_client};
pub use command_encoder::ErrorCheck;
pub use counters::GpuCounters;
pub use device::Gpu;
pub use job::{Dispatch, ShaderJob};

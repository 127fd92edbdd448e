//! Replacement for the wgpu runtime in a build without the feature `gpu`: there are no adapters.
use super::client::Client;
use super::name::Device;
use crate::error::{Error, Result};

/// Reason that errors give for the lack of a GPU.
const NO_GPU_REASON: &str = "this build is without the feature `gpu`";

/// Fails with an error that names the requested adapter, since a build without the feature `gpu` has none.
pub(super) fn shared_client(gl: bool, index: usize, _: &str) -> Result<Client> {
    let name = if gl { "gl" } else { "gpu" };
    Err(Error::NoDevice { asked: format!("{name}:{index}"), found: format!("{NO_GPU_REASON}; help: `--features gpu`") })
}

/// Fails as [`shared_client`] does, since a build without the feature `gpu` has no adapters.
pub(super) fn fresh_client(gl: bool, index: usize, why: &str) -> Result<Client> {
    shared_client(gl, index, why)
}

/// Returns as an error the reason why there is no GPU: the build is without the feature `gpu`.
pub(super) fn best_gpu_client() -> std::result::Result<Client, String> {
    Err(NO_GPU_REASON.into())
}

/// An empty list.
pub(super) fn devices() -> Vec<Device> {
    vec![]
}

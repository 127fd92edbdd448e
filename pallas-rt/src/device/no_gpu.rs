//! Stands in for the wgpu runtime in a build without the feature `gpu`: there are no adapters.
use super::client::Client;
use super::name::Device;
use crate::error::{Error, Result};

const WITHOUT: &str = "this build is without the feature `gpu`";

pub(super) fn client(index: usize, _: &str) -> Result<Client> {
    Err(Error::NoDevice { asked: format!("gpu:{index}"), found: format!("{WITHOUT}; help: `--features gpu`") })
}

pub(super) fn fresh_client(index: usize, why: &str) -> Result<Client> {
    client(index, why)
}

pub(super) fn best() -> std::result::Result<Client, String> {
    Err(WITHOUT.into())
}

pub(super) fn devices() -> Vec<Device> {
    vec![]
}

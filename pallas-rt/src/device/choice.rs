//! The choice of a device: by name, by environment, or the best one.
use super::client::Client;
use super::gpu;
use super::name::{Device, DeviceKind};
use crate::error::{Error, Result};
use std::sync::LazyLock;

const VARIABLE: &str = "PALLAS_DEVICE";
const ALLOWED: &str = "cpu, gpu, gpu:N (N from 0), gl, gl:N, interpret";
const ASKED: &str = "asked for by the program";

static CPU: LazyLock<Client> = LazyLock::new(|| Client::on_host(DeviceKind::Cpu, ASKED));
static INTERPRETER: LazyLock<Client> = LazyLock::new(|| Client::on_host(DeviceKind::Interpreter, ASKED));

/// The kind of device that `PALLAS_DEVICE` names, and its index.
fn parse(value: &str) -> Option<(&str, usize)> {
    match (value, value.split_once(':').unwrap_or((value, "0"))) {
        ("cpu" | "interpret", _) => Some((value, 0)),
        (_, (name @ ("gpu" | "gl"), index)) => Some((name, index.parse().ok()?)),
        _ => None,
    }
}

impl Client {
    /// The native CPU backend, which is always available.
    pub fn cpu() -> Client {
        CPU.clone()
    }

    /// The strict interpreter: slow, and every error that a kernel can make is reported with its source line.
    pub fn interpreter() -> Client {
        INTERPRETER.clone()
    }

    /// The wgpu adapter `index`; hardware adapters come first, then software ones such as lavapipe.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there are fewer, or the crate was built without the feature `gpu`.
    pub fn gpu(index: usize) -> Result<Client> {
        gpu::client(false, index, ASKED)
    }

    /// The OpenGL adapter `index`. Such adapters are only selected by name: they support less than others, are often
    /// software, and can be used by one thread at a time.
    ///
    /// # Errors
    /// As [`Client::gpu`].
    pub fn gl(index: usize) -> Result<Client> {
        gpu::client(true, index, ASKED)
    }

    /// The best hardware GPU, else the CPU. Software adapters are not considered, since the CPU backend is faster.
    pub fn best() -> Client {
        gpu::best().unwrap_or_else(|why| Client::cpu().because(&why))
    }

    /// The client that the environment variable `PALLAS_DEVICE` names (`cpu`, `gpu`, `gpu:N`, `gl`, `gl:N`,
    /// `interpret`); [`Client::best`] if it is not set.
    ///
    /// # Errors
    /// [`Error::Environment`] for another value, [`Error::NoDevice`] if there is no such device.
    pub fn from_env() -> Result<Client> {
        // A value that is not Unicode is no valid name either.
        std::env::var_os(VARIABLE).map_or_else(|| Ok(Client::best()), |value| Client::named(&value.to_string_lossy()))
    }

    fn named(value: &str) -> Result<Client> {
        let client = match parse(value) {
            Some(("cpu", _)) => Client::cpu(),
            Some(("interpret", _)) => Client::interpreter(),
            Some(("gl", index)) => Client::gl(index)?,
            Some((_, index)) => Client::gpu(index)?,
            None => return Err(Error::Environment { variable: VARIABLE, value: value.into(), allowed: ALLOWED }),
        };
        Ok(client.because(&format!("{VARIABLE}={value}")))
    }

    /// Another client of the same device, with its own memory, limit and caches. Arrays of one cannot be used with the
    /// other.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the adapter is no longer there.
    pub fn isolated(&self) -> Result<Client> {
        let why = "isolated from the other clients of its device";
        match self.kind() {
            DeviceKind::Cpu | DeviceKind::Interpreter => Ok(Client::on_host(self.kind(), why)),
            DeviceKind::Gpu => gpu::fresh_client(self.device().api == Device::GL, self.device().index, why),
        }
    }

    /// All devices of this machine.
    pub fn devices() -> Vec<Device> {
        let host = [Client::cpu(), Client::interpreter()].map(|client| client.device().clone());
        host.into_iter().chain(gpu::devices()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        let named = ["cpu", "gpu", "gpu:3", "gl", "gl:1", "interpret"].map(parse);
        let expected = [("cpu", 0), ("gpu", 0), ("gpu", 3), ("gl", 0), ("gl", 1), ("interpret", 0)];
        assert_eq!(named, expected.map(Some));
        for wrong in ["", "nonsense", "GPU", "gpu:", "gpu:-1", "gpu:x", "cpu:0", "gl:", "vulkan:0"] {
            let error = Client::named(wrong).expect_err(wrong);
            assert!(error.to_string().ends_with("allowed: cpu, gpu, gpu:N (N from 0), gl, gl:N, interpret"), "{error}");
        }
    }

    #[test]
    fn a_client_says_why() {
        assert!(Client::named("cpu").expect("always there").why().ends_with("PALLAS_DEVICE=cpu"));
        assert!(!Client::best().why().is_empty());
        assert_eq!(Client::cpu(), Client::cpu());
        assert_ne!(Client::cpu(), Client::interpreter());
        assert_ne!(Client::cpu(), Client::cpu().isolated().expect("the host stays"));
    }
}

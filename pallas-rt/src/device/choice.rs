//! Which device: by name, by environment, or the best one.
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

/// A device as `PALLAS_DEVICE` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    Cpu,
    Interpreter,
    Gpu(usize),
    Gl(usize),
}

fn parse(value: &str) -> Result<Choice> {
    let refused = || Error::Environment { variable: VARIABLE, value: value.into(), allowed: ALLOWED };
    match value {
        "cpu" => Ok(Choice::Cpu),
        "interpret" => Ok(Choice::Interpreter),
        _ => {
            let (name, index) = value.split_once(':').unwrap_or((value, "0"));
            let choice = match name {
                "gpu" => Choice::Gpu,
                "gl" => Choice::Gl,
                _ => return Err(refused()),
            };
            index.parse().map(choice).map_err(|_| refused())
        }
    }
}

impl Client {
    /// The native CPU backend; always there.
    pub fn cpu() -> Client {
        CPU.clone()
    }

    /// The strict interpreter: slow, and every mistake a kernel can make is an error with its place.
    pub fn interpreter() -> Client {
        INTERPRETER.clone()
    }

    /// The adapter `index` behind wgpu, real ones first, then software ones such as lavapipe.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there are fewer, or the crate was built without the feature `gpu`.
    pub fn gpu(index: usize) -> Result<Client> {
        gpu::client(false, index, ASKED)
    }

    /// The OpenGL adapter `index`. Such adapters are taken only by name: they have fewer abilities than others, often are
    /// software, and threads use them one at a time.
    ///
    /// # Errors
    /// As [`Client::gpu`].
    pub fn gl(index: usize) -> Result<Client> {
        gpu::client(true, index, ASKED)
    }

    /// The best real GPU, else the CPU. A software adapter is not a GPU: the CPU backend is faster.
    pub fn best() -> Client {
        gpu::best().unwrap_or_else(|why| Client::cpu().because(&why))
    }

    /// What the environment variable `PALLAS_DEVICE` says (`cpu`, `gpu`, `gpu:N`, `gl`, `gl:N`, `interpret`), without
    /// it [`Client::best`].
    ///
    /// # Errors
    /// [`Error::Environment`] for another value, [`Error::NoDevice`] if there is no such device.
    pub fn from_env() -> Result<Client> {
        match std::env::var(VARIABLE) {
            Ok(value) => Client::named(&value),
            Err(std::env::VarError::NotPresent) => Ok(Client::best()),
            Err(std::env::VarError::NotUnicode(value)) => {
                let value = value.to_string_lossy().into_owned();
                Err(Error::Environment { variable: VARIABLE, value, allowed: ALLOWED })
            }
        }
    }

    fn named(value: &str) -> Result<Client> {
        let client = match parse(value)? {
            Choice::Cpu => Client::cpu(),
            Choice::Interpreter => Client::interpreter(),
            Choice::Gpu(index) => Client::gpu(index)?,
            Choice::Gl(index) => Client::gl(index)?,
        };
        Ok(client.because(&format!("{VARIABLE}={value}")))
    }

    /// Another client of the same device, with memory, limit and caches of its own. Arrays of the two do not mix.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the adapter went away.
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
        assert_eq!(parse("cpu"), Ok(Choice::Cpu));
        assert_eq!(parse("gpu"), Ok(Choice::Gpu(0)));
        assert_eq!(parse("gpu:3"), Ok(Choice::Gpu(3)));
        assert_eq!((parse("gl"), parse("gl:1")), (Ok(Choice::Gl(0)), Ok(Choice::Gl(1))));
        assert_eq!(parse("interpret"), Ok(Choice::Interpreter));
        for wrong in ["", "nonsense", "GPU", "gpu:", "gpu:-1", "gpu:x", "cpu:0", "gl:", "vulkan:0"] {
            let error = parse(wrong).expect_err(wrong);
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

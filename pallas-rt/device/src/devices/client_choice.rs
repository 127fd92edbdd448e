//! Choice of a device: by name, by environment, or the best one.
use super::client::Client;
use super::gpu;
use super::host::HostRuntime;
use super::name::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::startup::{DEVICE_NAMES, parse_device_name, startup_config};
use pallas_codegen::target::Target;
use std::sync::LazyLock;

/// Environment variable that names the default device.
const DEVICE_VARIABLE: &str = "PALLAS_DEVICE";
/// Reason for the choice of a client's device, where the program asked for it.
const PROGRAM_CHOICE_REASON: &str = "asked for by the program";

/// The shared client of the CPU.
static CPU_CLIENT: LazyLock<Client> = LazyLock::new(|| Client::on_host(DeviceKind::Cpu, PROGRAM_CHOICE_REASON));
/// The shared client of the interpreter.
static INTERPRETER_CLIENT: LazyLock<Client> =
    LazyLock::new(|| Client::on_host(DeviceKind::Interpreter, PROGRAM_CHOICE_REASON));

impl Client {
    fn on_host(kind: DeviceKind, why: &str) -> Client {
        Client::new(HostRuntime::new(Device::host(kind)), why)
    }

    /// A client of the CPU that uses the [`target`](Client::target) of another device, which need not be present.
    pub fn cpu_as(target: Target) -> Client {
        let device = Device { target, ..Device::host(DeviceKind::Cpu) };
        Client::new(HostRuntime::new(device), "with the target of another device")
    }

    /// The native CPU backend, which is always available.
    pub fn cpu() -> Client {
        CPU_CLIENT.clone()
    }

    /// The strict interpreter: slow, but it reports every error that a kernel can make, with its source line.
    pub fn interpreter() -> Client {
        INTERPRETER_CLIENT.clone()
    }

    /// The wgpu adapter of this index; hardware adapters come first, then software ones such as lavapipe.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there are fewer, or the crate was built without the feature `gpu`.
    pub fn gpu(index: usize) -> Result<Client> {
        gpu::shared_client(false, index, PROGRAM_CHOICE_REASON)
    }

    /// The OpenGL adapter of this index.
    ///
    /// # Errors
    /// As [`Client::gpu`].
    pub fn gl(index: usize) -> Result<Client> {
        gpu::shared_client(true, index, PROGRAM_CHOICE_REASON)
    }

    /// The best hardware GPU, else the CPU.
    pub fn best() -> Client {
        gpu::best_gpu_client().unwrap_or_else(|why| Client::cpu().with_choice_reason(&why))
    }

    /// The default client: that of the [`StartupConfig`](crate::startup::StartupConfig) of this process.
    ///
    /// # Errors
    /// [`Error::Environment`] for an invalid name in the environment, [`Error::NoDevice`] if there is no such device.
    pub fn from_env() -> Result<Client> {
        match startup_config() {
            Some(config) => Client::from_name(&config.backend, "StartupConfig::backend="),
            // A value that is not Unicode is no valid name either.
            None => std::env::var_os(DEVICE_VARIABLE).map_or_else(
                || Ok(Client::best()),
                |value| Client::from_name(&value.to_string_lossy(), "PALLAS_DEVICE="),
            ),
        }
    }

    /// Returns the client of the device with this name; `chosen_by` says in messages who chose it.
    fn from_name(name: &str, chosen_by: &str) -> Result<Client> {
        let client = match parse_device_name(name) {
            Some(("best", _)) => return Ok(Client::best()),
            Some(("cpu", _)) => Client::cpu(),
            Some(("interpret", _)) => Client::interpreter(),
            Some(("gl", index)) => Client::gl(index)?,
            Some((_, index)) => Client::gpu(index)?,
            None => {
                return Err(Error::Environment {
                    variable: DEVICE_VARIABLE,
                    value: name.into(),
                    allowed: DEVICE_NAMES,
                });
            }
        };
        Ok(client.with_choice_reason(&format!("{chosen_by}{name}")))
    }

    /// A new client of the same device, with its own memory, limit and caches.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the adapter no longer exists.
    pub fn isolated(&self) -> Result<Client> {
        let why = "isolated from the other clients of its device";
        match self.kind() {
            DeviceKind::Cpu | DeviceKind::Interpreter => Ok(Client::on_host(self.kind(), why)),
            DeviceKind::Gpu => gpu::fresh_client(self.device().api == Device::GL, self.device().index, why),
        }
    }

    /// All devices of this machine, the host's first.
    pub fn devices() -> Vec<Device> {
        let host = [Client::cpu(), Client::interpreter()].map(|client| client.device().clone());
        host.into_iter().chain(gpu::devices()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_says_why() {
        assert!(Client::from_name("cpu", "PALLAS_DEVICE=").expect("always there").why().ends_with("PALLAS_DEVICE=cpu"));
        assert!(!Client::best().why().is_empty());
        assert_eq!(Client::cpu(), Client::cpu());
        assert_ne!(Client::cpu(), Client::interpreter());
        assert_ne!(Client::cpu(), Client::cpu().isolated().expect("the host stays"));
    }
}

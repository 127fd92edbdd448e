//! Names and kinds of devices.
use pallas_codegen::target::Target;
use std::fmt;

/// Kind of device that runs a client's kernels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The native CPU backend.
    Cpu,
    /// The strict interpreter, in host memory.
    Interpreter,
    /// A wgpu adapter, hardware or software.
    Gpu,
}

/// One device of this machine, with its description.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Device {
    /// Kind of the device.
    pub kind: DeviceKind,
    /// Index among devices of its kind, as in `gpu:1` or `gl:0`.
    pub index: usize,
    /// Name that the vendor gave: `NVIDIA H100`, `llvmpipe (LLVM 15.0.6, 256 bits)`.
    pub name: String,
    /// Graphics API through which it is used: `Vulkan`, `Metal`, `DX12`, `GL`; empty on the host.
    pub api: &'static str,
    /// Driver and its version; empty on the host.
    pub driver: String,
    /// True if the adapter is software that runs on the CPU.
    pub software: bool,
    /// Limits of the device, and how it executes a kernel.
    pub target: Target,
}

impl Device {
    /// Value of [`Device::api`] of OpenGL adapters.
    #[doc(hidden)]
    pub const GL: &str = "GL";

    /// The host as a device of this kind, CPU or interpreter.
    #[doc(hidden)]
    pub fn host(kind: DeviceKind) -> Self {
        let target = Target::host();
        Device {
            kind,
            index: 0,
            name: format!("{} with {} threads", std::env::consts::ARCH, target.cores.unwrap_or(1)),
            api: "",
            driver: String::new(),
            software: false,
            target,
        }
    }

    /// Name of the device in `PALLAS_DEVICE`: `cpu`, `interpret`, `gpu:0`, `gl:0`.
    pub fn id(&self) -> String {
        match self.kind {
            DeviceKind::Cpu => "cpu".into(),
            DeviceKind::Interpreter => "interpret".into(),
            DeviceKind::Gpu if self.api == Device::GL => format!("gl:{}", self.index),
            DeviceKind::Gpu => format!("gpu:{}", self.index),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.id(), self.name)?;
        for part in [self.api, self.driver.as_str()].into_iter().filter(|part| !part.is_empty()) {
            write!(f, ", {part}")?;
        }
        f.write_str(if self.software { ", software)" } else { ")" })
    }
}

//! What a device is called and what it can do.
use std::fmt;

/// Which executor runs the kernels of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The native CPU backend.
    Cpu,
    /// The strict interpreter, in host memory.
    Interpreter,
    /// An adapter behind wgpu, real or software.
    Gpu,
}

/// How kernels are placed on a device: which prices and block sizes hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Profile {
    /// Native code on the host.
    Cpu,
    /// A graphics card: 64 to 256 threads, operands staged in workgroup memory.
    Gpu,
    /// A software adapter that runs shaders on the CPU's SIMD lanes (lavapipe, SwiftShader).
    SimtCpu,
}

/// A device's cooperative matrices (tensor cores): products of square matrices, summed in f32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Matrices {
    /// Rows and columns where the factors are f16: 8 or 16. `None`: it has no such product.
    pub half: Option<u32>,
    /// Rows and columns where the factors are f32.
    pub float: Option<u32>,
    /// Threads that compute a product together, at most.
    pub lanes: u32,
}

/// What a device can do; a kernel beyond it is refused with the limit's name.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct DeviceLimits {
    /// How kernels are placed.
    pub profile: Profile,
    /// Bytes of workgroup memory ("VMEM") of one parallel program.
    pub workgroup_bytes: u64,
    /// Threads of one workgroup.
    pub max_threads: u32,
    /// Threads of one workgroup along x, y and z.
    pub max_threads_per_axis: [u32; 3],
    /// Workgroups of a dispatch along one axis.
    pub max_workgroups_per_axis: u32,
    /// Loop iterations after which the driver silently stops an invocation, if it is known to do so.
    pub max_loop_iterations: Option<u32>,
    /// Storage buffers one kernel can bind.
    pub storage_bindings: u32,
    /// Bytes of one storage buffer binding.
    pub max_binding_bytes: u64,
    /// Bytes of one buffer.
    pub max_buffer_bytes: u64,
    /// Bytes of a uniform binding.
    pub max_uniform_bytes: u64,
    /// Smallest and largest subgroup; subgroup operations are certain only where they agree. `None`: no such operations.
    pub subgroup: Option<(u32, u32)>,
    /// Products that the threads of a subgroup compute together, where kernels use them. `PALLAS_PROFILE=gpu` turns
    /// them off.
    pub matrices: Option<Matrices>,
    /// Whether shaders have a 16-bit float type.
    pub has_f16: bool,
    /// Whether kernels can be timed on the device.
    pub has_timestamps: bool,
    /// Whether 64-bit element types are there (f64, i64, u64).
    pub has_64_bit: bool,
}

impl DeviceLimits {
    /// The host's: nothing but memory is scarce.
    pub(crate) fn host() -> Self {
        DeviceLimits {
            profile: Profile::Cpu,
            workgroup_bytes: u64::from(u32::MAX),
            max_threads: 1,
            max_threads_per_axis: [1; 3],
            max_workgroups_per_axis: u32::MAX,
            max_loop_iterations: None,
            storage_bindings: u32::MAX,
            max_binding_bytes: u64::MAX,
            max_buffer_bytes: u64::MAX,
            max_uniform_bytes: u64::MAX,
            subgroup: None,
            matrices: None,
            has_f16: true,
            has_timestamps: false,
            has_64_bit: true,
        }
    }

    /// The subgroup size, where it is certain.
    pub fn fixed_subgroup(&self) -> Option<u32> {
        self.subgroup.filter(|(low, high)| low == high).map(|(size, _)| size)
    }
}

/// One device of this machine.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Device {
    /// Which executor it has.
    pub kind: DeviceKind,
    /// Its number among devices of its kind, as in `gpu:1`.
    pub index: usize,
    /// The maker's name: `NVIDIA H100`, `llvmpipe (LLVM 15.0.6, 256 bits)`.
    pub name: String,
    /// The driver and its version; empty on the host.
    pub driver: String,
    /// Whether a "GPU" is a program on the CPU.
    pub software: bool,
    /// What it can do.
    pub limits: DeviceLimits,
}

impl Device {
    /// The host under one of its two executors.
    pub(crate) fn host(kind: DeviceKind) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Device {
            kind,
            index: 0,
            name: format!("{} with {threads} threads", std::env::consts::ARCH),
            driver: String::new(),
            software: false,
            limits: DeviceLimits::host(),
        }
    }

    /// What `PALLAS_DEVICE` calls it: `cpu`, `interpret`, `gpu:0`.
    pub fn id(&self) -> String {
        match self.kind {
            DeviceKind::Cpu => "cpu".into(),
            DeviceKind::Interpreter => "interpret".into(),
            DeviceKind::Gpu => format!("gpu:{}", self.index),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.id(), self.name)?;
        if !self.driver.is_empty() {
            write!(f, ", {}", self.driver)?;
        }
        f.write_str(if self.software { ", software)" } else { ")" })
    }
}

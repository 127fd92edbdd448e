//! The target of code generation: limits of a device, and how it executes the programs of a kernel.
//!
//! Every [`Device`](crate::Device) has a [`Target`]. Shaders are generated for one ([`crate::wgsl`]), and functions that
//! choose block sizes read one. Numbers that follow from the kind of device ([`Profile`]) are data here
//! ([`Target::budget`]); prices of operations, which only the placement of shaders needs, are in `wgsl/profile.rs`.

/// The way in which a device executes one program of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Profile {
    /// Native code: one core of the host runs a program; its tiles lie in that core's caches.
    Cpu,
    /// A graphics card: 64 to 256 threads run a program, its tiles lie in their registers, operands of products in
    /// workgroup memory.
    #[default]
    Gpu,
    /// A software adapter (lavapipe, SwiftShader): a program is a loop of one CPU thread over the lanes of a SIMD vector.
    SimtCpu,
    /// A GPU without registers: every tile lies in workgroup memory or scratch. The second opinion of the tests.
    Baseline,
}

impl Profile {
    /// The profiles that shaders are generated for.
    pub const SHADERS: [Profile; 3] = [Profile::Baseline, Profile::Gpu, Profile::SimtCpu];

    /// Name in `explain` and in `PALLAS_PROFILE`.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Cpu => "cpu",
            Profile::Gpu => "gpu",
            Profile::SimtCpu => "simt_cpu",
            Profile::Baseline => "baseline",
        }
    }
}

/// A device's cooperative matrices (tensor cores): products of square matrices, summed in f32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Matrices {
    /// Rows and columns where the factors are f16: 8 or 16. `None`: it has no such product.
    pub half: Option<u32>,
    /// Rows and columns where the factors are f32.
    pub float: Option<u32>,
    /// Greatest number of threads that compute a product together.
    pub lanes: u32,
}

/// Limits of a device and its kind. A kernel beyond a limit is refused with the limit's name.
///
/// ```
/// use pallas_rt::Target;
/// let target = Target { workgroup_bytes: 48 << 10, max_threads: 1024, ..Target::webgpu() };
/// assert_eq!(target.budget().staged_bytes, 48 << 10);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// The way in which a program is executed.
    pub profile: Profile,
    /// Number of cores that run programs side by side; `None` where the driver does not say.
    pub cores: Option<usize>,
    /// Bytes of workgroup memory ("VMEM") of one parallel program.
    pub workgroup_bytes: u64,
    /// Threads of one workgroup, all of which may lie along x.
    pub max_threads: u32,
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
    /// Lanes of a SIMD vector, where the threads of a workgroup of that size run in lockstep without barriers.
    pub lanes: Option<u32>,
    /// Products that the threads of a subgroup compute together, where kernels use them. `PALLAS_PROFILE=gpu` turns
    /// them off.
    pub matrices: Option<Matrices>,
    /// Is true if shaders have a 16-bit float type.
    pub has_f16: bool,
    /// Is true if kernels can be timed on the device.
    pub has_timestamps: bool,
    /// Is true if 64-bit element types are there (f64, i64, u64).
    pub has_64_bit: bool,
}

/// Resources of one program, which block sizes follow from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Bytes of the tiles that threads share: operands of products, and what is summed across threads.
    ///
    /// Workgroup memory on a GPU. No limit where products read arrays and caches themselves.
    pub staged_bytes: u64,
    /// Elements of the tiles that are alive at once in elementwise code and reductions of rows.
    ///
    /// On a GPU 64 registers of each of 256 threads, on a software adapter of each of 64. No limit on the CPU, whose
    /// elementwise code runs over strips of a tile.
    pub live_elements: usize,
    /// Number of programs that keeps the device busy.
    ///
    /// Four for each core where the number of cores is known, so that no core waits for the last programs of another;
    /// 256 elsewhere, as a core of a GPU runs several workgroups at once.
    pub programs: usize,
    /// Is true if both sides of a branch are executed, since threads are lanes of one vector.
    pub lockstep: bool,
}

impl Target {
    /// The host: nothing but memory is scarce.
    pub(crate) fn host() -> Target {
        Target {
            profile: Profile::Cpu,
            cores: Some(std::thread::available_parallelism().map_or(1, usize::from)),
            workgroup_bytes: u64::from(u32::MAX),
            max_threads: 1,
            max_workgroups_per_axis: u32::MAX,
            storage_bindings: u32::MAX,
            max_binding_bytes: u64::MAX,
            max_buffer_bytes: u64::MAX,
            max_uniform_bytes: u64::MAX,
            has_f16: true,
            has_64_bit: true,
            ..Target::webgpu()
        }
    }

    /// The limits that WebGPU promises everywhere.
    pub fn webgpu() -> Target {
        Target {
            profile: Profile::Gpu,
            cores: None,
            workgroup_bytes: 16 << 10,
            max_threads: 256,
            max_workgroups_per_axis: 65_535,
            max_loop_iterations: None,
            storage_bindings: 8,
            max_binding_bytes: 128 << 20,
            max_buffer_bytes: 256 << 20,
            max_uniform_bytes: 64 << 10,
            subgroup: None,
            lanes: None,
            matrices: None,
            has_f16: false,
            has_timestamps: false,
            has_64_bit: false,
        }
    }

    /// Resources of one program on this kind of device.
    pub fn budget(&self) -> Budget {
        let (staged_bytes, live_elements) = match self.profile {
            Profile::Cpu => (u64::MAX, usize::MAX),
            Profile::Gpu | Profile::Baseline => (self.workgroup_bytes, 64 * 256),
            Profile::SimtCpu => (u64::MAX, 64 * 64),
        };
        let programs = self.cores.map_or(256, |cores| 4 * cores);
        Budget { staged_bytes, live_elements, programs, lockstep: self.profile == Profile::SimtCpu }
    }

    /// Name of the profile, `gpu_coop` for a GPU with cooperative matrices.
    pub fn name(&self) -> &'static str {
        match (self.profile, self.matrices) {
            (Profile::Gpu, Some(_)) => "gpu_coop",
            (profile, _) => profile.name(),
        }
    }
}

//! The target of code generation: limits of a device, and how it executes a kernel.
//!
//! Every device has a [`Target`]. Shaders are generated for a target, and functions that choose block sizes read one.
//! Constants of a kind of device ([`Profile`]) are data here ([`Target::budget`]); operation costs, which only the
//! placement of shaders uses, are in `wgsl/profile.rs`.

/// The method by which a device executes one program of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Profile {
    /// Native code: one core of the host runs a program, whose tiles fit that core's caches.
    Cpu,
    /// A graphics card: 64 to 256 threads run a program; its tiles are in their registers, operands of products in
    /// workgroup memory.
    #[default]
    Gpu,
    /// A software adapter (lavapipe, SwiftShader): a program is a loop of one CPU thread over the lanes of a SIMD
    /// vector.
    SimtCpu,
    /// A GPU without registers for tiles: every tile is in workgroup memory or scratch. Used as a reference in tests.
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
pub struct CooperativeMatrices {
    /// Rows and columns for f16 factors: 8 or 16. `None` if there is no such product.
    pub half: Option<u32>,
    /// Rows and columns for f32 factors. `None` if there is no such product.
    pub float: Option<u32>,
    /// Greatest number of threads that compute a product together.
    pub lanes: u32,
}

/// Limits of a device and its kind. A kernel beyond a limit is refused with the limit's name.
///
/// ```
/// # use pallas_codegen::target::Target;
/// let target = Target { workgroup_bytes: 48 << 10, max_threads: 1024, ..Target::webgpu() };
/// assert_eq!(target.budget().staged_bytes, 48 << 10);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// The way in which the device executes a program.
    pub profile: Profile,
    /// Number of cores that run programs at the same time; `None` if the driver does not report it.
    pub cores: Option<usize>,
    /// Maximum bytes of workgroup memory ("VMEM") of one parallel program.
    pub workgroup_bytes: u64,
    /// Maximum threads of one workgroup, all of which may be along x.
    pub max_threads: u32,
    /// Maximum workgroups of a dispatch along one axis.
    pub max_workgroups_per_axis: u32,
    /// Loop iterations after which the driver silently stops an invocation; `None` if no such limit is known.
    pub max_loop_iterations: Option<u32>,
    /// Maximum storage buffers that a kernel can bind.
    pub storage_bindings: u32,
    /// Maximum bytes of one storage buffer binding.
    pub max_binding_bytes: u64,
    /// Maximum bytes of one buffer.
    pub max_buffer_bytes: u64,
    /// Maximum bytes of a uniform binding.
    pub max_uniform_bytes: u64,
    /// Smallest and largest subgroup size; subgroup operations are used only if they are equal. `None`: no such
    /// operations.
    pub subgroup: Option<(u32, u32)>,
    /// Lanes of a SIMD vector, if the threads of a workgroup of that size run in lockstep and need no barriers.
    pub lanes: Option<u32>,
    /// Cooperative matrix products of a subgroup, if kernels use them. `PALLAS_PROFILE=gpu` turns them off.
    pub matrices: Option<CooperativeMatrices>,
    /// True if shaders have a 16-bit float type.
    pub has_f16: bool,
    /// True if kernels can be timed on the device.
    pub has_timestamps: bool,
    /// True if the device supports 64-bit element types (f64, i64, u64).
    pub has_64_bit: bool,
}

/// Resources of one program, from which block sizes are chosen; see [`Target::budget`].
///
/// ```
/// # use pallas_codegen::target::Target;
/// // The largest square blocks whose two f32 factors fit workgroup memory.
/// let budget = Target::webgpu().budget();
/// let fits = |&block: &u64| 2 * block * block * 4 <= budget.staged_bytes;
/// assert_eq!([64, 32, 16].into_iter().find(fits), Some(32));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgramBudget {
    /// Bytes of the tiles that threads share: operands of products, and tiles that are reduced across threads.
    ///
    /// The size of workgroup memory on a GPU. Unlimited where products read arrays and caches directly.
    pub staged_bytes: u64,
    /// Elements of the tiles that are live at the same time in elementwise code and row reductions.
    ///
    /// 64 registers of each of 256 threads on a GPU, of each of 64 threads on a software adapter. Unlimited on the CPU,
    /// whose elementwise code processes a tile in strips.
    pub live_elements: usize,
    /// Number of programs that occupies the whole device.
    ///
    /// Four per core if the number of cores is known, so that cores finish at about the same time; 256 otherwise, since
    /// a core of a GPU runs several workgroups at once.
    pub programs: usize,
    /// True if both sides of a branch are executed, since threads are lanes of one vector.
    pub lockstep: bool,
}

impl Target {
    /// The host, on which only memory is limited.
    pub fn host() -> Target {
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

    /// The limits that WebGPU guarantees on every device.
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

    /// Returns the resources of one program on this kind of device.
    pub fn budget(&self) -> ProgramBudget {
        let (staged_bytes, live_elements) = match self.profile {
            Profile::Cpu => (u64::MAX, usize::MAX),
            Profile::Gpu | Profile::Baseline => (self.workgroup_bytes, 64 * 256),
            Profile::SimtCpu => (u64::MAX, 64 * 64),
        };
        let programs = self.cores.map_or(256, |cores| 4 * cores);
        ProgramBudget { staged_bytes, live_elements, programs, lockstep: self.profile == Profile::SimtCpu }
    }

    /// Returns the name of the profile: `gpu_coop` for a GPU with cooperative matrices.
    pub fn name(&self) -> &'static str {
        match (self.profile, self.matrices) {
            (Profile::Gpu, Some(_)) => "gpu_coop",
            (profile, _) => profile.name(),
        }
    }
}

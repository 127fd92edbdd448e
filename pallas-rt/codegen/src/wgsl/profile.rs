//! Costs and preferences of the profiles that shaders are generated for. They are numbers only; the algorithm is the
//! same for all profiles.
use crate::target::Profile;

/// Prices of operations and limits by which placements for a target's profile are chosen.
#[derive(Debug)]
pub(super) struct ProfileParameters {
    /// Thread grids to try: rows and columns of threads.
    pub(super) grids: &'static [(u32, u32)],
    /// Maximum registers of a thread for one tile; larger tiles are stored in memory.
    pub(super) registers: usize,
    /// True if products read their operands from workgroup memory, not from arrays.
    pub(super) stage: bool,
    /// Maximum number of sequential steps whose operands are in flight at once; 1 if none are loaded ahead.
    pub(super) depth: usize,
    /// Number of adjacent elements of a thread along columns, if rows of arrays consist of whole vectors.
    pub(super) vector: usize,
    /// True if threads have that many adjacent elements of all arrays, whatever the length of rows.
    pub(super) vectorize_always: bool,
    /// Maximum fused multiply-adds in the text of one iteration of a product's inner loop.
    pub(super) max_unrolled_fmas: usize,
    /// Price of an element read from or written to global memory.
    pub(super) global: f64,
    /// Price of a vec4 read from or written to global memory.
    pub(super) vec4: f64,
    /// Price of a word read from or written to workgroup memory.
    pub(super) workgroup: f64,
    /// Price of an operation in registers.
    pub(super) operation: f64,
    /// Price of a multiply-add of cooperative matrices, for each thread of the subgroup.
    pub(super) matrix: f64,
    /// Price of a barrier.
    pub(super) barrier: f64,
    /// Price of a line of text, for compile time.
    pub(super) line: f64,
    /// Registers that a thread has before it spills, and the price of each further register.
    pub(super) register_file: (usize, f64),
    /// Number of threads that run for the price of one.
    pub(super) parallel: f64,
}

impl Profile {
    /// Returns the profile's parameters. The CPU has those of the baseline; no shader is generated for it
    /// ([`super::place_kernel`] refuses it).
    pub(super) fn parameters(self) -> &'static ProfileParameters {
        match self {
            Profile::Cpu | Profile::Baseline => &BASELINE_PARAMETERS,
            Profile::Gpu => &GPU_PARAMETERS,
            Profile::SimtCpu => &SIMT_CPU_PARAMETERS,
        }
    }
}

/// Thread grids, limits and prices of operations of the profile for GPUs.
const GPU_PARAMETERS: ProfileParameters = ProfileParameters {
    grids: &[
        (16, 16),
        (8, 32),
        (32, 8),
        (4, 64),
        (1, 256),
        (8, 16),
        (16, 8),
        (4, 32),
        (1, 128),
        (8, 8),
        (4, 16),
        (16, 4),
        (2, 32),
        (1, 64),
        (64, 1),
    ],
    registers: 64,
    stage: true,
    depth: 3,
    vector: 4,
    vectorize_always: false,
    max_unrolled_fmas: 512,
    global: 16.0,
    vec4: 64.0,
    workgroup: 1.0,
    operation: 0.25,
    matrix: 0.03,
    barrier: 20.0,
    line: 0.02,
    register_file: (192, 400.0),
    parallel: 256.0,
};

/// Parameters of the baseline profile, a reference for tests: tiles are in memory instead of registers, and elements
/// are processed one by one instead of in vectors.
const BASELINE_PARAMETERS: ProfileParameters = ProfileParameters {
    grids: &[(1, 256)],
    registers: 0,
    depth: 1,
    vector: 1,
    max_unrolled_fmas: 1,
    vec4: 26.0,
    line: 0.0,
    register_file: (255, 4.0),
    ..GPU_PARAMETERS
};

/// Parameters of the profile for adapters that run shaders in software on a CPU, such as lavapipe.
const SIMT_CPU_PARAMETERS: ProfileParameters = ProfileParameters {
    grids: &[(8, 1), (16, 1), (32, 1), (64, 1), (1, 8), (1, 16), (1, 32), (1, 64), (8, 8)],
    registers: 64,
    stage: false,
    depth: 1,
    vector: 4,
    vectorize_always: true,
    max_unrolled_fmas: 256,
    global: 8.0,
    vec4: 18.0,
    workgroup: 8.0,
    operation: 0.35,
    matrix: 0.35,
    barrier: 60.0,
    line: 20.0,
    register_file: (512, 1.0),
    parallel: 8.0,
};

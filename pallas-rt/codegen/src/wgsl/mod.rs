//! Generates WGSL from lowered tile IR.
//!
//! Each program is one workgroup. [`mod@place`] decides where every tile is stored and which threads hold it, with the
//! parameters of a [`profile`]; [`emit`] writes the text; [`buffer_addresses`] assigns addresses; [`barriers`] inserts
//! barriers, [`sink_steps`] moves steps so that fewer are needed, [`races`] checks them, [`bank_conflicts`] computes
//! coalescing and bank conflicts; [`thread_grid_choice`] runs these for several thread grids and keeps the cheapest,
//! which is a [`placed_kernel`]; [`pipeline`] and [`report`] describe what was decided. [`types`] has element types as
//! WGSL sees them.
//!
//! - `wgsl/` (feature `wgsl`, which `gpu` includes, and unit tests) emits the lowered form as a shader for a `Target`:
//!   1. Passes: first and last steps move out of the innermost sequential loop (`passes/peel`), scratch becomes values
//!      (`passes/promote_scratch`), reductions of sums move after their loop (`passes/sink_reductions`), and operands
//!      of products are fetched one or more steps ahead (`passes/software_pipeline`), fewer if tiles would not fit.
//!      Where a driver stops long loops, `passes/split_long_loops` splits the sequential axes into ranges, and scratch
//!      stays in global memory between dispatches.
//!   2. `place/` distributes the axes of tiles over a grid of threads, and assigns registers or a buffer to each tile,
//!      or recomputes it. If rows of arrays are whole vectors of four elements (a part of the shader's key), threads
//!      read, hold and write four adjacent elements at a time. Tiles that are only copied from an array to workgroup
//!      memory have a thread grid of their own, as wide as their rows.
//!   3. `emit/` writes steps, and records the memory that each of them accesses.
//!   4. `buffer_addresses` assigns addresses to buffers; if they do not fit, `thread_grid_choice` moves the largest to
//!      global memory. `bank_conflicts` computes the memory segments and banks that 32 adjacent threads access; it pads
//!      rows of tiles or groups of rows accordingly, or permutes columns (swizzle) if there is no memory for padding.
//!   5. `barriers` inserts barriers between conflicting accesses; `sink_steps` moves steps so that fewer barriers are
//!      needed. `races` checks the barriers by another algorithm and removes redundant ones; tests require that there
//!      is no race, and that there is one if any barrier is removed.
//!   6. `thread_grid_choice` estimates the cost for every thread grid of the profile, and emits the cheapest.
//!
//!   The profile `simt_cpu` (lavapipe) stages nothing: products read arrays directly, and a workgroup is one vector in
//!   lockstep. A target with cooperative matrices (`gpu_coop`) differs in products only: `place/cooperative_matrices`
//!   finds the products that subgroups can compute together, and the sums that can stay in accumulators, whose elements
//!   cannot be accessed. Factors are in workgroup memory of their own element type (`StorageCell`), results are read
//!   from copies there, and `emit/fragment_products` writes both, in control flow that is uniform across threads. Tests
//!   run the same text on adapters without matrices, with the matrix functions replaced (`tests/product/emulation.rs`).
//!   The baseline profile is the same algorithm without registers, as a reference in tests.
//!
//! - No thread writes one component of a vector that other threads see: Metal and D3D write whole vectors, so
//!   neighbours' writes would be lost. Buffers that words are written to one by one are arrays of words (`wgsl`'s
//!   `StorageCell`); `tests/product/validate.rs` looks at every shipped shader.
mod bank_conflicts;
mod barriers;
mod buffer_addresses;
mod emit;
mod pipeline;
mod place;
mod placed_kernel;
mod pressure;
mod profile;
mod races;
mod report;
mod sink_steps;
mod thread_grid_choice;
mod types;

pub use bank_conflicts::AccessReport;
pub use emit::{IterationBound, OperationCounts, UNIFORM_HEADER_WORDS};
pub use pipeline::PipelinedOperand;
pub use report::{PlacedTile, Placement};

use crate::target::{Profile, Target};
use pallas_ir::{At, DType, Diag, Kernel, Op, OperandId, OperandKind};
use placed_kernel::{PlacedKernel, PlacementInput, PlanAddresses};

/// A kernel as a WGSL shader, and what a launch must provide.
#[derive(Clone, Debug)]
pub struct Shader {
    /// The text of the shader.
    pub text: String,
    /// Arrays in the order of their bindings, with true for those that are written.
    pub bindings: Vec<(OperandId, bool)>,
    /// Sizes of arrays that the uniform has after the dimensions, each given by an array and an axis.
    pub extents: Vec<(OperandId, usize)>,
    /// Words at the end of the uniform: bits of floating-point constants that WGSL has no literal for.
    pub constants: Vec<u32>,
    /// Words of global scratch that one program uses.
    pub scratch_words: usize,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: usize,
    /// Number of threads of a workgroup.
    pub threads: u32,
    /// True if the shader reports errors in a flag.
    pub error_flag: bool,
    /// Upper bound of the loop iterations of a thread.
    pub iterations: IterationBound,
    /// The tile IR that was placed: the lowered form after the passes for GPUs (peeling, promotion, sunk reductions,
    /// pipelining).
    pub kernel: Kernel,
    /// The storage of tiles, and the reasons of barriers.
    pub placement: Placement,
}

/// Emits a lowered kernel whose outermost loops run over `sequential_axes` axes of the grid. `multiple_of_four_dims`
/// has a bit for each dimension of the kernel, in order: 1 where its extent is a multiple of four.
///
/// # Errors
/// An element type that adapters do not support; scratch larger than workgroup memory; a target that runs no shaders.
pub fn emit(
    kernel: &Kernel,
    sequential_axes: usize,
    target: &Target,
    multiple_of_four_dims: u64,
) -> Result<Shader, Diag> {
    Ok(assemble_shader(
        place_kernel(PlacementInput {
            kernel,
            sequential: sequential_axes,
            resumed: false,
            target,
            multiples: multiple_of_four_dims,
        })?,
        target,
    ))
}

/// Emits a kernel whose sequential axes the pass [`split_long_loops`](crate::passes::split_long_loops) has split into
/// ranges, one for each dispatch: scratch is in global memory, so that it keeps its contents between dispatches.
///
/// # Errors
/// Those of [`emit`].
pub fn emit_resumable(
    kernel: &Kernel,
    sequential_axes: usize,
    target: &Target,
    multiple_of_four_dims: u64,
) -> Result<Shader, Diag> {
    Ok(assemble_shader(
        place_kernel(PlacementInput {
            kernel,
            sequential: sequential_axes,
            resumed: true,
            target,
            multiples: multiple_of_four_dims,
        })?,
        target,
    ))
}

/// Returns the cheapest placement of a kernel.
///
/// # Errors
/// A target that runs no shaders, a 64-bit element type, or scratch that does not fit.
fn place_kernel(task: PlacementInput<'_>) -> Result<PlacedKernel, Diag> {
    let PlacementInput { kernel, target, .. } = task;
    if target.profile == Profile::Cpu {
        let help = "take the target of a GPU, or `Target::webgpu()`";
        return Err(Diag::new("target", At::Op, "the target is the CPU, which runs no shaders".into(), help));
    }
    for operand in &kernel.operands {
        refuse_64_bit_type(operand.dtype, &operand.name)?;
    }
    for ty in &kernel.values {
        refuse_64_bit_type(ty.dtype, "a tile")?;
    }
    thread_grid_choice::choose_placement(task).ok_or_else(|| scratch_memory_error(kernel, target))
}

/// Assembles the shader of a placed kernel: its text, the bindings and sizes that a launch needs, and the report of its
/// placement.
fn assemble_shader(placed: PlacedKernel, target: &Target) -> Shader {
    let error_flag = target.max_loop_iterations.is_some() || placed.emitted.checks;
    let placement = report::describe_placement(&placed, target);
    let PlacedKernel { kernel, plan, emitted, sizes, .. } = placed;
    Shader {
        text: emit::emit_module(&kernel, &plan, &emitted, sizes, error_flag),
        bindings: emit::bound_arrays(&kernel),
        extents: emit::launch_computed_extents(&kernel),
        constants: emitted.constants,
        scratch_words: sizes.scratch,
        workgroup_bytes: sizes.workgroup_bytes(),
        threads: plan.thread_count() as u32,
        error_flag,
        iterations: emitted.iterations,
        placement,
        kernel,
    }
}

/// The findings of a check of a shader's barriers: data races, and barriers that are not needed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BarrierAudit {
    /// Number of barriers in the text.
    pub barriers: usize,
    /// Conflicting accesses without a barrier between them; any such pair is a bug of the emitter.
    pub races: Vec<String>,
    /// Barriers that no conflict needs.
    pub idle: Vec<String>,
}

/// Returns a kernel's shader, as `emit` does, and checks its barriers by another algorithm than the one that placed
/// them.
///
/// # Errors
/// Those of `emit`.
pub fn audit_barriers(
    kernel: &Kernel,
    sequential_axes: usize,
    target: &Target,
    multiple_of_four_dims: u64,
) -> Result<(Shader, BarrierAudit), Diag> {
    let placed = place_kernel(PlacementInput {
        kernel,
        sequential: sequential_axes,
        resumed: false,
        target,
        multiples: multiple_of_four_dims,
    })?;
    let (nodes, addresses) = (&placed.emitted.nodes, PlanAddresses { k: &placed.kernel, plan: &placed.plan });
    let audit = BarrierAudit {
        barriers: barriers::barrier_reasons(nodes).len(),
        races: races::find_races(nodes, &addresses),
        idle: races::find_redundant_barriers(nodes, &addresses),
    };
    Ok((assemble_shader(placed, target), audit))
}

/// Returns an error for a 64-bit element type, which shaders lack; the message says that `holder` has it.
fn refuse_64_bit_type(dtype: DType, holder: &str) -> Result<(), Diag> {
    if !matches!(dtype, DType::F64 | DType::I64 | DType::U64) {
        return Ok(());
    }
    let message = format!("{holder} holds {dtype}, which shaders have no type for");
    Err(Diag::new("adapter-dtype", At::Op, message, "use a 32-bit type, or the CPU"))
}

/// Returns the diagnostic for tiles that do not fit workgroup memory, of a kernel without scratch; it names the
/// largest tile.
fn tile_memory_error(kernel: &Kernel, target: &Target) -> Diag {
    let made = kernel.insts.iter().flat_map(|inst| inst.results.iter().map(move |&v| (inst, v)));
    let largest = made.max_by_key(|(_, v)| kernel.ty(*v).elements());
    let tile = largest.map_or("its tiles".to_string(), |(inst, v)| match &inst.op {
        Op::Scalar(op) => format!("`{op}` to {}", kernel.ty(v)),
        Op::Structural(op) => format!("`{}` to {}", op.name(), kernel.ty(v)),
        _ => format!("a tile of {}", kernel.ty(v)),
    });
    let room = target.workgroup_bytes;
    let message =
        format!("what threads share does not fit the {room} bytes of workgroup memory; the largest tile is {tile}");
    Diag::new("vmem", At::Op, message, "take smaller blocks, or use the CPU")
}

/// Returns the diagnostic for scratch that does not fit workgroup memory. Scratch is never moved to global memory,
/// since the user asked for fast memory.
fn scratch_memory_error(kernel: &Kernel, target: &Target) -> Diag {
    let scratch = kernel.operands.iter().filter(|o| o.kind == OperandKind::Scratch);
    // Each element takes a word, whatever its type.
    let mut table: Vec<(&str, usize)> =
        scratch.map(|o| (o.name.as_str(), 4 * o.block_shape().iter().product::<usize>())).collect();
    table.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    if table.is_empty() {
        return tile_memory_error(kernel, target);
    }
    let total: usize = table.iter().map(|(_, bytes)| bytes).sum();
    let rows: Vec<String> = table.iter().map(|(name, bytes)| format!("`{name}` {bytes}")).collect();
    let message = format!(
        "its scratch takes {total} bytes of workgroup memory, the device has {}: {}",
        target.workgroup_bytes,
        rows.join(", ")
    );
    let largest = table.first().map_or("", |(name, _)| name);
    let help = format!("make `{largest}`, the largest, smaller: smaller blocks; or use the CPU");
    Diag::new("vmem", At::Op, message, help)
}

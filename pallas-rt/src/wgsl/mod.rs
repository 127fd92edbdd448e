//! WGSL from lowered tile IR.
//!
//! One workgroup per program. [`mod@place`] decides where every tile lives and which threads hold it, with the numbers of a
//! [`profile`]; [`emit`] writes the text; [`arena`] gives memory its addresses; [`sync`] finds where threads must meet,
//! [`settle`] where they meet less often, [`races`] whether they do, [`reach`] what neighbouring threads touch at once;
//! [`choose`] runs these for several grids of threads and keeps the cheapest. [`types`] are element types as WGSL sees them.
mod arena;
mod choose;
mod emit;
mod pipeline;
mod place;
mod pressure;
mod profile;
mod races;
mod reach;
mod report;
mod settle;
mod sync;
mod types;

use crate::device::Matrices;
use choose::{Addresses, Placed, Task};
pub use emit::Iterations;
use pallas_ir::{At, DType, Diag, Kernel, OperandId, OperandKind};
pub use profile::Profile;
pub use reach::Reach;

/// What a shader may use and rely on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Workgroup memory.
    pub workgroup_bytes: u64,
    /// Threads of a workgroup.
    pub max_threads: u32,
    /// Loop iterations after which the driver silently stops an invocation.
    pub max_loop_iterations: Option<u32>,
    /// The kind of device.
    pub profile: Profile,
    /// Threads of a subgroup, if workgroups up to its size run in lockstep.
    pub lanes: Option<u32>,
    /// Products that subgroups compute together, for [`Profile::GpuCoop`].
    pub matrices: Option<Matrices>,
    /// Dimensions of the kernel, by number, whose extents are multiples of four: bit by bit.
    pub multiples: u64,
}

impl Limits {
    /// What WebGPU promises everywhere; of cooperative matrices, which it doesn't promise, what most devices have.
    pub fn default_of(profile: Profile) -> Limits {
        let matrices = Matrices { half: Some(16), float: Some(8), lanes: 32 };
        Limits {
            workgroup_bytes: 16 << 10,
            max_threads: 256,
            max_loop_iterations: None,
            profile,
            lanes: None,
            matrices: (profile == Profile::GpuCoop).then_some(matrices),
            multiples: 0,
        }
    }
}

/// A kernel as WGSL, and what a launch must provide.
#[derive(Clone, Debug)]
pub struct Shader {
    /// The text.
    pub text: String,
    /// Arrays in the order of their bindings, and whether they are written.
    pub bindings: Vec<(OperandId, bool)>,
    /// Words appended to the uniform: bits of constants that WGSL has no literal for.
    pub constants: Vec<u32>,
    /// Words of scratch one program uses.
    pub scratch_words: usize,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: usize,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Whether it reports through an error flag.
    pub error_flag: bool,
    /// Loop iterations of a thread.
    pub iterations: Iterations,
    /// The tile IR that was placed: the lowered form, peeled, its scratch promoted, its sums delayed.
    pub kernel: Kernel,
    /// Where tiles live, and why threads meet.
    pub placement: Placement,
}

/// What placement decided, for people.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The kind of device it is for.
    pub profile: Profile,
    /// Rows and columns of threads.
    pub grid: (u32, u32),
    /// Tiles and scratch that have a home, in the order of the tile IR.
    pub tiles: Vec<PlacedTile>,
    /// The reason of every barrier, in the order of the text.
    pub barriers: Vec<String>,
    /// What 32 neighbouring threads reach in an access, by line.
    pub reaches: Vec<Reach>,
    /// Registers a thread needs for tiles at once, at most.
    pub registers: usize,
    /// What a thread does in one step of the innermost sequential axis, or in all if there is none.
    pub step: Counts,
    /// Bytes of workgroup memory, and how many the device has.
    pub workgroup_bytes: (usize, u64),
    /// Operands whose blocks are fetched ahead of the innermost sequential axis, or were to be.
    pub pipeline: Vec<PipelinedOperand>,
}

/// How far ahead an operand is fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PipelinedOperand {
    /// Its name.
    pub name: String,
    /// `buffered` in its spec.
    pub asked: Option<usize>,
    /// Sequential steps whose tiles are on their way at once: 1 fetches none ahead.
    pub depth: usize,
    /// Why so many.
    pub why: &'static str,
}

/// What a thread executes; both sides of branches count.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Counts {
    /// Multiply-adds of products.
    pub fma: f64,
    /// Products of fragments by cooperative matrices: a subgroup's.
    pub fragments: f64,
    /// Words of workgroup memory that products read.
    pub product_words: f64,
    /// Elements of arrays read and written.
    pub global: f64,
    /// Barriers.
    pub barriers: f64,
}

impl Counts {
    /// What was executed since `before`, if that was so many times.
    fn since(self, before: Counts, times: f64) -> Counts {
        Counts {
            fma: (self.fma - before.fma) / times,
            fragments: (self.fragments - before.fragments) / times,
            product_words: (self.product_words - before.product_words) / times,
            global: (self.global - before.global) / times,
            barriers: (self.barriers - before.barriers) / times,
        }
    }
}

/// A tile and its home.
#[derive(Clone, Debug)]
pub struct PlacedTile {
    /// Value and name.
    pub name: String,
    /// Element type and extents.
    pub ty: String,
    /// Where it lives.
    pub home: String,
    /// Why there.
    pub why: &'static str,
    /// Bytes of workgroup memory it takes.
    pub workgroup_bytes: usize,
}

/// Leading words of the uniform: first program, number of programs.
pub const HEADER_WORDS: usize = 4;

/// Emits a lowered kernel whose outermost loops run over `sequential` axes of the grid.
///
/// # Errors
/// An element type that adapters have no type for; scratch beyond workgroup memory.
pub fn emit(kernel: &Kernel, sequential: usize, limits: &Limits) -> Result<Shader, Diag> {
    emit_task(Task { kernel, sequential, resumed: false, limits })
}

/// Emits a kernel that [`resume`](crate::passes::resume) gave ranges: its scratch outlives a dispatch.
///
/// # Errors
/// As [`emit`].
pub fn emit_resumed(kernel: &Kernel, sequential: usize, limits: &Limits) -> Result<Shader, Diag> {
    emit_task(Task { kernel, sequential, resumed: true, limits })
}

fn emit_task(task: Task<'_>) -> Result<Shader, Diag> {
    Ok(written(place(task)?, task.limits))
}

/// The cheapest placement.
fn place(task: Task<'_>) -> Result<Placed, Diag> {
    let Task { kernel, limits, .. } = task;
    for operand in &kernel.operands {
        refuse_wide(operand.dtype, &operand.name)?;
    }
    for ty in &kernel.values {
        refuse_wide(ty.dtype, "a tile")?;
    }
    choose::choose(task).ok_or_else(|| refuse_scratch(kernel, limits))
}

fn written(placed: Placed, limits: &Limits) -> Shader {
    let error_flag = limits.max_loop_iterations.is_some();
    let placement = report::placement(&placed, limits);
    let Placed { kernel, plan, emitted, sizes, .. } = placed;
    Shader {
        text: emit::module(&kernel, &plan, &emitted, sizes, error_flag),
        bindings: emit::arrays(&kernel),
        constants: emitted.constants,
        scratch_words: sizes.scratch,
        workgroup_bytes: sizes.workgroup_bytes(),
        threads: plan.threads() as u32,
        error_flag,
        iterations: emitted.iterations,
        placement,
        kernel,
    }
}

/// What the race checker says of a kernel's shader.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Audit {
    /// Barriers in the text.
    pub barriers: usize,
    /// Accesses in conflict that no barrier is between: empty, or the emitter is wrong.
    pub races: Vec<String>,
    /// Barriers without which nothing would race.
    pub idle: Vec<String>,
}

/// A kernel's shader, as [`emit`] gives it, and its barriers checked by another algorithm than the one that placed them.
///
/// # Errors
/// As [`emit`].
pub fn audit(kernel: &Kernel, sequential: usize, limits: &Limits) -> Result<(Shader, Audit), Diag> {
    let placed = place(Task { kernel, sequential, resumed: false, limits })?;
    let (nodes, addresses) = (&placed.emitted.nodes, Addresses { k: &placed.kernel, plan: &placed.plan });
    let audit = Audit {
        barriers: sync::reasons(nodes).len(),
        races: races::races(nodes, &addresses),
        idle: races::idle(nodes, &addresses),
    };
    Ok((written(placed, limits), audit))
}

fn refuse_wide(dtype: DType, what: &str) -> Result<(), Diag> {
    if !matches!(dtype, DType::F64 | DType::I64 | DType::U64) {
        return Ok(());
    }
    let message = format!("{what} holds {dtype}, which shaders have no type for");
    Err(Diag::new("adapter-dtype", At::Op, message, "use a 32-bit type, or the CPU"))
}

/// Tiles that we place ourselves find other homes; scratch is what the user asked to be fast.
fn refuse_scratch(kernel: &Kernel, limits: &Limits) -> Diag {
    let scratch = kernel.operands.iter().filter(|o| o.kind == OperandKind::Scratch);
    // A word an element, whatever its type.
    let mut table: Vec<(&str, usize)> =
        scratch.map(|o| (o.name.as_str(), 4 * o.block_shape().iter().product::<usize>())).collect();
    table.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    let total: usize = table.iter().map(|(_, bytes)| bytes).sum();
    let rows: Vec<String> = table.iter().map(|(name, bytes)| format!("`{name}` {bytes}")).collect();
    let message = format!(
        "its scratch takes {total} bytes of workgroup memory, the device has {}: {}",
        limits.workgroup_bytes,
        rows.join(", ")
    );
    let largest = table.first().map_or("", |(name, _)| name);
    let help = format!("make `{largest}`, the largest, smaller: smaller blocks; or use the CPU");
    Diag::new("vmem", At::Op, message, help)
}

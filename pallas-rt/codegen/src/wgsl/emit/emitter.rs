//! The state of writing a kernel's shader, and the result: steps, and counts of what a thread executes.
use super::super::bank_conflicts::EmittedAccess;
use super::super::barriers::{MemoryStep, ShaderNode};
use super::super::place::PlacementPlan;
use super::super::profile::ProfileParameters;
use super::position::ArrayAccessCache;
use pallas_ir::{Kernel, OperandId, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Number of operations that a thread executes; both sides of branches are counted.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct OperationCounts {
    /// Multiply-adds of products.
    pub fma: f64,
    /// Products of fragments that a subgroup computes by cooperative matrices.
    pub fragments: f64,
    /// Words of workgroup memory that products read.
    pub product_words: f64,
    /// Elements of arrays that are read and written.
    pub global: f64,
    /// Barriers that the thread waits at.
    pub barriers: f64,
}

impl OperationCounts {
    /// Returns the operations that were counted after `before`, divided by the number of `iterations`.
    pub(super) fn average_since(self, before: OperationCounts, iterations: f64) -> OperationCounts {
        OperationCounts {
            fma: (self.fma - before.fma) / iterations,
            fragments: (self.fragments - before.fragments) / iterations,
            product_words: (self.product_words - before.product_words) / iterations,
            global: (self.global - before.global) / iterations,
            barriers: (self.barriers - before.barriers) / iterations,
        }
    }
}

/// Upper bound of the loop iterations that a thread executes.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct IterationBound {
    /// Iterations outside of the loops over sequential axes.
    pub outside: u64,
    /// Iterations in one step of each sequential axis, outermost first, without those in steps of the next axis.
    pub axes: Vec<u64>,
    /// True if there are other loops whose number of iterations depends on data.
    pub more: bool,
}

impl IterationBound {
    /// Returns the upper bound of a thread's iterations in a launch with `counts` steps along the sequential axes;
    /// loops whose number of iterations depends on data are not counted.
    pub fn total(&self, counts: &[i64]) -> u64 {
        let nested = |inner: u64, (own, n): (&u64, &i64)| own.saturating_add(inner).saturating_mul(*n as u64);
        self.axes.iter().zip(counts).rev().fold(0, nested).saturating_add(self.outside)
    }
}

/// Loop iterations that are assumed where the number is known only at the launch.
pub(in crate::wgsl) const ASSUMED_TRIP_COUNT: f64 = 8.0;

/// Estimates the cost of a program whose threads do `thread_work` each, and whose text has `lines` lines.
pub(in crate::wgsl) fn estimate_program_cost(
    thread_work: f64,
    lines: usize,
    plan: &PlacementPlan,
    parameters: &ProfileParameters,
) -> f64 {
    thread_work * plan.thread_count() as f64 / parameters.parallel + lines as f64 * parameters.line
}

/// A kernel's body as nodes (steps and control flow), before barriers are inserted.
#[derive(Default)]
pub(in crate::wgsl) struct EmittedBody {
    pub(in crate::wgsl) nodes: Vec<ShaderNode>,
    /// Bits of floating-point constants that WGSL has no literal for.
    pub(in crate::wgsl) constants: Vec<u32>,
    /// Definitions of the WGSL functions that the text calls.
    pub(in crate::wgsl) helpers: BTreeSet<&'static str>,
    /// Tiles in registers that are read across threads and need a copy, which they do not have yet.
    pub(in crate::wgsl) wanted: BTreeSet<Value>,
    /// Tiles in registers of which threads read their own elements; of others with a copy, only the copy is read.
    pub(in crate::wgsl) read_in_registers: BTreeSet<Value>,
    /// Cost of the operations that a thread executes, at the profile's prices.
    pub(in crate::wgsl) work: f64,
    /// Number of lines of text.
    pub(in crate::wgsl) lines: usize,
    pub(in crate::wgsl) iterations: IterationBound,
    /// True if one thread reads scalars from memory for all, which needs memory to pass them on.
    pub(in crate::wgsl) broadcasts_scalars: bool,
    /// True if the steps of loops are checked to be positive, with errors reported by the error flag.
    pub(in crate::wgsl) checks: bool,
    /// True if the workgroup is one subgroup, which runs in lockstep.
    pub(in crate::wgsl) lockstep: bool,
    /// Every access to memory, in the order of the text; accesses that are written alike are merged at the end.
    pub(in crate::wgsl) accesses: Vec<EmittedAccess>,
    /// Arrays that are read or written four elements (a vec4) at a time.
    pub(in crate::wgsl) fours: BTreeSet<OperandId>,
    /// Buffers of vec4 to which single words are written.
    pub(in crate::wgsl) singles: BTreeSet<usize>,
    /// Operations of a thread in one step of the innermost sequential axis.
    pub(in crate::wgsl) step: OperationCounts,
    /// True if emission was stopped since the program costs more than its budget.
    pub(in crate::wgsl) stopped: bool,
}

/// The emitter of a kernel's body as WGSL text: the nodes written so far, and the state of writing.
pub(super) struct BodyEmitter<'k> {
    pub(super) k: &'k Kernel,
    pub(super) plan: &'k mut PlacementPlan,
    pub(super) parameters: &'k ProfileParameters,
    /// The result so far.
    pub(super) out: EmittedBody,
    /// Loop iterations after which the driver silently stops an invocation.
    pub(super) limit: Option<u32>,
    /// Nodes of the regions that are being written, innermost last.
    pub(super) open: Vec<Vec<ShaderNode>>,
    pub(super) step: Option<MemoryStep>,
    pub(super) depth: usize,
    pub(super) fresh: usize,
    /// Loop iterations of an invocation since the counter was last updated; leaving a loop counts as one.
    pub(super) spent: u64,
    /// Number of sequential axes whose loops have not been opened yet.
    pub(super) axes_left: usize,
    /// Iterations counted in each open loop, and outside of all loops.
    pub(super) counted: Vec<u64>,
    /// Operations that a thread executes; `per_step` has those in one step, once the innermost sequential axis' loop
    /// is closed.
    pub(super) counts: OperationCounts,
    pub(super) per_step: Option<OperationCounts>,
    /// True while operands of a product are being read.
    pub(super) product: bool,
    /// Bit mask of the dimensions that are multiples of four.
    pub(super) multiples: u64,
    /// For each fetched load, coordinates that have been computed in names which are in scope at the present line.
    pub(super) known: BTreeMap<Value, ArrayAccessCache>,
    /// Indices of vec4 in workgroup memory that have been read, and the names of the vectors.
    pub(super) tiles: Vec<(String, String)>,
    /// True if a text will be written; false while only costs are estimated.
    pub(super) written: bool,
    /// Number of elements over which the threads loop in strides at this place, if they do.
    pub(super) strided: Option<usize>,
    /// The line of the user's kernel that is being written.
    pub(super) at_line: u32,
    /// Number of times that the present line is executed.
    pub(super) trips: f64,
    /// The maximum cost of work and lines.
    pub(super) budget: f64,
}

//! The state of an emission, and what comes of it: steps, and what a thread executes.
use super::super::place::Plan;
use super::super::profile::Numbers;
use super::super::reach::Access;
use super::super::sync::{Node, Step};
use super::position::Known;
use pallas_ir::{Kernel, OperandId, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Operations that a thread executes; both sides of branches are counted.
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
    /// The operations executed since `before`, divided by the number of times.
    pub(super) fn since(self, before: Counts, times: f64) -> Counts {
        Counts {
            fma: (self.fma - before.fma) / times,
            fragments: (self.fragments - before.fragments) / times,
            product_words: (self.product_words - before.product_words) / times,
            global: (self.global - before.global) / times,
            barriers: (self.barriers - before.barriers) / times,
        }
    }
}

/// Loop iterations of a thread, at most.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Iterations {
    /// Outside of the loops over sequential axes.
    pub outside: u64,
    /// In one step of each sequential axis, outermost first, without the steps of the next one.
    pub axes: Vec<u64>,
    /// There are loops besides whose trips depend on data.
    pub more: bool,
}

impl Iterations {
    /// In `counts` steps of the sequential axes.
    pub fn total(&self, counts: &[i64]) -> u64 {
        let nested = |inner: u64, (own, n): (&u64, &i64)| own.saturating_add(inner).saturating_mul(*n as u64);
        self.axes.iter().zip(counts).rev().fold(0, nested).saturating_add(self.outside)
    }
}

/// Loop trips assumed where they are known at launch only.
pub(in crate::wgsl) const TRIPS: f64 = 8.0;

/// What a program costs whose threads do this work each, in a text of so many lines.
pub(in crate::wgsl) fn cost(work: f64, lines: usize, plan: &Plan, numbers: &Numbers) -> f64 {
    work * plan.threads() as f64 / numbers.parallel + lines as f64 * numbers.line
}

/// A kernel's body as nodes, before barriers.
#[derive(Default)]
pub(in crate::wgsl) struct Emitted {
    pub(in crate::wgsl) nodes: Vec<Node>,
    /// Bits of constants that WGSL has no literal for.
    pub(in crate::wgsl) constants: Vec<u32>,
    /// WGSL functions the text calls.
    pub(in crate::wgsl) helpers: BTreeSet<&'static str>,
    /// Register tiles that are read across threads and have no copy.
    pub(in crate::wgsl) wanted: BTreeSet<Value>,
    /// Register tiles that threads read their own elements of; others with a copy are read there alone.
    pub(in crate::wgsl) held: BTreeSet<Value>,
    /// What a thread executes, in the profile's prices.
    pub(in crate::wgsl) work: f64,
    /// Lines of text.
    pub(in crate::wgsl) lines: usize,
    pub(in crate::wgsl) iterations: Iterations,
    /// Threads agree on scalars that one of them reads.
    pub(in crate::wgsl) agrees: bool,
    /// True if steps of loops are checked, with errors reported by the error flag.
    pub(in crate::wgsl) checks: bool,
    /// The workgroup is one subgroup, which runs in lockstep.
    pub(in crate::wgsl) lockstep: bool,
    /// Every access, in the order of the text; those that are written alike as one in the end.
    pub(in crate::wgsl) accesses: Vec<Access>,
    /// Arrays that are read or written four elements at a time.
    pub(in crate::wgsl) fours: BTreeSet<OperandId>,
    /// Buffers of vectors that words are written to one by one.
    pub(in crate::wgsl) singles: BTreeSet<usize>,
    /// What a thread does in one step of the innermost sequential axis.
    pub(in crate::wgsl) step: Counts,
    /// Emission stopped: the program costs more than it may.
    pub(in crate::wgsl) stopped: bool,
}

/// Writes the steps of a kernel.
pub(super) struct Emit<'k> {
    pub(super) k: &'k Kernel,
    pub(super) plan: &'k mut Plan,
    pub(super) numbers: &'k Numbers,
    /// What comes of it, as far as it is emitted.
    pub(super) out: Emitted,
    /// Loop iterations after which the driver silently stops an invocation.
    pub(super) limit: Option<u32>,
    /// Nodes of the open regions.
    pub(super) open: Vec<Vec<Node>>,
    pub(super) step: Option<Step>,
    pub(super) depth: usize,
    pub(super) fresh: usize,
    /// Loop iterations of an invocation since the counter was last moved; leaving a loop counts as one.
    pub(super) spent: u64,
    /// Sequential axes whose loops are not open yet.
    pub(super) axes_left: usize,
    /// Iterations counted in each open loop, and outside of all.
    pub(super) counted: Vec<u64>,
    /// What a thread executes; in one step, once the innermost axis' loop is closed.
    pub(super) counts: Counts,
    pub(super) per_step: Option<Counts>,
    /// Operands of a product are being read.
    pub(super) product: bool,
    /// Dimensions that are multiples of four.
    pub(super) multiples: u64,
    /// Coordinates of fetched loads that have been computed where the present line sees them.
    pub(super) known: BTreeMap<Value, Known>,
    /// Indices of workgroup memory, and the names of the four words there.
    pub(super) tiles: Vec<(String, String)>,
    /// There will be a text.
    pub(super) written: bool,
    /// Elements that threads stride over here.
    pub(super) strided: Option<usize>,
    /// The user's line.
    pub(super) at_line: u32,
    /// How often the present line runs.
    pub(super) trips: f64,
    /// The most that work and lines may cost.
    pub(super) budget: f64,
}

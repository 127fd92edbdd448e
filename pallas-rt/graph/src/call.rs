//! Operations that call other graphs or kernels: loops, branches and functions. They alone have several results.
//!
//! The operands of a called graph are its parameters, so it mentions no variable of its caller. Each call has a file of
//! its own in `ops`.
//!
//! - **Captured values.** The body of a `scan` or a `while` is a graph whose captured arrays are parameters, so
//!   transformations and passes treat it like any other graph.
//! - **Host.** A `pure_callback` calls a function of the host between two launches, on a thread of its own; the
//!   program goes on when the function returns, so the function may launch kernels and wait for them. `debug_print` is
//!   a call whose result nothing reads: passes keep it (`call::has_effect`), and the order of steps begins with such
//!   equations.
//! - **Memory.** A call that is a step plans its bodies in its file in `ops`, and the values that a loop carries are
//!   updated in place. A step may ask for the memory of an operand for its output (`in_place`); a copy is made first
//!   unless the program owns the operand and nothing reads it later. So the stacks of a scan, to which
//!   `dynamic_update_slice` writes a row at a time, are never copied; nor is the operand of a `scatter`, if nothing
//!   reads it later. A stack takes over the memory of an array of its type that nothing else needs, if its elements
//!   are computed from those of the array (`ops/scan/in_place_loop`). An output of a kernel takes over the memory of an
//!   operand that is read last there, if each block is read before it is written (`fuse/donated_arguments`,
//!   `ir/src/memory_sharing.rs`).
//! - **Gather and scatter on a CPU.** The kernel of a scatter makes an operand that has the same number everywhere
//!   itself. A sum of rows of 16-bit floats (`fuse/scatter`: a scatter onto f32 zeros between two casts) is one step,
//!   which writes each row of the result once and needs no f32 array (`cpu/run/row_sums`). A gather is fused with the
//!   operations around it: programs divide its index rows and read the operand in place, and fill what lies outside
//!   (`cpu/plan/gather_fill`).
//! - **Kernels.** A `#[kernel]` call with a traced argument is bound and traced at once, so that mistakes are found at
//!   that line, and becomes a call with its sizes; the launch looks up nothing. A kernel has forward mode without a
//!   stated rule (`ops/kernel/jvp`): a second kernel with tangents of its operands and operations, by the rules that
//!   graphs use. `vmap` adds an axis to its grid (`ops/kernel/batch`). `Lowered::inline_kernels` replaces kernels by
//!   plain operations (`transform/kernel_expansion`), for texts that other compilers take: the grid is a `while` that
//!   carries outputs and scratch, blocks are windows of padded arrays.
//! - **Stated derivatives.** They are graphs too (`custom_vjp`), traced when the function is called; `simplify` puts
//!   their equations in place of the call. A rule that calls its own function is traced inside of itself up to the
//!   fourth order (`jit/recursive_rules`). A stated gradient made of kernels, which have tangents and no transpose, has
//!   a gradient by the symmetry of second derivatives (`ops/custom_vjp/second_order`).
//! - **Branches in a batch.** A branch whose index differs between the examples of a batch runs for all of them.
//!   Cotangents of the examples that take another branch are cleared by `emit_select` before they are multiplied by a slope
//!   that may be NaN (`transform/batch`).
//! - **Scans.** The reverse of a scan is a scan in the other direction: its body is the part of the body's derivative
//!   that depends on cotangents; the forward scan stores what that part reads. `simplify/scan_hoisting` takes out of a
//!   scan what carried values do not depend on and what they do not need, and computes it for all steps at once:
//!   elementwise products, and the sums of gradients of captured values, which become one product each.
//! - **Checkpoints.** `checkpoint` stores the values that its policy selects, and puts barriers in front of what the
//!   derivative computes again; when the body of a scan is split, equations after a barrier belong to the backward
//!   scan.
use crate::graph::{Equation, Graph, Op, OpName};
use crate::mesh::Mesh;
pub use crate::ops::checkpoint::CheckpointPolicy;
pub use crate::ops::custom_vmap::{BatchDescription, BatchRule, BatchRuleResult};
pub use crate::ops::pure_callback::{HostFunction, VmapMethod};
pub use crate::ops::{
    Call, Callback, Case, Checkpoint, CheckpointName, ClosedCall, CustomJvp, CustomVjp, CustomVmap, KernelCall,
    OpSample, Print, Scan, ShardMap, While,
};
use pallas_ir::{At, Diag, Type};
use std::sync::Arc;

/// Properties of every call: its graphs and its types. No method has a default.
pub(crate) trait CallInterface: OpName {
    /// Returns the graphs that the call refers to, each with the number of times it runs.
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)>;
    /// Returns the call with its graphs replaced, in the order of `graphs`. The new graphs take and give the same
    /// types.
    fn with_graphs(&self, graphs: Vec<Graph>) -> Call;
    /// Returns the types of the results for operands of types `args`, or an error if the graphs do not take these.
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag>;
}

/// The interface of functions: calls that are replaced by the equations of a graph at some stage of compilation, so
/// that no plan contains them.
pub(crate) trait CallExpansion {
    /// Returns the graph whose equations replace the call at stage `at`; `None` if the call stays.
    fn expansion_at(&self, at: ExpansionStage) -> Option<&Graph>;
}

/// Properties of a step: a call that stays in the plan and runs there as one step, such as a loop or a kernel. No
/// method has a default.
pub(crate) trait PlanStepInterface {
    /// Returns true if the call itself, apart from its graphs, does more than compute its results: it prints, for
    /// example.
    fn has_effect(&self) -> bool;
    /// Returns the call's equation without the parts that only unread results need; `is_read` says for each result if
    /// something reads it. `None` if there is nothing to leave out, or no result is read at all.
    fn without_unread_results(&self, e: &Equation, is_read: &[bool]) -> Option<Equation>;
}

/// Number of times that a graph runs for each run of the call that refers to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunCount {
    /// Once; or at most once, as one of several branches.
    Once,
    /// This number of times.
    Times(usize),
    /// A number of times that a condition decides at run time.
    Unknown,
    /// Never: it only states a derivative.
    Never,
}

/// A stage of compilation at which calls may be replaced by the equations of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExpansionStage {
    /// Before forward-mode differentiation.
    Jvp,
    /// Before reverse-mode differentiation.
    Vjp,
    /// After all derivatives are taken.
    Plan,
}

/// Returns the diagnostic for a call that breaks a rule of its operation.
pub(crate) fn invalid_call_diag(call: &dyn CallInterface, message: String) -> Diag {
    Diag::new(call.name(), At::Op, message, "see the operation's definition")
}

/// Checks that the parameters of a called graph have the types of the operands `given`.
pub(crate) fn check_param_types(call: &dyn CallInterface, graph: &Graph, given: &[&Type]) -> Result<(), Diag> {
    let takes = graph.param_types();
    if takes.iter().eq(given.iter().copied()) {
        return Ok(());
    }
    Err(invalid_call_diag(call, format!("a body of {takes:?} is called with {given:?}")))
}

/// Returns true if the operation, or one in a graph that it calls, does more than compute its results.
pub fn has_effect(op: &Op) -> bool {
    op.has_own_effect() || matches!(op, Op::Call(call) if call.graphs().iter().any(|graph| graph.has_effect()))
}

impl Graph {
    /// Returns true if `predicate` holds for any operation of the graph, or of a graph that it calls at any depth.
    pub fn any_op(&self, predicate: &dyn Fn(&Op) -> bool) -> bool {
        let inside =
            |op: &Op| matches!(op, Op::Call(call) if call.graphs().iter().any(|graph| graph.any_op(predicate)));
        self.equations.iter().any(|e| predicate(&e.op) || inside(&e.op))
    }

    /// Returns true if any operation of the graph, at any depth of calls, does more than compute its results.
    pub(crate) fn has_effect(&self) -> bool {
        self.any_op(&Op::has_own_effect)
    }
}

impl Op {
    /// Returns true if the operation itself, apart from the graphs that it calls, does more than compute its results.
    pub fn has_own_effect(&self) -> bool {
        matches!(self, Op::Call(call) if call.stays().is_some_and(|step| step.has_effect()))
    }
}

impl Call {
    /// Returns the name of the operation in texts, such as `scan`.
    pub fn name(&self) -> &'static str {
        self.called().name()
    }

    /// Returns the graphs that the call refers to, each with the number of times it runs.
    pub fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        self.called().graphs_with_run_counts()
    }

    /// Returns the graphs that the call refers to.
    pub fn graphs(&self) -> Vec<&Graph> {
        self.graphs_with_run_counts().into_iter().map(|(_, graph)| graph).collect()
    }

    /// Returns the graph whose equations replace the call before the plan is made; `None` for a call that stays in the
    /// plan, as a loop does.
    pub fn expansion_in_plan(&self) -> Option<&Graph> {
        self.expansion_at(ExpansionStage::Plan)
    }

    /// Returns the mesh whose devices run the call's graphs on their blocks; `None` for a call on whole arrays.
    pub fn mesh(&self) -> Option<&Arc<Mesh>> {
        ShardMap::of(self).map(|map| &map.mesh)
    }

    /// Returns the call with `f` applied to each of its graphs; the new graphs take and give the same types.
    #[must_use]
    pub fn map_graphs(&self, f: impl Fn(&Graph) -> Graph) -> Call {
        self.called().with_graphs(self.graphs().into_iter().map(f).collect())
    }

    /// Returns the call with `f` applied to each of its graphs, where `f` may fail ([`map_graphs`](Call::map_graphs)
    /// for one that cannot).
    ///
    /// # Errors
    /// The first error of `f`.
    pub(crate) fn try_map_graphs<E>(&self, f: impl Fn(&Graph) -> Result<Graph, E>) -> Result<Call, E> {
        Ok(self.called().with_graphs(self.graphs().into_iter().map(f).collect::<Result<_, E>>()?))
    }

    /// Returns the types of the results for operands of types `args`.
    pub(crate) fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        self.called().infer(args)
    }

    /// Returns the graph whose equations replace the call at stage `at`; `None` if the call stays.
    pub(crate) fn expansion_at(&self, at: ExpansionStage) -> Option<&Graph> {
        self.function_of()?.expansion_at(at)
    }
}

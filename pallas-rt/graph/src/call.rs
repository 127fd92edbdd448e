//! Operations that call other graphs or kernels: loops, branches and functions. They alone have several results.
//!
//! The operands of a called graph are its parameters, so it mentions no variable of its caller. Each call has a file of its own
//! in `ops`.
use crate::graph::{Equation, Graph, Op};
use crate::mesh::Mesh;
pub use crate::ops::checkpoint::Policy;
pub use crate::ops::custom_vmap::{BatchRule, BatchRuleResult, Batched};
pub use crate::ops::pure_callback::{HostFunction, VmapMethod};
pub use crate::ops::{
    Call, Callback, Case, Checkpoint, Closed, CustomJvp, CustomVjp, CustomVmap, KernelCall, Named, Print, Sample, Scan,
    ShardMap, While,
};
use pallas_ir::{At, Diag, Type};
use std::sync::Arc;

/// What every call says of itself. No method has a default.
pub(crate) trait Called {
    /// The name in texts.
    fn name(&self) -> &'static str;
    /// The graphs that it calls, and how often.
    fn graphs(&self) -> Vec<(Runs, &Graph)>;
    /// The same call of other graphs, which take and give the same types.
    fn with_graphs(&self, graphs: Vec<Graph>) -> Call;
    /// The types of the results.
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag>;
    /// The graph whose equations stand in place of the call at a stage; `None` if the call stays.
    fn expands(&self, at: Stage) -> Option<&Graph>;
    /// Returns true if it does more than computing its results, besides what its graphs do.
    fn has_effect(&self) -> bool;
    /// Its equation without what only results that nothing reads need; `None` if all of it is needed, or nothing.
    fn without_unread(&self, e: &Equation, is_read: &[bool]) -> Option<Equation>;
}

/// How often a graph runs for one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Runs {
    /// Once, or as one of several branches.
    Once,
    /// So many times.
    Times(usize),
    /// As often as a condition says.
    Unknown,
    /// It stands for a derivative.
    Never,
}

/// Where calls are expanded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Before forward mode.
    Forward,
    /// Before reverse mode.
    Reverse,
    /// When no more derivatives are made.
    Plan,
}

/// A broken rule of a call.
pub(crate) fn wrong(call: &dyn Called, message: String) -> Diag {
    Diag::new(call.name(), At::Op, message, "see the operation's definition")
}

/// That a graph takes these operands.
pub(crate) fn takes(call: &dyn Called, graph: &Graph, given: &[&Type]) -> Result<(), Diag> {
    let takes = graph.takes();
    if takes.iter().eq(given.iter().copied()) {
        return Ok(());
    }
    Err(wrong(call, format!("a body of {takes:?} is called with {given:?}")))
}

/// Returns true for an operation that does more than computing its results, also if it does so in a graph that it calls.
pub fn has_effect(op: &Op) -> bool {
    op.is_effect() || matches!(op, Op::Call(call) if call.graphs().iter().any(|graph| graph.has_effect()))
}

impl Graph {
    /// Returns true if an operation does more than computing its results.
    pub(crate) fn has_effect(&self) -> bool {
        self.equations.iter().any(|e| has_effect(&e.op))
    }
}

impl Op {
    /// Returns true if the operation itself does more than computing its results.
    pub fn is_effect(&self) -> bool {
        matches!(self, Op::Call(call) if call.called().has_effect())
    }
}

impl Call {
    /// The name in texts.
    pub fn name(&self) -> &'static str {
        self.called().name()
    }

    /// The graphs that it calls, and how often.
    pub fn runs(&self) -> Vec<(Runs, &Graph)> {
        self.called().graphs()
    }

    /// The graphs that it calls.
    pub fn graphs(&self) -> Vec<&Graph> {
        self.runs().into_iter().map(|(_, graph)| graph).collect()
    }

    /// The graph that stands for the call in a plan; `None` for a step.
    pub fn function(&self) -> Option<&Graph> {
        self.called().expands(Stage::Plan)
    }

    /// The mesh whose devices run its graphs on their blocks; `None` for a call on whole arrays.
    pub fn mesh(&self) -> Option<&Arc<Mesh>> {
        ShardMap::of(self).map(|map| &map.mesh)
    }

    /// The same call of other graphs, which take and give the same types.
    #[must_use]
    pub fn map(&self, f: impl Fn(&Graph) -> Graph) -> Call {
        self.called().with_graphs(self.graphs().into_iter().map(f).collect())
    }

    /// As [`map`](Call::map), where a graph may have none.
    ///
    /// # Errors
    /// The first error of `f`.
    pub(crate) fn try_map<E>(&self, f: impl Fn(&Graph) -> Result<Graph, E>) -> Result<Call, E> {
        Ok(self.called().with_graphs(self.graphs().into_iter().map(f).collect::<Result<_, E>>()?))
    }

    /// The types of the results.
    pub(crate) fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        self.called().infer(args)
    }

    /// The graph whose equations stand in place of the call at a stage; `None` if the call stays.
    pub(crate) fn expands(&self, at: Stage) -> Option<&Graph> {
        self.called().expands(at)
    }
}

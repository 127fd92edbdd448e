//! Calls as steps of a plan.
use super::pipeline::plan;
use super::plan::{Lowered, Plan};
use super::sizes::Sizes;
use crate::graph::{Equation, Graph, Var};

/// A call as a step of a plan. No method has a default.
pub(crate) trait CallStep {
    /// Its step. Values that a loop carries are changed in place.
    fn lower(&self, from: &Lowering<'_>) -> Lowered;
}

/// The inputs for the step of a call.
pub(crate) struct Lowering<'a> {
    /// The graph that the call stands in.
    pub graph: &'a Graph,
    /// The call's equation.
    pub e: &'a Equation,
    /// The numbers of the device.
    pub sizes: &'a Sizes,
    /// True for an operand that the program owns and that nothing else reads.
    pub is_free: &'a dyn Fn(Var) -> bool,
}

impl Lowering<'_> {
    /// The plan of a graph that the call runs; parameters for which `is_donated` is true may be written.
    pub(crate) fn plan(&self, graph: &Graph, is_donated: &[bool]) -> Plan {
        plan(graph, is_donated, self.sizes)
    }
}

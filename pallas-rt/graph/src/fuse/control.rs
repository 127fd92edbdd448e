//! Calls as steps of a plan.
use super::blocks::Sizes;
use super::plan::{Lowered, Plan, Work, plan};
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

    /// A step that reads all operands, and has results of its own.
    pub(crate) fn step(&self, work: Work) -> Lowered {
        let (inputs, outputs) = (self.e.args.clone(), self.e.results.clone());
        Lowered { work, inputs, in_place: vec![None; outputs.len()], outputs }
    }
}

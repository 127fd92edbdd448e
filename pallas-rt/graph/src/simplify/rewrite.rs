//! A graph that a pass writes, equation by equation.
use crate::build::dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use pallas_ir::structural::Reshape;

pub(super) struct Rewrite {
    pub graph: Graph,
    /// By variable, its equation in the new graph.
    made: Vec<Option<usize>>,
}

/// A graph in which some equations are others: `write` appends these, and returns what is the result's value in any shape, or
/// `None` for an equation that stays, and then has appended nothing.
pub(super) fn each(graph: Graph, mut write: impl FnMut(&mut Rewrite, &Equation) -> Option<Var>) -> Graph {
    let (equations, mut to) = Rewrite::of(graph);
    for e in equations {
        to.graph.at = e.loc;
        match write(&mut to, &e) {
            Some(value) => to.push_as(&e, value),
            None => to.push(e),
        }
    }
    to.graph
}

impl Rewrite {
    /// The graph's equations, and the graph without them.
    pub(super) fn of(mut graph: Graph) -> (Vec<Equation>, Rewrite) {
        let equations = std::mem::take(&mut graph.equations);
        let made = vec![None; graph.types.len()];
        (equations, Rewrite { graph, made })
    }

    /// Appends an equation for variables that exist.
    pub(super) fn push(&mut self, e: Equation) {
        e.results.iter().for_each(|r| self.made[r.index()] = Some(self.graph.equations.len()));
        self.graph.equations.push(e);
    }

    /// Makes a value, in any shape, the one that others read of an equation.
    pub(super) fn push_as(&mut self, e: &Equation, value: Var) {
        let op = StructuralOp::from(Reshape { to: dims(&self.graph.ty(e.result()).shape) });
        self.push(Equation { op: op.into(), args: vec![value], ..e.clone() });
    }

    /// Appends a reshape, if the value does not have the shape.
    pub(super) fn reshaped(&mut self, v: Var, to: &[usize]) -> Var {
        if self.graph.ty(v).shape == to { v } else { self.append(StructuralOp::from(Reshape { to: dims(to) }), &[v]) }
    }

    /// Appends an operation that fits its operands, and returns its result.
    pub(super) fn append(&mut self, op: impl Into<Op>, args: &[Var]) -> Var {
        let v = self.graph.fitting(op, args);
        self.made.resize(self.graph.types.len(), None);
        self.made[v.index()] = Some(self.graph.equations.len() - 1);
        v
    }

    /// The equation that defines a variable; `None` for parameters.
    pub(super) fn definition(&self, v: Var) -> Option<&Equation> {
        self.made[v.index()].map(|i| &self.graph.equations[i])
    }
}

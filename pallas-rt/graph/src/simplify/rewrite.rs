//! A graph that a pass writes, equation by equation.
use crate::graph::{Equation, Graph, Op, Var};

pub(super) struct Rewrite {
    pub graph: Graph,
    /// By variable, its equation in the new graph.
    made: Vec<Option<usize>>,
}

impl Rewrite {
    /// The graph without equations.
    pub(super) fn of(graph: &Graph) -> Rewrite {
        Rewrite { graph: Graph { equations: vec![], ..graph.clone() }, made: vec![None; graph.types.len()] }
    }

    /// Appends an equation for variables that exist.
    pub(super) fn push(&mut self, e: Equation) {
        e.results.iter().for_each(|r| self.made[r.index()] = Some(self.graph.equations.len()));
        self.graph.equations.push(e);
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

//! A graph to which a pass appends equations one by one.
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use pallas_ir::structural::Reshape;

/// The graph that a simplification pass builds by appending equations, with the equation that defines each variable.
pub(super) struct GraphRewriter {
    pub graph: Graph,
    /// By variable, the index of its equation in the new graph.
    made: Vec<Option<usize>>,
}

/// Rewrites a graph. `write` is called for each equation: it either appends other equations and returns the variable
/// with the result's elements, in any shape, or it appends nothing and returns `None`, and the equation stays.
pub(super) fn rewrite_each_equation(
    graph: Graph,
    mut write: impl FnMut(&mut GraphRewriter, &Equation) -> Option<Var>,
) -> Graph {
    let (equations, mut to) = GraphRewriter::take_equations(graph);
    for e in equations {
        to.graph.at = e.loc;
        match write(&mut to, &e) {
            Some(value) => to.define_as_reshape(&e, value),
            None => to.push(e),
        }
    }
    to.graph
}

impl GraphRewriter {
    /// Splits a graph into its equations and a graph without equations, to which a pass appends.
    pub(super) fn take_equations(mut graph: Graph) -> (Vec<Equation>, GraphRewriter) {
        let equations = std::mem::take(&mut graph.equations);
        let made = vec![None; graph.types.len()];
        (equations, GraphRewriter { graph, made })
    }

    /// Appends an equation whose result variables exist.
    pub(super) fn push(&mut self, e: Equation) {
        e.results.iter().for_each(|r| self.made[r.index()] = Some(self.graph.equations.len()));
        self.graph.equations.push(e);
    }

    /// Defines the result of `e` as a reshape of `value`.
    pub(super) fn define_as_reshape(&mut self, e: &Equation, value: Var) {
        let op = StructuralOp::from(Reshape { to: constant_dims(&self.graph.ty(e.result()).shape) });
        self.push(Equation { op: op.into(), args: vec![value], ..e.clone() });
    }

    /// Returns a value reshaped to `to`; appends no reshape if it has the shape.
    pub(super) fn reshape_if_needed(&mut self, v: Var, to: &[usize]) -> Var {
        if self.graph.ty(v).shape == to {
            v
        } else {
            self.append(StructuralOp::from(Reshape { to: constant_dims(to) }), &[v])
        }
    }

    /// Appends an operation with one result; returns the result.
    pub(super) fn append(&mut self, op: impl Into<Op>, args: &[Var]) -> Var {
        let v = self.graph.push_valid(op, args);
        self.made.resize(self.graph.types.len(), None);
        self.made[v.index()] = Some(self.graph.equations.len() - 1);
        v
    }

    /// Returns the equation that defines a variable; `None` for parameters.
    pub(super) fn definition(&self, v: Var) -> Option<&Equation> {
        self.made[v.index()].map(|i| &self.graph.equations[i])
    }
}

//! Examples of operations, on which tests check their laws: derivatives, batching, sharding.
use super::prelude::*;
use crate::graph::Op;
use pallas_ir::{DType, ScalarOp};

/// An example of an operation, on which tests check its batching and the modes of differentiation that it supports.
#[derive(Clone, Debug)]
pub struct OpSample {
    /// The operation.
    pub op: Op,
    /// The types of its operands.
    pub takes: Vec<Type>,
    /// True if the operation supports forward mode.
    pub has_tangents: bool,
    /// True if the operation supports reverse mode.
    pub has_gradient: bool,
}

impl OpSample {
    /// Returns a sample of an operation that supports both modes of differentiation, on operands of types `takes`.
    pub(super) fn new(op: impl Into<Op>, takes: &[Type]) -> OpSample {
        OpSample { op: op.into(), takes: takes.to_vec(), has_tangents: true, has_gradient: true }
    }

    /// Returns the sample marked as not supporting reverse mode.
    pub(super) fn without_gradient(self) -> OpSample {
        OpSample { has_gradient: false, ..self }
    }

    /// Returns the sample marked as not supporting forward mode.
    pub(super) fn without_tangents(self) -> OpSample {
        OpSample { has_tangents: false, ..self }
    }
}

/// Gives examples of an operation, on which tests check its derivatives and its batching. No method has a default.
pub(super) trait SampledOp {
    /// Returns examples whose floating-point operands have elements of type `dtype`; none for an operation that cannot
    /// run alone.
    fn samples(dtype: DType) -> Vec<OpSample>;
}

/// Returns the graph `(x, y) -> sin(x) y` for arrays of a type, for use in samples.
pub(super) fn sine_product_graph(ty: &Type) -> Graph {
    let mut graph = Graph::default();
    let [x, y] = [0, 1].map(|_| graph.param(ty.clone()));
    let sine = graph.push_valid(ScalarOp::Sin, &[x]);
    graph.results = vec![graph.push_valid(ScalarOp::Mul, &[sine, y])];
    graph
}

/// Returns the graph `x -> op(x)` for arrays of a type, for use in samples.
pub(super) fn unary_graph(op: ScalarOp, ty: &Type) -> Graph {
    let mut graph = Graph::default();
    let x = graph.param(ty.clone());
    graph.results = vec![graph.push_valid(op, &[x])];
    graph
}

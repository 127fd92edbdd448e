//! Examples of operations, on which their laws are tried.
use super::prelude::*;
use crate::graph::Op;
use pallas_ir::{DType, ScalarOp};

/// An operation, and what holds for it.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The operation.
    pub op: Op,
    /// The types of its operands.
    pub takes: Vec<Type>,
    /// True if it has forward mode.
    pub has_tangents: bool,
    /// True if it has reverse mode.
    pub has_gradient: bool,
}

impl Sample {
    /// An operation with both modes of differentiation.
    pub(super) fn of(op: impl Into<Op>, takes: &[Type]) -> Sample {
        Sample { op: op.into(), takes: takes.to_vec(), has_tangents: true, has_gradient: true }
    }

    /// The same without reverse mode.
    pub(super) fn without_gradient(self) -> Sample {
        Sample { has_gradient: false, ..self }
    }

    /// The same without forward mode.
    pub(super) fn without_tangents(self) -> Sample {
        Sample { has_tangents: false, ..self }
    }
}

/// Examples of an operation. No method has a default.
pub(super) trait Sampled {
    /// Some whose operands of floating-point types have elements of this type; none for one that cannot be tried alone.
    fn samples(dtype: DType) -> Vec<Sample>;
}

/// `(x, y) -> sin(x) y`.
pub(super) fn product(ty: &Type) -> Graph {
    let mut graph = Graph::default();
    let [x, y] = [0, 1].map(|_| graph.param(ty.clone()));
    let sine = graph.fitting(ScalarOp::Sin, &[x]);
    graph.results = vec![graph.fitting(ScalarOp::Mul, &[sine, y])];
    graph
}

/// `x -> op(x)`.
pub(super) fn unary(op: ScalarOp, ty: &Type) -> Graph {
    let mut graph = Graph::default();
    let x = graph.param(ty.clone());
    graph.results = vec![graph.fitting(op, &[x])];
    graph
}

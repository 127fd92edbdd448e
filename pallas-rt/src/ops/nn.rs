//! Functions of neural networks; `jax.nn`.
use super::axes::canonicalize_axis;
use super::create::push_coordinates;
use super::elementwise_broadcast::{GraphOperand, push_elementwise};
use super::reduce::reduce;
use super::{Axes, keep};
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, StopGradient, Var};
use pallas_ir::{DType, Diag, Loc, ScalarOp};

/// Appends an array minus its largest elements along axes; derivatives take the largest elements for constants.
fn subtract_max(graph: &mut Graph, v: Var, axes: &Axes) -> Result<Var, Diag> {
    let most = reduce(graph, ScalarOp::Maximum, v, &keep(axes.clone()))?;
    let most = graph.push(StopGradient, &[most])?;
    push_elementwise(graph, ScalarOp::Sub, &[GraphOperand::Var(v), GraphOperand::Var(most)])
}

impl Array {
    /// `exp(x) / sum(exp(x))` along axes.
    #[track_caller]
    #[must_use]
    pub fn softmax(&self, axes: impl Into<Axes>) -> Array {
        let axes = axes.into();
        apply(&[self], Loc::caller(), |graph, v| {
            let x = subtract_max(graph, v[0], &axes)?;
            let e = push_elementwise(graph, ScalarOp::Exp, &[GraphOperand::Var(x)])?;
            let sum = reduce(graph, ScalarOp::Add, e, &keep(axes.clone()))?;
            push_elementwise(graph, ScalarOp::Div, &[GraphOperand::Var(e), GraphOperand::Var(sum)])
        })
    }

    /// `x - ln(sum(exp(x)))` along axes.
    #[track_caller]
    #[must_use]
    pub fn log_softmax(&self, axes: impl Into<Axes>) -> Array {
        let axes = axes.into();
        apply(&[self], Loc::caller(), |graph, v| {
            let x = subtract_max(graph, v[0], &axes)?;
            let e = push_elementwise(graph, ScalarOp::Exp, &[GraphOperand::Var(x)])?;
            let sum = reduce(graph, ScalarOp::Add, e, &keep(axes.clone()))?;
            let log = push_elementwise(graph, ScalarOp::Log, &[GraphOperand::Var(sum)])?;
            push_elementwise(graph, ScalarOp::Sub, &[GraphOperand::Var(x), GraphOperand::Var(log)])
        })
    }

    /// The array, which derivatives take for a constant.
    #[track_caller]
    #[must_use]
    pub fn stop_gradient(&self) -> Array {
        apply(&[self], Loc::caller(), |graph, v| graph.push(StopGradient, v))
    }

    /// One-hot vectors along a new last axis of `classes` elements: 1 at the position that an integer names, 0
    /// elsewhere.
    #[track_caller]
    #[must_use]
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let ty = graph.ty(v[0]).clone();
            let mut shape = ty.shape.clone();
            shape.push(classes);
            let axis = canonicalize_axis(-1, shape.len())?;
            // Types of one byte do not hold the number of every class.
            let wide = if ty.dtype.bytes() < 4 && !ty.dtype.is_float() { DType::I32 } else { ty.dtype };
            let positions = push_coordinates(graph, &shape, axis, wide)?;
            let own = super::shape::reshape(graph, v[0], &[&ty.shape[..], &[1]].concat())?;
            let is_it = push_elementwise(graph, ScalarOp::Eq, &[GraphOperand::Var(own), GraphOperand::Var(positions)])?;
            super::elementwise_broadcast::cast(graph, is_it, dtype)
        })
    }
}

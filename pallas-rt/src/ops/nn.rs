//! Functions of neural networks; `jax.nn`.
use super::axes::axis_of;
use super::create::positions;
use super::elementwise::{Meets, meet};
use super::reduce::reduce;
use super::{Axes, keep};
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, StopGradient, Var};
use pallas_ir::{DType, Diag, Loc, ScalarOp};

/// Appends an array minus its largest elements along axes; derivatives take the largest elements for constants.
fn shifted(graph: &mut Graph, v: Var, axes: &Axes) -> Result<Var, Diag> {
    let most = reduce(graph, ScalarOp::Maximum, v, &keep(axes.clone()))?;
    let most = graph.push(StopGradient, &[most])?;
    meet(graph, ScalarOp::Sub, &[Meets::Var(v), Meets::Var(most)])
}

impl Array {
    /// `exp(x) / sum(exp(x))` along axes.
    #[track_caller]
    #[must_use]
    pub fn softmax(&self, axes: impl Into<Axes>) -> Array {
        let axes = axes.into();
        apply(&[self], Loc::caller(), |graph, v| {
            let x = shifted(graph, v[0], &axes)?;
            let e = meet(graph, ScalarOp::Exp, &[Meets::Var(x)])?;
            let sum = reduce(graph, ScalarOp::Add, e, &keep(axes.clone()))?;
            meet(graph, ScalarOp::Div, &[Meets::Var(e), Meets::Var(sum)])
        })
    }

    /// `x - ln(sum(exp(x)))` along axes.
    #[track_caller]
    #[must_use]
    pub fn log_softmax(&self, axes: impl Into<Axes>) -> Array {
        let axes = axes.into();
        apply(&[self], Loc::caller(), |graph, v| {
            let x = shifted(graph, v[0], &axes)?;
            let e = meet(graph, ScalarOp::Exp, &[Meets::Var(x)])?;
            let sum = reduce(graph, ScalarOp::Add, e, &keep(axes.clone()))?;
            let log = meet(graph, ScalarOp::Log, &[Meets::Var(sum)])?;
            meet(graph, ScalarOp::Sub, &[Meets::Var(x), Meets::Var(log)])
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
            let axis = axis_of(-1, shape.len())?;
            // Types of one byte do not hold the number of every class.
            let wide = if ty.dtype.bytes() < 4 && !ty.dtype.is_float() { DType::I32 } else { ty.dtype };
            let positions = positions(graph, &shape, axis, wide)?;
            let own = super::shape::reshape(graph, v[0], &[&ty.shape[..], &[1]].concat())?;
            let is_it = meet(graph, ScalarOp::Eq, &[Meets::Var(own), Meets::Var(positions)])?;
            super::elementwise::cast(graph, is_it, dtype)
        })
    }
}

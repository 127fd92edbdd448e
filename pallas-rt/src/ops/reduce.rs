//! Reductions.
use super::axes::{Axes, axis_of};
use super::elementwise::{Meets, cast, meet};
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{ArgReduce, Reduce};
use pallas_ir::{DType, Diag, Loc, ScalarOp, StructuralOp};

/// Appends a reduction.
pub(super) fn reduce(graph: &mut Graph, op: ScalarOp, v: Var, axes: &Axes) -> Result<Var, Diag> {
    let rank = graph.ty(v).shape.len();
    graph.push(StructuralOp::from(Reduce { op, axes: axes.of(rank)?, keep: axes.kept() }), &[v])
}

macro_rules! reductions {
    ($($(#[$doc:meta])+ $name:ident $Op:ident;)*) => {
        impl Array {$(
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(&self, axes: impl Into<Axes>) -> Array {
                let axes = axes.into();
                apply(&[self], Loc::caller(), |graph, v| reduce(graph, ScalarOp::$Op, v[0], &axes))
            }
        )*}
    };
}
reductions! {
    /// Product over axes, which are dropped; [`keep`](crate::keep) keeps them.
    prod Mul;
    /// Largest element over axes, which are dropped; NaN if there is one; -inf or the lowest integer over nothing.
    max Maximum;
    /// Smallest element over axes, which are dropped; NaN if there is one; inf or the highest integer over nothing.
    min Minimum;
    /// True where any element along axes is true; the axes are dropped.
    any BitOr;
    /// True where every element along axes is true; the axes are dropped.
    all BitAnd;
}

impl Array {
    /// Sum over axes, which are dropped; [`keep`](crate::keep) keeps them. `bool` is counted as i32.
    #[track_caller]
    #[must_use]
    pub fn sum(&self, axes: impl Into<Axes>) -> Array {
        let axes = axes.into();
        apply(&[self], Loc::caller(), |graph, v| {
            let is_bool = graph.ty(v[0]).dtype == DType::Bool;
            let x = if is_bool { cast(graph, v[0], DType::I32)? } else { v[0] };
            reduce(graph, ScalarOp::Add, x, &axes)
        })
    }

    /// Mean over axes, which are dropped; NaN over nothing. Integers are taken as f32.
    #[track_caller]
    #[must_use]
    pub fn mean(&self, axes: impl Into<Axes>) -> Array {
        let axes = axes.into();
        apply(&[self], Loc::caller(), |graph, v| mean(graph, v[0], &axes))
    }

    /// Variance over axes, which are dropped: the mean of squared differences from the mean.
    #[track_caller]
    #[must_use]
    pub fn var(&self, axes: impl Into<Axes>) -> Array {
        let axes = axes.into();
        apply(&[self], Loc::caller(), |graph, v| {
            let centre = mean(graph, v[0], &super::keep(axes.clone()))?;
            let centred = meet(graph, ScalarOp::Sub, &[Meets::Var(v[0]), Meets::Var(centre)])?;
            let squares = graph.push(ScalarOp::Mul, &[centred, centred])?;
            mean(graph, squares, &axes)
        })
    }

    /// Position of the largest element along an axis, i32: the first of equal ones; that of a NaN, if there is one.
    #[track_caller]
    #[must_use]
    pub fn argmax(&self, axis: isize) -> Array {
        self.arg(axis, true, Loc::caller())
    }

    /// Position of the smallest element along an axis, i32: the first of equal ones; that of a NaN, if there is one.
    #[track_caller]
    #[must_use]
    pub fn argmin(&self, axis: isize) -> Array {
        self.arg(axis, false, Loc::caller())
    }

    fn arg(&self, axis: isize, max: bool, at: Loc) -> Array {
        apply(&[self], at, |graph, v| {
            let axis = axis_of(axis, graph.ty(v[0]).shape.len())?;
            graph.push(StructuralOp::from(ArgReduce { max, axis, keep: false }), v)
        })
    }
}

/// Appends a mean.
pub(super) fn mean(graph: &mut Graph, v: Var, axes: &Axes) -> Result<Var, Diag> {
    let dtype = graph.ty(v).dtype;
    let v = if dtype.is_float() { v } else { cast(graph, v, DType::F32)? };
    let shape = graph.ty(v).shape.clone();
    let count: usize = axes.of(shape.len())?.iter().map(|&axis| shape[axis]).product();
    let sum = reduce(graph, ScalarOp::Add, v, axes)?;
    meet(graph, ScalarOp::Div, &[Meets::Var(sum), Meets::Float(count as f64)])
}

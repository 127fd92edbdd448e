//! Elements by arrays of positions.
use super::axes::axis_of;
use super::elementwise::{Meets, broadcast_shapes, cast, meet};
use crate::array::Array;
use crate::jit::apply;
use pallas_ir::structural::TakeAlong;
use pallas_ir::{At, DType, Diag, Literal, Loc, ScalarOp, StructuralOp};

impl Array {
    /// `result[.., i, ..] = self[.., positions[.., i, ..], ..]` along an axis; the other axes broadcast. Negative
    /// positions count from the end. As in JAX, a position that does not exist gives NaN, `true`, the lowest signed or
    /// the highest unsigned integer.
    #[track_caller]
    #[must_use]
    pub fn take_along_axis(&self, positions: &Array, axis: isize) -> Array {
        apply(&[self, positions], Loc::caller(), |graph, v| {
            let (ty, at) = (graph.ty(v[0]).clone(), graph.ty(v[1]).clone());
            let axis = axis_of(axis, ty.shape.len())?;
            if at.shape.len() != ty.shape.len() || at.dtype.is_float() || at.dtype == DType::Bool {
                let message = format!("take_along_axis of {ty} by {at}");
                return Err(Diag::new("take", At::Operand(1), message, "integers of the same rank"));
            }
            let [mut from, mut to] = [ty.shape.clone(), at.shape.clone()];
            let (n, count) = (std::mem::replace(&mut from[axis], 1), std::mem::replace(&mut to[axis], 1));
            let mut common = broadcast_shapes(&[from, to])?;
            common[axis] = n;
            let x = graph.broadcast(v[0], &common)?;
            common[axis] = count;
            let at = cast(graph, v[1], DType::I32)?;
            let at = graph.broadcast(at, &common)?;
            let number = |x: i64| Meets::Int(x);
            let is_negative = meet(graph, ScalarOp::Lt, &[Meets::Var(at), number(0)])?;
            let from_end = meet(graph, ScalarOp::Add, &[Meets::Var(at), number(n as i64)])?;
            let at = graph.push(ScalarOp::Select, &[is_negative, from_end, at])?;
            let held = meet(graph, ScalarOp::Clamp, &[Meets::Var(at), number(0), number(n as i64 - 1)])?;
            let exists = meet(graph, ScalarOp::Eq, &[Meets::Var(at), Meets::Var(held)])?;
            let outside = match ty.dtype {
                dtype if dtype.is_float() => Literal::new(dtype, f64::NAN),
                dtype if dtype.is_signed() => Literal::lowest(dtype),
                DType::Bool => Literal::new(DType::Bool, 1.0),
                dtype => Literal::highest(dtype),
            };
            let outside = graph.splat(outside, &common);
            if n == 0 {
                return Ok(outside);
            }
            let taken = graph.push(StructuralOp::from(TakeAlong { axis }), &[x, held])?;
            graph.push(ScalarOp::Select, &[exists, taken, outside])
        })
    }
}

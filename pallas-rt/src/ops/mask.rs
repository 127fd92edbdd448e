//! Elements where a mask is true; their number is given, since shapes do not depend on elements.
use super::axes::canonicalize_axis;
use super::elementwise_broadcast::{GraphOperand, cast, push_elementwise, splat};
use super::gather_windows::{IndexMode, push_gather};
use super::index::Item;
use super::indexed_update::row_scatter;
use super::shape::reshape;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Concat, Cumulative, Iota};
use pallas_ir::{At, DType, Diag, Dim, Literal, Loc, ScalarOp, StructuralOp};

/// Appends the row-major positions of the first `size` elements that are not 0; if there are fewer, then `fill`.
fn push_true_positions(graph: &mut Graph, v: Var, size: usize, fill: i64) -> Result<Var, Diag> {
    let total = graph.ty(v).elements();
    let is = cast(graph, v, DType::Bool)?;
    let is = reshape(graph, is, &[total])?;
    let start = splat(graph, Literal::int(DType::I32, fill), &[size])?;
    if total == 0 || size == 0 {
        return Ok(start);
    }
    let ones = cast(graph, is, DType::I32)?;
    let count = graph.push(StructuralOp::from(Cumulative { op: ScalarOp::Add, axis: 0, reverse: false }), &[ones])?;
    let place = push_elementwise(graph, ScalarOp::Sub, &[GraphOperand::Var(count), GraphOperand::Int(1)])?;
    let place = push_elementwise(
        graph,
        ScalarOp::Select,
        &[GraphOperand::Var(is), GraphOperand::Var(place), GraphOperand::Int(-1)],
    )?;
    let iota = Iota { shape: vec![Dim::from(total)], axis: 0, dtype: DType::I32 };
    let number = graph.push(StructuralOp::from(iota), &[])?;
    graph.push(StructuralOp::from(row_scatter(None, 0)), &[start, place, number])
}

/// Appends the positions along each axis of the first `size` elements that are not 0; if there are fewer, then `fill`.
fn push_true_coordinates(graph: &mut Graph, v: Var, size: usize, fill: i32) -> Result<Vec<Var>, Diag> {
    let ty = graph.ty(v).clone();
    if ty.is_scalar() {
        return Err(Diag::new("rank", At::Operand(0), format!("the positions in {ty}"), "at least 1 axis"));
    }
    let at = push_true_positions(graph, v, size, -1)?;
    let is_own = push_elementwise(graph, ScalarOp::Ge, &[GraphOperand::Var(at), GraphOperand::Int(0)])?;
    let mut all = vec![];
    for (axis, &n) in ty.shape.iter().enumerate() {
        let step: usize = ty.shape[axis + 1..].iter().product();
        let step = splat(graph, Literal::int(DType::I32, step.max(1) as i64), &[size])?;
        let row = graph.push(ScalarOp::Div, &[at, step])?;
        let own =
            push_elementwise(graph, ScalarOp::Rem, &[GraphOperand::Var(row), GraphOperand::Int(n.max(1) as i64)])?;
        all.push(push_elementwise(
            graph,
            ScalarOp::Select,
            &[GraphOperand::Var(is_own), GraphOperand::Var(own), GraphOperand::Int(fill.into())],
        )?);
    }
    Ok(all)
}

impl Array {
    /// Positions of the first `size` elements that are not 0, i32, an array for each axis; if there are fewer, then
    /// `fill`.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let x = Array::from_slice(&[0.0f32, 2.0, 0.0, 4.0], &[4])?;
    /// assert_eq!(x.nonzero(3, -1)[0].to_vec::<i32>()?, [1, 3, -1]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn nonzero(&self, size: usize, fill: i32) -> Vec<Array> {
        let at = Loc::caller();
        let along = |axis: usize| {
            apply(&[self], at, |graph, v| push_true_coordinates(graph, v[0], size, fill).map(|all| all[axis]))
        };
        // An array without axes holds the mistake.
        (0..self.rank().max(1)).map(along).collect()
    }

    /// Row-major positions of the first `size` elements that are not 0, i32; if there are fewer, then `fill`.
    #[track_caller]
    #[must_use]
    pub fn flatnonzero(&self, size: usize, fill: i32) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let count = graph.ty(v[0]).elements();
            let flat = reshape(graph, v[0], &[count])?;
            push_true_coordinates(graph, flat, size, fill).map(|all| all[0])
        })
    }

    /// Positions of the first `size` elements that are not 0, i32, a row for each; if there are fewer, then `fill`.
    #[track_caller]
    #[must_use]
    pub fn argwhere(&self, size: usize, fill: i32) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let mut all = push_true_coordinates(graph, v[0], size, fill)?;
            for part in &mut all {
                *part = reshape(graph, *part, &[size, 1])?;
            }
            graph.push(StructuralOp::from(Concat { axis: 1 }), &all)
        })
    }

    /// The first `size` parts along an axis where a condition of one axis is true, then zeros.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let x = Array::from_slice(&[1, 2, 3], &[3])?;
    /// assert_eq!(x.compress(&x.ne(2), 0, 2).to_vec::<i32>()?, [1, 3]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn compress(&self, condition: &Array, axis: isize, size: usize) -> Array {
        apply(&[self, condition], Loc::caller(), |graph, v| {
            let (ty, of) = (graph.ty(v[0]).clone(), graph.ty(v[1]).clone());
            let axis = canonicalize_axis(axis, ty.shape.len())?;
            if of.shape.len() != 1 || of.shape[0] > ty.shape[axis] {
                let message = format!("a condition of {of} along axis {axis} of {ty}");
                return Err(Diag::new("mask", At::Operand(1), message, "one axis, not longer than that"));
            }
            push_compressed(graph, v[0], v[1], axis, size, condition)
        })
    }

    /// The first `size` elements where a condition of the same shape is true, in row-major order, then zeros.
    #[track_caller]
    #[must_use]
    pub fn extract(&self, condition: &Array, size: usize) -> Array {
        apply(&[self, condition], Loc::caller(), |graph, v| {
            let (ty, of) = (graph.ty(v[0]).clone(), graph.ty(v[1]).clone());
            if ty.shape != of.shape {
                let message = format!("a condition of {of} for {ty}");
                return Err(Diag::new("mask", At::Operand(1), message, "both have one shape"));
            }
            let [x, is] = [v[0], v[1]].map(|v| reshape(graph, v, &[ty.elements()]));
            push_compressed(graph, x?, is?, 0, size, condition)
        })
    }

    /// The number of times that each number below `length` is an element, i32; negative elements count as 0, elements
    /// from `length` on are not counted. With weights: `weights.segment_sum(&x, length)`.
    #[track_caller]
    #[must_use]
    pub fn bincount(&self, length: usize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let ty = graph.ty(v[0]).clone();
            if ty.shape.len() != 1 || ty.dtype.is_float() {
                let message = format!("the counts of {ty}");
                return Err(Diag::new("dtype", At::Operand(0), message, "integers along one axis"));
            }
            let x = if ty.dtype == DType::Bool { cast(graph, v[0], DType::I32)? } else { v[0] };
            let x = super::gather_windows::normalize_positions(graph, x, length, IndexMode::Fill, false)?;
            let x = push_elementwise(graph, ScalarOp::Maximum, &[GraphOperand::Var(x), GraphOperand::Int(0)])?;
            let start = splat(graph, Literal::int(DType::I32, 0), &[length])?;
            if length == 0 || ty.elements() == 0 {
                return Ok(start);
            }
            let ones = splat(graph, Literal::int(DType::I32, 1), &ty.shape)?;
            graph.push(StructuralOp::from(row_scatter(Some(ScalarOp::Add), 0)), &[start, x, ones])
        })
    }
}

/// Appends the first `size` parts along an axis where a condition is true, then zeros; `condition_array` is the array
/// that `condition` is the variable of.
fn push_compressed(
    graph: &mut Graph,
    x: Var,
    condition: Var,
    axis: usize,
    size: usize,
    condition_array: &Array,
) -> Result<Var, Diag> {
    let at = push_true_positions(graph, condition, size, -1)?;
    let mut items = vec![Item::from(..); axis];
    items.push(Item::Array(condition_array.clone()));
    push_gather(graph, x, &items, &[at], IndexMode::FillWith(0.0), false)
}

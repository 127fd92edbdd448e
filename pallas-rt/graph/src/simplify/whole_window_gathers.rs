//! Replaces gathers and scatters whose windows are as long as the operand: such a window has only one position.
//!
//! ```text
//! gather x[1, n] at i[m]                broadcast x, because starts are clamped into the operand
//! scatter(add) x[1, n] at i[m] u[m, n]  add x (sum of the rows of u whose start is 0), except for 16-bit floats
//! ```
use super::rewrite::{GraphRewriter, rewrite_each_equation};
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Gather, IndexedWindows, Reduce, Scatter, Transpose};
use pallas_ir::{DType, Literal, ScalarOp, StructuralOp};

/// Replaces gathers and scatters whose windows are as long as the operand, so that there is one position only: gathers
/// by broadcasts, scatters by folds of the updates.
pub(super) fn replace_whole_window_accesses(graph: Graph) -> Graph {
    rewrite_each_equation(graph, |to, e| match &e.op {
        Op::Structural(StructuralOp::Gather(op)) => emit_gather_as_broadcast(to, e, op),
        Op::Structural(StructuralOp::Scatter(op)) => op.op.and_then(|monoid| emit_scatter_as_fold(to, e, op, monoid)),
        _ => None,
    })
}

/// Returns true if windows have only one position in an operand of this shape, which must have elements.
fn are_whole_windows(windows: &IndexedWindows, shape: &[usize]) -> bool {
    let is_whole = |(k, &n): (usize, &usize)| {
        let window = &windows.axes[k];
        let is_batch = window.axis.is_some_and(|axis| windows.index.contains(&axis));
        is_batch || window.size.as_number() == Some(n as i64)
    };
    !shape.contains(&0) && shape.iter().enumerate().all(is_whole)
}

/// Appends a gather of whole windows as a broadcast; returns `None` for other gathers.
fn emit_gather_as_broadcast(to: &mut GraphRewriter, e: &Equation, op: &Gather) -> Option<Var> {
    let [x, index] = [0, 1].map(|i| to.graph.ty(e.args[i]).shape.clone());
    let windows = op.windows(index.len());
    if !are_whole_windows(&windows, &x) {
        return None;
    }
    let kept: Vec<usize> = (0..x.len()).filter(|&k| windows.axes[k].axis.is_some()).collect();
    let shape: Vec<usize> = kept.iter().map(|&k| x[k]).collect();
    let window = to.reshape_if_needed(e.args[0], &shape);
    let repeated = kept.iter().filter_map(|&k| windows.axes[k].axis).collect();
    let result = constant_dims(&to.graph.ty(e.result()).shape);
    Some(to.append(StructuralOp::from(Broadcast { to: result, dims: repeated }), &[window]))
}

/// Appends a scatter of whole windows as a fold of the updates and an elementwise operation; returns `None` for other
/// scatters.
fn emit_scatter_as_fold(to: &mut GraphRewriter, e: &Equation, op: &Scatter, monoid: ScalarOp) -> Option<Var> {
    let &[operand, index, updates] = &e.args[..] else { return None };
    let [x, of_index, shape] = [operand, index, updates].map(|v| to.graph.ty(v).shape.clone());
    let windows = op.windows(x.len(), of_index.len(), &constant_dims(&shape));
    let dtype = to.graph.ty(operand).dtype;
    let neutral = monoid.neutral(dtype)?;
    // A scatter of 16-bit floats rounds every sum, a fold only the last one.
    if !are_whole_windows(&windows, &x) || monoid.accumulator(dtype) != Some(dtype) {
        return None;
    }
    let mut rows = updates;
    if !are_zero_starts(to, index) {
        let zero = to.graph.splat(Literal::new(DType::I32, 0.0), &of_index);
        let mut is_inside = to.append(ScalarOp::Eq, &[index, zero]);
        if let Some(axis) = windows.vector {
            let all = Reduce::dropping(ScalarOp::BitAnd, vec![axis]);
            is_inside = to.append(StructuralOp::from(all), &[is_inside]);
        }
        let stretched = Broadcast { to: constant_dims(&shape), dims: windows.index.clone() };
        let is_inside = to.append(StructuralOp::from(stretched), &[is_inside]);
        let nothing = to.graph.splat(neutral, &shape);
        rows = to.append(ScalarOp::Select, &[is_inside, updates, nothing]);
    }
    // Axes of the updates that the operand has, in the operand's order.
    let kept: Vec<usize> = windows.axes.iter().filter_map(|window| window.axis).collect();
    let folded: Vec<usize> = (0..shape.len()).filter(|axis| !kept.contains(axis)).collect();
    let mut sum = to.append(StructuralOp::from(Reduce::dropping(monoid, folded.clone())), &[rows]);
    let axes: Vec<usize> = kept.iter().map(|&axis| axis - folded.iter().filter(|&&f| f < axis).count()).collect();
    if !axes.is_sorted() {
        sum = to.append(StructuralOp::from(Transpose { axes }), &[sum]);
    }
    let sum = to.reshape_if_needed(sum, &x);
    Some(to.append(monoid, &[operand, sum]))
}

/// Returns true for starts that are known to be 0: zeros, or starts clamped to between 0 and 0.
fn are_zero_starts(to: &GraphRewriter, v: Var) -> bool {
    let zero = |v: Var| {
        let literal = |v: Var| matches!(to.definition(v), Some(Equation { op: Op::Literal(x), .. }) if x.bits == 0);
        let splat = |e: &Equation| matches!(e.op, Op::Structural(StructuralOp::Broadcast(_))) && literal(e.args[0]);
        literal(v) || to.definition(v).is_some_and(splat)
    };
    match to.definition(v).map(|e| (&e.op, &e.args[..])) {
        Some((Op::Structural(StructuralOp::Reshape(_) | StructuralOp::Broadcast(_)), args)) => {
            are_zero_starts(to, args[0])
        }
        Some((Op::Scalar(ScalarOp::Minimum), &[moved, limit])) if zero(limit) => {
            let lower = to.definition(moved);
            lower.is_some_and(|e| e.op == Op::Scalar(ScalarOp::Maximum) && e.args.iter().any(|&v| zero(v)))
        }
        _ => false,
    }
}

//! Extremes of windows, one axis after the other.
//!
//! ```text
//! reduce_window op(maximum) size(1, 3, 3, 1) x
//! reduce_window op(maximum) size(1, 1, 3, 1) (reduce_window op(maximum) size(1, 3, 1, 1) x)
//! ```
//!
//! A window of 3x3 takes 6 steps an element in place of 9, and those along the outer axis are rows of adjacent elements. A sum
//! of floats would be rounded in another order, so it stays.
use super::rewrite::each;
use crate::graph::{Graph, Op};
use pallas_ir::structural::{ReduceWindow, WindowDim};
use pallas_ir::{ScalarOp, StructuralOp};

pub(super) fn windows(graph: &Graph) -> Graph {
    each(graph, |to, e| {
        let Op::Structural(StructuralOp::ReduceWindow(op)) = &e.op else { return None };
        let axes = apart(op);
        let turn = |x, &axis: &usize| to.append(StructuralOp::from(along(op, axis)), &[x]);
        (axes.len() > 1).then(|| axes.iter().fold(e.args[0], turn))
    })
}

/// The axes along which windows are folded one after the other; none if that would change results.
fn apart(op: &ReduceWindow) -> Vec<usize> {
    let is_exact = matches!(op.op, ScalarOp::Maximum | ScalarOp::Minimum);
    (0..op.size.len()).filter(|&axis| is_exact && op.size[axis] > 1).collect()
}

/// The same windows along one axis; what moves along axes of windows of one element comes with the first.
fn along(op: &ReduceWindow, axis: usize) -> ReduceWindow {
    let is_first = op.size.iter().position(|&n| n > 1) == Some(axis);
    let has = |other: usize| other == axis || is_first && op.size[other] == 1;
    let each = 0..op.size.len();
    ReduceWindow {
        op: op.op,
        size: each.clone().map(|other| if other == axis { op.size[other] } else { 1 }).collect(),
        windows: each.map(|other| if has(other) { op.windows[other] } else { WindowDim::PLAIN }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pallas_ir::{DType, Type};

    /// Windows of 3x2 with an axis between that they only move along: each axis moves once, and the shape stays.
    #[test]
    fn each_axis_of_a_window_moves_once() {
        let size = vec![3, 1, 2];
        let moves = WindowDim { stride: 2, low: 1, high: 1, ..WindowDim::PLAIN };
        for (op, count) in [(ScalarOp::Maximum, 2), (ScalarOp::Minimum, 2), (ScalarOp::Add, 1)] {
            let mut graph = Graph::default();
            let x = graph.param(Type::new(DType::F32, vec![9, 8, 7]));
            let window = ReduceWindow { op, size: size.clone(), windows: vec![moves; 3] };
            graph.results = vec![graph.push(StructuralOp::from(window), &[x]).expect("it fits")];
            let simple = windows(&graph);
            let found: Vec<&ReduceWindow> = simple.equations.iter().filter_map(window_of).collect();
            assert_eq!(found.len(), count, "{op}: {simple}");
            assert_eq!(simple.ty(simple.results[0]), graph.ty(graph.results[0]), "{op}");
            for (axis, &n) in size.iter().enumerate() {
                assert_eq!(found.iter().filter(|w| w.windows[axis] == moves).count(), 1, "{op} along {axis}: {simple}");
                assert_eq!(found.iter().map(|w| w.size[axis]).product::<i64>(), n, "{op} along {axis}");
            }
        }
    }

    fn window_of(e: &crate::graph::Equation) -> Option<&ReduceWindow> {
        match &e.op {
            Op::Structural(StructuralOp::ReduceWindow(op)) => Some(op),
            _ => None,
        }
    }
}

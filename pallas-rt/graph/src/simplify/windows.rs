//! Splits maxima and minima of windows into one fold for each axis, and replaces convolutions with windows of one
//! element by products.
//!
//! ```text
//! reduce_window op(maximum) size(1, 3, 3, 1) x    reduce_window .. size(1, 1, 3, 1)
//!                                                     (reduce_window .. size(1, 3, 1, 1) x)
//! conv x w, a group a feature, w of one element   mul x (broadcast w)
//! ```
//!
//! A window of 3x3 takes 6 steps for each element instead of 9, and those along the outer axis are on rows of adjacent
//! elements. Sums of floats stay, because they would be rounded in another order.
use super::rewrite::{GraphRewriter, rewrite_each_equation};
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Cast, Conv, ReduceWindow, Transpose, WindowDim};
use pallas_ir::{ScalarOp, StructuralOp};

/// Replaces maxima and minima over windows by folds along one axis after the other, and convolutions with windows of
/// one element by products.
pub(super) fn simplify_windows(graph: Graph) -> Graph {
    rewrite_each_equation(graph, |to, e| match &e.op {
        Op::Structural(StructuralOp::ReduceWindow(op)) => {
            let axes = separable_axes(op);
            let turn = |x, &axis: &usize| to.append(StructuralOp::from(window_along_axis(op, axis)), &[x]);
            (axes.len() > 1).then(|| axes.iter().fold(e.args[0], turn))
        }
        Op::Structural(StructuralOp::Conv(op)) => emit_conv_as_product(to, e, op),
        _ => None,
    })
}

/// Appends a convolution that multiplies each feature by one number as a product; returns `None` for other
/// convolutions.
fn emit_conv_as_product(to: &mut GraphRewriter, e: &Equation, op: &Conv) -> Option<Var> {
    let [x, w] = [e.args[0], e.args[1]].map(|v| to.graph.ty(v).shape.clone());
    let out = to.graph.ty(e.result()).shape.clone();
    let features = x[op.lhs[1]];
    let are_groups = op.batch_groups == 1 && op.groups == features && out[op.out[1]] == features;
    let is_still = op.windows.iter().all(|window| WindowDim { spacing: 1, ..*window } == WindowDim::PLAIN);
    if !(are_groups && is_still && w.iter().product::<usize>() == features) {
        return None;
    }
    let mut axes = vec![0; out.len()];
    op.out.iter().zip(&op.lhs).for_each(|(&axis, &from)| axes[axis] = from);
    let [x, w] = [e.args[0], e.args[1]].map(|v| to.append(StructuralOp::from(Cast { to: op.acc }), &[v]));
    let x = to.append(StructuralOp::from(Transpose { axes }), &[x]);
    let w = to.reshape_if_needed(w, &[features]);
    let w = to.append(StructuralOp::from(Broadcast { to: constant_dims(&out), dims: vec![op.out[1]] }), &[w]);
    Some(to.append(ScalarOp::Mul, &[x, w]))
}

/// Returns the axes along which windows can be folded one after the other; none if that would change results.
fn separable_axes(op: &ReduceWindow) -> Vec<usize> {
    let is_exact = matches!(op.op, ScalarOp::Maximum | ScalarOp::Minimum);
    (0..op.size.len()).filter(|&axis| is_exact && op.size[axis] > 1).collect()
}

/// Returns the fold of the windows along one axis; strides and padding along axes with windows of one element are part
/// of the first fold.
fn window_along_axis(op: &ReduceWindow, axis: usize) -> ReduceWindow {
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

    /// Windows of 3x2 with an axis between along which they only move: each axis moves once, and the shape stays.
    #[test]
    fn each_axis_of_a_window_moves_once() {
        let size = vec![3, 1, 2];
        let moves = WindowDim { stride: 2, low: 1, high: 1, ..WindowDim::PLAIN };
        for (op, count) in [(ScalarOp::Maximum, 2), (ScalarOp::Minimum, 2), (ScalarOp::Add, 1)] {
            let mut graph = Graph::default();
            let x = graph.param(Type::new(DType::F32, vec![9, 8, 7]));
            let window = ReduceWindow { op, size: size.clone(), windows: vec![moves; 3] };
            graph.results = vec![graph.push(StructuralOp::from(window), &[x]).expect("it fits")];
            let simple = simplify_windows(graph.clone());
            let found: Vec<&ReduceWindow> = simple.equations.iter().filter_map(window_of).collect();
            assert_eq!(found.len(), count, "{op}: {simple}");
            assert_eq!(simple.ty(simple.results[0]), graph.ty(graph.results[0]), "{op}");
            for (axis, &n) in size.iter().enumerate() {
                assert_eq!(found.iter().filter(|w| w.windows[axis] == moves).count(), 1, "{op} along {axis}: {simple}");
                assert_eq!(found.iter().map(|w| w.size[axis]).product::<i64>(), n, "{op} along {axis}");
            }
        }
    }

    /// Of convolutions with one number for each feature, those whose windows neither move by steps nor are padded are
    /// products.
    #[test]
    fn a_number_for_each_feature_is_multiplied() {
        let plain = Conv {
            windows: vec![WindowDim::PLAIN; 2],
            groups: 3,
            batch_groups: 1,
            lhs: vec![0, 1, 2, 3],
            rhs: vec![0, 1, 2, 3],
            out: vec![0, 3, 1, 2],
            acc: DType::F32,
        };
        let moved = |window| Conv { windows: vec![WindowDim::PLAIN, window], ..plain.clone() };
        for (conv, features, is_product) in [
            (plain.clone(), 3, true),
            (moved(WindowDim { spacing: 2, ..WindowDim::PLAIN }), 3, true),
            (moved(WindowDim { stride: 2, ..WindowDim::PLAIN }), 3, false),
            (moved(WindowDim { low: 1, ..WindowDim::PLAIN }), 3, false),
            (plain.clone(), 6, false),
        ] {
            let mut graph = Graph::default();
            let x = graph.param(Type::new(DType::Bf16, vec![2, 3, 5, 7]));
            let w = graph.param(Type::new(DType::Bf16, vec![features, 1, 1, 1]));
            graph.results = vec![graph.push(StructuralOp::from(conv), &[x, w]).expect("it fits")];
            let simple = simplify_windows(graph.clone());
            let is_conv = |e: &Equation| matches!(e.op, Op::Structural(StructuralOp::Conv(_)));
            assert_eq!(!simple.equations.iter().any(is_conv), is_product, "{simple}");
            assert_eq!(simple.ty(simple.results[0]), graph.ty(graph.results[0]), "{simple}");
        }
    }

    fn window_of(e: &crate::graph::Equation) -> Option<&ReduceWindow> {
        match &e.op {
            Op::Structural(StructuralOp::ReduceWindow(op)) => Some(op),
            _ => None,
        }
    }
}

//! Splits folds over axes on both sides of a kept axis, and broadcasts along such axes, into two steps.
//!
//! ```text
//! sum over axes 0, 2 of x: f32[26, 900, 2]       sum over axis 1 of (sum over axis 0 of x): f32[900, 2]
//! broadcast y: f32[900] to [26, 900, 2]          broadcast (broadcast y to [900, 2])
//! ```
//!
//! The larger step then handles rows of 1,800 adjacent elements: rows of two elements fill no vector.
use super::rewrite::{GraphRewriter, rewrite_each_equation};
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use pallas_ir::structural::{Broadcast, Reduce};

/// Fewest elements of a row for which folding the row takes little longer than adding it to another row; folds and
/// broadcasts with shorter rows are split into two steps.
const MIN_EFFICIENT_ROW_ELEMENTS: usize = 64;

/// Rewrites the folds and broadcasts of a graph in two steps where that is faster.
pub(super) fn split_folds_and_broadcasts(graph: Graph) -> Graph {
    rewrite_each_equation(graph, |to, e| match &e.op {
        Op::Structural(StructuralOp::Reduce(op)) => emit_two_step_reduce(to, e, op),
        Op::Structural(StructuralOp::Broadcast(op)) => emit_two_step_broadcast(to, e, op),
        _ => None,
    })
}

/// Returns the last axis that is neither folded nor new (`is_folded_or_new` is false), if the axes after it have few
/// elements and the folded or new axes before it have more; `None` otherwise.
fn find_split_axis(shape: &[usize], is_folded_or_new: impl Fn(usize) -> bool) -> Option<usize> {
    let last = (0..shape.len()).rev().find(|&axis| shape[axis] != 1 && !is_folded_or_new(axis))?;
    let few: usize = shape[last + 1..].iter().product();
    let outer: usize = (0..last).filter(|&axis| is_folded_or_new(axis)).map(|axis| shape[axis]).product();
    ((2..MIN_EFFICIENT_ROW_ELEMENTS).contains(&few) && outer > few).then_some(last)
}

/// Returns a shape in which all axes from `first_joined` on are joined to one.
fn join_last_axes(shape: &[usize], first_joined: usize) -> Vec<usize> {
    [&shape[..first_joined], &[shape[first_joined..].iter().product()]].concat()
}

/// Appends a fold in two steps: first over the axes before the last kept axis, then over those after it.
fn emit_two_step_reduce(to: &mut GraphRewriter, e: &Equation, op: &Reduce) -> Option<Var> {
    let shape = to.graph.ty(e.args[0]).shape.clone();
    let last = find_split_axis(&shape, |axis| op.axes.contains(&axis))?;
    let (outer, inner): (Vec<usize>, Vec<usize>) = op.axes.iter().partition(|axis| **axis < last);
    let x = to.reshape_if_needed(e.args[0], &join_last_axes(&shape, last));
    let folded = to.append(StructuralOp::from(Reduce::dropping(op.op, outer.clone())), &[x]);
    let kept: Vec<usize> = (0..shape.len()).filter(|axis| !outer.contains(axis)).collect();
    let divided: Vec<usize> = kept.iter().map(|&axis| shape[axis]).collect();
    let folded = to.reshape_if_needed(folded, &divided);
    let inner = (0..kept.len()).filter(|&at| inner.contains(&kept[at])).collect();
    Some(to.append(StructuralOp::from(Reduce::dropping(op.op, inner)), &[folded]))
}

/// Appends a broadcast in two steps: first along the axes after the operand's last axis, then along those before it.
fn emit_two_step_broadcast(to: &mut GraphRewriter, e: &Equation, op: &Broadcast) -> Option<Var> {
    let [from, shape] = [e.args[0], e.result()].map(|v| to.graph.ty(v).shape.clone());
    let places = &op.dims[..from.len()];
    let is_new = |axis: usize| !(0..from.len()).any(|own| places[own] == axis && from[own] == shape[axis]);
    let last = find_split_axis(&shape, is_new).filter(|_| places.is_sorted())?;
    // The operand with the last axes, which are then joined with the axis before them.
    let axes: Vec<usize> = (0..shape.len()).filter(|axis| places.contains(axis) || *axis > last).collect();
    let extent = |axis: &usize| if *axis > last || !is_new(*axis) { shape[*axis] } else { 1 };
    let part: Vec<usize> = axes.iter().map(extent).collect();
    let own = places.iter().map(|place| axes.iter().position(|axis| axis == place).expect("it is one of them"));
    let some = Broadcast { to: constant_dims(&part), dims: own.collect() };
    let some = to.append(StructuralOp::from(some), &[e.args[0]]);
    let at = axes.iter().position(|&axis| axis == last).expect("the operand has it");
    let some = to.reshape_if_needed(some, &join_last_axes(&part, at));
    let all = Broadcast { to: constant_dims(&join_last_axes(&shape, last)), dims: axes[..=at].to_vec() };
    Some(to.append(StructuralOp::from(all), &[some]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simplify::{axes::join_adjacent_axes, cancel::simplify_equations};
    use pallas_ir::{DType, ScalarOp, Type};

    #[test]
    fn rows_of_two_are_folded_and_repeated_last() {
        for keep in [false, true] {
            let mut graph = Graph::default();
            let x = graph.param(Type::new(DType::F32, vec![26, 900, 2]));
            let fold = Reduce { op: ScalarOp::Add, axes: vec![0, 2], keep };
            let sum = graph.push(StructuralOp::from(fold), &[x]).expect("it fits");
            let places = if keep { vec![0, 1, 2] } else { vec![1] };
            let all = Broadcast { to: constant_dims(&[26, 900, 2]), dims: places };
            let all = graph.push(StructuralOp::from(all), &[sum]).expect("it fits");
            graph.results = vec![graph.push(ScalarOp::Sub, &[x, all]).expect("one shape")];
            let found = simplify_equations(join_adjacent_axes(split_folds_and_broadcasts(graph.clone())));
            assert_eq!(crate::verify(&found), Ok(()));
            assert_eq!(found.ty(found.results[0]), graph.ty(graph.results[0]));
            let shapes = found.equations.iter().filter(|e| !matches!(e.op, Op::Structural(StructuralOp::Reshape(_))));
            let shapes: Vec<_> = shapes.map(|e| found.ty(e.result()).shape.clone()).collect();
            assert!(shapes.contains(&vec![26, 1800]) && !shapes.contains(&vec![26, 900, 2]), "{shapes:?}");
        }
    }
}

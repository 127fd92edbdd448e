//! Kinds of equations between which the planner distinguishes.
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;

/// Most elements of a value that programs compute again instead of reading it from memory.
pub(crate) const MAX_RECOMPUTED_ELEMENTS: usize = 8;
/// Most elements that programs fold again instead of reading the result, for which they would wait for another launch.
const MAX_REFOLDED_ELEMENTS: usize = 256;

/// Returns true for an operation that is a step of its own: it shares no kernel, and its operands and results are in
/// memory.
pub(crate) fn is_standalone_op(op: &Op) -> bool {
    matches!(op, Op::Dynamic(_) | Op::Collective(_) | Op::Call(_) | Op::Structural(StructuralOp::Scatter(_)))
}

/// Returns true for an equation that is computed wherever it is used, without memory: a literal, a broadcast literal,
/// or an iota.
pub(crate) fn is_always_inlined(graph: &Graph, definitions: &[Option<usize>], e: &Equation) -> bool {
    let is_literal = |v: Var| definitions[v.index()].is_some_and(|i| matches!(graph.equations[i].op, Op::Literal(_)));
    matches!(e.op, Op::Literal(_) | Op::Structural(StructuralOp::Iota(_)))
        || matches!(e.op, Op::Structural(StructuralOp::Broadcast(_))) && is_literal(e.args[0])
}

/// Returns true for a reshape or an optimization barrier, whose result can have the operand's memory; a value without
/// memory ([`is_always_inlined`]) has none.
pub(super) fn is_memory_alias(graph: &Graph, definitions: &[Option<usize>], e: &Equation) -> bool {
    let of_free =
        |v: &Var| definitions[v.index()].is_some_and(|i| is_always_inlined(graph, definitions, &graph.equations[i]));
    matches!(e.op, Op::Identity(_) | Op::Structural(StructuralOp::Reshape(_))) && !e.args.iter().any(of_free)
}

/// Returns true for a reduction of at most [`MAX_REFOLDED_ELEMENTS`] elements to at most [`MAX_RECOMPUTED_ELEMENTS`].
pub(super) fn is_short_fold(graph: &Graph, e: &Equation) -> bool {
    let has = |v: Var, most: usize| graph.ty(v).elements() <= most;
    let is_fold = matches!(e.op, Op::Structural(StructuralOp::Reduce(_)));
    is_fold && has(e.args[0], MAX_REFOLDED_ELEMENTS) && has(e.result(), MAX_RECOMPUTED_ELEMENTS)
}

/// Returns true for an operation that sums products: `dot` or a convolution.
pub(super) fn is_product(op: &Op) -> bool {
    matches!(op, Op::Structural(StructuralOp::Dot(_) | StructuralOp::Conv(_)))
}

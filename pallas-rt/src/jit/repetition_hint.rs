//! Advice about functions whose trace repeats the same operations.
use pallas_graph::{Equation, Graph, Op};
use pallas_ir::{DType, Loc, StructuralOp, Type};
use std::collections::HashMap;

/// Number of equal operations from one line at which they are taken for a loop.
const MIN_REPEATED_OPERATIONS: usize = 300;

/// A hint to use a loop, if one line of the user's code made the same operation hundreds of times.
pub(super) fn loop_hint(graph: &Graph) -> Option<String> {
    let mut counts: HashMap<(Loc, &Op, Vec<&Type>), usize> = HashMap::new();
    // Numbers and their broadcasts come along with other operations.
    let counts_for =
        |op: &Op| !matches!(op, Op::Literal(_) | Op::Structural(StructuralOp::Broadcast(_) | StructuralOp::Cast(_)));
    // The rounds of the generator of random bits are many operations of one call.
    let is_bits = |e: &Equation| e.results.iter().any(|&v| graph.ty(v).dtype == DType::U32);
    for e in graph.equations.iter().filter(|e| e.loc != Loc::NONE && counts_for(&e.op) && !is_bits(e)) {
        let types = e.args.iter().map(|&v| graph.ty(v)).collect();
        *counts.entry((e.loc, &e.op, types)).or_default() += 1;
    }
    // Texts are made for few: that of a call is as long as all that it calls.
    let many = counts.into_iter().filter(|(_, count)| *count >= MIN_REPEATED_OPERATIONS);
    let ((at, op, _), count) = many.max_by_key(|((at, op, _), count)| {
        (*count, std::cmp::Reverse((at.file, at.line, at.column, op.to_string())))
    })?;
    Some(format!(
        "`{}` at {at} is traced {count} times; help: a loop as `scan` or `fori_loop` is traced and compiled once",
        op.name()
    ))
}

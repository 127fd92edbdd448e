//! Calls the derivative and batching rules that pallas-ir states for operations, with variables of a graph.
use crate::build::constant_dims;
use crate::graph::{Graph, Var};
use pallas_ir::emit::ValueId;
use pallas_ir::structural::RuleOperand;
use pallas_ir::{E, Type};
use std::cell::RefCell;

/// Wraps a variable as an expression, which rules of pallas-ir take; what they make of it is appended to `to`.
pub(super) fn as_expression(to: &RefCell<Graph>, v: Var) -> E<'_> {
    E { to, id: ValueId(v.0) }
}

/// Returns the variable of an expression that a rule made.
pub(super) fn expression_var(x: E<'_>) -> Var {
    Var(x.id.0)
}

/// Calls a rule of a structural operation on the variables `args`. `types` are the types that the rule is told, which
/// for a batched operation lack the batch axis.
pub(super) fn apply_structural_rule<'g, R>(
    to: &'g RefCell<Graph>,
    args: &[Var],
    types: &[Type],
    rule: impl FnOnce(&[RuleOperand<'_, 'g>]) -> R,
) -> R {
    let shapes: Vec<_> = types.iter().map(|ty| constant_dims(&ty.shape)).collect();
    let args = args.iter().zip(types).zip(&shapes);
    let args: Vec<RuleOperand<'_, 'g>> =
        args.map(|((&v, ty), shape)| RuleOperand { value: as_expression(to, v), shape, dtype: ty.dtype }).collect();
    rule(&args)
}

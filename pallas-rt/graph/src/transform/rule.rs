//! Calls of the rules of operations, which pallas-ir states.
use crate::build::dims;
use crate::graph::{Graph, Var};
use pallas_ir::emit::Id;
use pallas_ir::structural::Arg;
use pallas_ir::{E, Type};
use std::cell::RefCell;

/// A variable as a value in a rule.
pub(super) fn value(to: &RefCell<Graph>, v: Var) -> E<'_> {
    E { to, id: Id(v.0) }
}

/// The variable of a value that a rule made.
pub(super) fn made(x: E<'_>) -> Var {
    Var(x.id.0)
}

/// Calls a rule of a structural operation. `types` are those that the operation has for operands.
pub(super) fn structural<'g, R>(
    to: &'g RefCell<Graph>,
    args: &[Var],
    types: &[Type],
    rule: impl FnOnce(&[Arg<'_, 'g>]) -> R,
) -> R {
    let shapes: Vec<_> = types.iter().map(|ty| dims(&ty.shape)).collect();
    let args = args.iter().zip(types).zip(&shapes);
    let args: Vec<Arg<'_, 'g>> =
        args.map(|((&v, ty), shape)| Arg { value: value(to, v), shape, dtype: ty.dtype }).collect();
    rule(&args)
}

//! A scan in a graph for all sizes: further steps than exist leave the carried values as they are.
use super::Scan;
use crate::bounded::Scope;
use crate::build::dims;
use crate::call::{Call, has_effect};
use crate::graph::{Graph, Var};
use pallas_ir::structural::Broadcast;
use pallas_ir::{DType, Literal, ScalarOp, StructuralOp, Type};
use std::collections::BTreeMap;

/// Checks that a call is the same scan of another length.
pub(super) fn agree(a: &Scan, other: &Call) -> Result<(), String> {
    let b = Scan::of(other).filter(|b| (a.captured, a.carried, a.reverse) == (b.captured, b.carried, b.reverse));
    let Some(b) = b else { return Err("a scan carries other values".into()) };
    match a.length != b.length && a.body.equations.iter().any(|e| has_effect(&e.op)) {
        true => Err("`debug_print` in a scan whose number of steps depends on the size".into()),
        false => Ok(()),
    }
}

/// A loop, of whose steps the first `length` exist.
pub(super) fn masked(
    scan: &Scan,
    scope: &mut Scope<'_>,
    mut body: Graph,
    mut scalars: BTreeMap<usize, Var>,
    length: Option<usize>,
    args: &[Var],
) -> Vec<Var> {
    let (captured, rest) = args.split_at(scan.captured);
    let Some(length) = length else {
        body.params.splice(0..0, scalars.values().copied());
        let operands = [&scope.given(&scalars)[..], args].concat();
        let call = Scan { body, captured: scan.captured + scalars.len(), ..*scan };
        return scope.to.fitting_all(call, &operands);
    };
    // One more value is carried: the number of the step.
    let end = *scalars.entry(length).or_insert_with(|| body.var(Type::scalar(DType::I32)));
    let step = body.var(Type::scalar(DType::I32));
    let one = body.literal(Literal::int(DType::I32, if scan.reverse { -1 } else { 1 }));
    let next = body.fitting(ScalarOp::Add, &[step, one]);
    let exists = body.fitting(ScalarOp::Lt, &[step, end]);
    for k in 0..scan.carried {
        let (before, after) = (body.params[scan.captured + k], body.results[k]);
        let shape = body.ty(after).shape.clone();
        let exists = match shape.is_empty() {
            true => exists,
            false => body.fitting(StructuralOp::from(Broadcast::to(dims(&shape))), &[exists]),
        };
        body.results[k] = body.fitting(ScalarOp::Select, &[exists, after, before]);
    }
    let last = scan.captured + scan.carried;
    body.params.insert(last, step);
    body.results.insert(scan.carried, next);
    body.params.splice(0..0, scalars.values().copied());
    let first = scope.to.literal(Literal::int(DType::I32, if scan.reverse { scan.length as i64 - 1 } else { 0 }));
    let (carried, arrays) = rest.split_at(scan.carried);
    let operands = [&scope.given(&scalars)[..], captured, carried, &[first], arrays].concat();
    let (captured, carried) = (scan.captured + scalars.len(), scan.carried + 1);
    let mut made = scope.to.fitting_all(Scan { body, captured, carried, ..*scan }, &operands);
    made.remove(scan.carried);
    made
}

//! Batches a `while`.
use super::While;
use crate::graph::{Graph, Var};
use crate::ops::prelude::*;
use crate::transform::{
    add_missing_batch_axes, extend_flags_to_fixpoint, inline_or_call, push_batch_select, refuse_batch_collectives,
};
use pallas_ir::structural::Reduce;
use pallas_ir::{ScalarOp, StructuralOp};

/// Appends the loop for a batch: with one condition if it is the same for all elements, otherwise with a condition for
/// each.
pub(super) fn batched(call: &While, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
    let carried = carried_batch_flags(call, batch.has, batch.axis);
    match is_condition_batched(call, batch.has, &carried, batch.axis) {
        true => batch_with_varying_condition(call, batch),
        false => batch_with_one_condition(call, batch, &carried),
    }
}

/// Returns for each carried value true if it gets the batch axis from the operands for which `has_batch_axis` is true,
/// given that the loop's condition is the same for the whole batch.
pub(super) fn carried_batch_flags(call: &While, has_batch_axis: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
    let (first, n) = (call.body_captured, call.body.results.len());
    extend_flags_to_fixpoint(&has_batch_axis[call.condition_captured..], first, n, |on| {
        batch_dependent_results(&call.body, on, axis)
    })[first..]
        .to_vec()
}

/// Returns true if the condition differs between the elements of the batch, given that the operands for which
/// `has_batch_axis` is true and the carried values for which `is_carried_batched` is true do.
pub(super) fn is_condition_batched(
    call: &While,
    has_batch_axis: &[bool],
    is_carried_batched: &[bool],
    axis: BatchAxis<'_>,
) -> bool {
    batch_dependent_results(
        &call.condition,
        &[&has_batch_axis[..call.condition_captured], is_carried_batched].concat(),
        axis,
    )[0]
}

/// Appends a `while` whose condition is the same for all elements of the batch.
fn batch_with_one_condition(
    call: &While,
    batch: BatchedCall<'_>,
    is_carried_batched: &[bool],
) -> Result<Vec<(Var, bool)>, TransformError> {
    let BatchedCall { to, args, has, axis, .. } = batch;
    let (before, fixed) = has.split_at(call.condition_captured);
    let fixed = &fixed[..call.body_captured];
    let (condition, _) =
        batched_with_forced_results(&call.condition, &[before, is_carried_batched].concat(), axis, &[false])?;
    let (body, _) =
        batched_with_forced_results(&call.body, &[fixed, is_carried_batched].concat(), axis, is_carried_batched)?;
    let args = add_missing_batch_axes(to, args, has, &[before, fixed, is_carried_batched].concat(), axis.size);
    let made = to.push_valid_multi_result(While { condition, body, ..*call }, &args);
    Ok(made.into_iter().zip(is_carried_batched.iter().copied()).collect())
}

/// Appends a `while` whose condition differs between the elements. It also carries a bool for each element, true as
/// long as the element's condition holds, and stops when none is true.
///
/// ```text
/// condition    (values.., goes on) -> any(goes on)
/// body         (captured.., values.., goes on) -> (new = select(goes on, body(values), values).., condition(new))
/// ```
fn batch_with_varying_condition(call: &While, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
    let BatchedCall { to, args, has, axis, .. } = batch;
    refuse_batch_collectives("a loop", [&call.condition, &call.body], axis, to.at)?;
    let (c, fixed) = (call.condition_captured, call.condition_captured + call.body_captured);
    let all = vec![true; call.body.results.len()];
    let (test, _) = batched_with_forced_results(&call.condition, &[&has[..c], &all].concat(), axis, &[true])?;
    let (step, _) = batched_with_forced_results(&call.body, &[&has[c..fixed], &all].concat(), axis, &all)?;

    let mut args = add_missing_batch_axes(to, args, has, &[&has[..fixed], &all].concat(), axis.size);
    let goes_on = inline_or_call(to, &test, &[&args[..c], &args[fixed..]].concat())[0];
    args.push(goes_on);
    let types: Vec<Type> = args.iter().map(|&v| to.ty(v).clone()).collect();

    let mut condition = Graph { at: to.at, ..Graph::default() };
    let params: Vec<Var> = types[fixed..].iter().map(|ty| condition.param(ty.clone())).collect();
    let last = params[all.len()];
    let any = Reduce::dropping(ScalarOp::BitOr, vec![0]);
    condition.results = vec![condition.push_valid(StructuralOp::from(any), &[last])];

    let mut body = Graph { at: to.at, ..Graph::default() };
    let params: Vec<Var> = types.iter().map(|ty| body.param(ty.clone())).collect();
    let (values, goes_on) = (&params[fixed..fixed + all.len()], params[fixed + all.len()]);
    let made = body.inline(&step, &[&params[c..fixed], values].concat());
    let made: Vec<Var> =
        made.into_iter().zip(values).map(|(new, &old)| push_batch_select(&mut body, goes_on, new, old)).collect();
    let goes_on = body.inline(&test, &[&params[..c], &made[..]].concat());
    body.results = [made, goes_on].concat();

    let mut made =
        to.push_valid_multi_result(While { condition, body, condition_captured: 0, body_captured: fixed }, &args);
    made.truncate(all.len());
    Ok(made.into_iter().map(|v| (v, true)).collect())
}

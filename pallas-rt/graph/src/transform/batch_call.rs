//! Helpers with which calls state their batching.
use super::batch::{BatchAxis, repeat_along_new_axis};
use super::memo::{CallFlagMeaning, cached_call_flags};
use super::{TransformError, collective};
use crate::build::constant_dims;
use crate::call::ClosedCall;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Transpose};
use pallas_ir::{At, Diag, Loc, ScalarOp, StructuralOp};

/// A call that is batched along an axis.
pub(crate) struct BatchedCall<'a> {
    /// The batched graph, to which the call is appended.
    pub to: &'a mut Graph,
    /// The operands in the batched graph.
    pub args: &'a [Var],
    /// For each operand, true if it has the batch axis in front. At least one has it, or the call contains a collective
    /// over the axis.
    pub has: &'a [bool],
    /// The batch axis.
    pub axis: BatchAxis<'a>,
    /// In a branch of a batched `case`, a bool for each element: true if the element takes the branch.
    pub taken: Option<Var>,
}

/// Returns for each result of a graph whether it differs between the elements of a batch, if the parameters for which
/// `is_batch_dependent` is true do.
pub(crate) fn batch_dependent_results(graph: &Graph, is_batch_dependent: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
    let mut differs = vec![false; graph.types.len()];
    graph.params.iter().zip(is_batch_dependent).for_each(|(p, &on)| differs[p.index()] = on);
    for e in &graph.equations {
        let args: Vec<bool> = e.args.iter().map(|a| differs[a.index()]).collect();
        let found = match &e.op {
            Op::Call(call) if args.contains(&true) || axis.has_collective_in_op(&e.op) => {
                let name = axis.named.map_or(0, |mesh| std::ptr::from_ref(mesh) as usize);
                cached_call_flags(CallFlagMeaning::Batched(name), call, &args, || {
                    call.rule().batch_dependent_results(&args, axis)
                })
            }
            Op::Collective(op) if axis.is_axis_of(op) => {
                vec![collective::result_differs_in_batch(op, args.contains(&true))]
            }
            _ => {
                vec![args.contains(&true); e.results.len()]
            }
        };
        e.results.iter().zip(found).for_each(|(r, found)| differs[r.index()] = found);
    }
    graph.results.iter().map(|r| differs[r.index()]).collect()
}

/// Returns an error if one of the graphs contains a collective over the batch axis. The graphs run under a condition
/// that differs between the elements of the batch, so not all elements would take part; `what` names the loop or the
/// branches in the message.
pub(crate) fn refuse_batch_collectives<'g>(
    what: &str,
    graphs: impl IntoIterator<Item = &'g Graph>,
    axis: BatchAxis<'_>,
    at: Loc,
) -> Result<(), TransformError> {
    let Some(mesh) = axis.named.filter(|_| graphs.into_iter().any(|graph| has_exchange_along_batch_axis(graph, axis)))
    else {
        return Ok(());
    };
    let name = mesh.name(0);
    let message = format!("a collective over axis `{name}` in {what} whose condition differs along it");
    let help = format!("decide alike for all examples: reduce the condition over `{name}`, with `pmax` or `psum`");
    Err(TransformError { at, diag: Diag::new("vmap", At::Op, message, help) })
}

/// Returns true if a graph contains a collective over the batch axis that moves data between its elements, at any
/// depth.
fn has_exchange_along_batch_axis(graph: &Graph, axis: BatchAxis<'_>) -> bool {
    let of = |e: &Equation| match &e.op {
        Op::Collective(op) => axis.is_axis_of(op) && op.communicates(),
        Op::Call(call) => call.graphs().into_iter().any(|graph| has_exchange_along_batch_axis(graph, axis)),
        _ => false,
    };
    graph.equations.iter().any(of)
}

/// Returns the variables, repeated along a new first axis where `wants_batch_axis` is true and `has_batch_axis` is
/// false.
pub(crate) fn add_missing_batch_axes(
    to: &mut Graph,
    args: &[Var],
    has_batch_axis: &[bool],
    wants_batch_axis: &[bool],
    size: usize,
) -> Vec<Var> {
    let all = args.iter().zip(has_batch_axis.iter().zip(wants_batch_axis));
    all.map(|(&v, (&has, &wanted))| if wanted && !has { repeat_along_new_axis(to, v, size) } else { v }).collect()
}

/// Transposes the first two axes.
pub(crate) fn swap_first_axes(to: &mut Graph, v: Var) -> Var {
    let axes = [1, 0].into_iter().chain(2..to.ty(v).shape.len()).collect();
    to.push_valid(StructuralOp::from(Transpose { axes }), &[v])
}

/// Appends the equations of a graph. A graph with sharding groups is appended as a call, since equations appended later
/// may use the same group numbers.
pub(crate) fn inline_or_call(to: &mut Graph, graph: &Graph, args: &[Var]) -> Vec<Var> {
    match graph.sharding_group_count() {
        0 => to.inline(graph, args),
        _ => to.push_valid_multi_result(ClosedCall(graph.clone()), args),
    }
}

/// Selects `on_true` where `condition` is true, otherwise `on_false`. `condition` is a bool scalar, or has one bool for
/// each element of the first axis.
pub(crate) fn push_batch_select(to: &mut Graph, condition: Var, on_true: Var, on_false: Var) -> Var {
    let shape = to.ty(on_true).shape.clone();
    let which = match (shape.len(), to.ty(condition).is_scalar()) {
        (0, true) | (1, false) => condition,
        (_, true) => to.push_valid(StructuralOp::from(Broadcast::to(constant_dims(&shape))), &[condition]),
        (_, false) => {
            to.push_valid(StructuralOp::from(Broadcast { to: constant_dims(&shape), dims: vec![0] }), &[condition])
        }
    };
    to.push_valid(ScalarOp::Select, &[which, on_true, on_false])
}

//! Derivatives and batches of the collectives inside of a `shard_map`.
use super::Refused;
use crate::graph::{Graph, Var};
use crate::mesh::{Collective, Exchange, State};
use pallas_ir::structural::Transpose;
use pallas_ir::{At, DType, Diag, Literal, Loc, ScalarOp, StructuralOp};

/// Refuses a collective that has no derivative.
pub(super) fn linear(op: &Collective, at: Loc) -> Result<(), Refused> {
    match &op.kind {
        Exchange::AllReduce(monoid) | Exchange::ReduceScatter(monoid) if *monoid != ScalarOp::Add => {
            let message = format!("the derivative of `{}` by {monoid}", op.name());
            let help = "pass it a `stop_gradient` of its argument, or state the derivative by `custom_vjp`";
            Err(Refused { at, diag: Diag::new("collective", At::Op, message, help) })
        }
        _ => Ok(()),
    }
}

/// The state of a cotangent, from that of its value.
fn dual(state: State) -> State {
    match state {
        State::Unreduced => State::Reduced,
        State::Reduced => State::Unreduced,
        state => state,
    }
}

/// The cotangent of a collective's operand; `None` for a collective without one.
pub(super) fn transposed(to: &mut Graph, op: &Collective, cotangent: Var) -> Option<Var> {
    let kind = match &op.kind {
        Exchange::Table(_) => return None,
        Exchange::AllGather => Exchange::ReduceScatter(ScalarOp::Add),
        Exchange::ReduceScatter(_) => Exchange::AllGather,
        Exchange::AllToAll => Exchange::AllToAll,
        // Its operand varies, and its result is the same everywhere.
        Exchange::AllReduce(_) => Exchange::Cast { from: State::Invariant, to: State::Varying },
        Exchange::Permute(sources) => {
            let mut targets = vec![None; sources.len()];
            for (to, from) in sources.iter().enumerate().filter_map(|(to, from)| from.map(|from| (to, from))) {
                targets[from] = Some(to);
            }
            Exchange::Permute(targets)
        }
        Exchange::Cast { from, to: state } => match (dual(*state), dual(*from)) {
            (_, State::Invariant) => Exchange::AllReduce(ScalarOp::Add),
            (State::Invariant, _) => return Some(of_first(to, op, cotangent)),
            (from, state) => Exchange::Cast { from, to: state },
        },
    };
    Some(to.fitting(Collective { kind, ..op.clone() }, &[cotangent]))
}

/// The value on the first device of each group, and zeros on the others: parts of the value that all of them have.
fn of_first(to: &mut Graph, op: &Collective, x: Var) -> Var {
    let ty = to.ty(x).clone();
    let kind = Exchange::Table((0..op.members() as i32).collect());
    let number = to.fitting(Collective { kind, ..op.clone() }, &[]);
    let zero = to.literal(Literal::int(DType::I32, 0));
    let is_first = to.fitting(ScalarOp::Eq, &[number, zero]);
    let is_first = to.broadcast(is_first, &ty.shape).expect("a scalar stretches");
    let zeros = to.splat(Literal::new(ty.dtype, 0.0), &ty.shape);
    to.fitting(ScalarOp::Select, &[is_first, x, zeros])
}

/// The collective of many operands, along a first axis, at once: parts for the devices stay in front.
pub(super) fn batched(to: &mut Graph, op: &Collective, x: Var) -> Var {
    let parts_first = |to: &mut Graph, x: Var| {
        let axes: Vec<usize> = [1, 0].into_iter().chain(2..to.ty(x).shape.len()).collect();
        to.fitting(StructuralOp::from(Transpose { axes }), &[x])
    };
    let takes_parts = matches!(op.kind, Exchange::AllToAll | Exchange::ReduceScatter(_));
    let gives_parts = matches!(op.kind, Exchange::AllToAll | Exchange::AllGather);
    let x = if takes_parts { parts_first(to, x) } else { x };
    let made = to.fitting(op.clone(), &[x]);
    if gives_parts { parts_first(to, made) } else { made }
}

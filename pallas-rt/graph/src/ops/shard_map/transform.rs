//! Derivatives and batching of a `shard_map` and its body.
//!
//! The derivative needs values of the forward body (residuals). They leave it with a new first axis, which is sharded
//! by the mesh axes along which the devices' values differ:
//!
//! ```text
//! shard_map (x..) -> (y..)                     the call
//! shard_map (x..) -> (y.., residuals..)        forwards, in its place
//! shard_map (residuals.., dy..) -> (dx..)      backwards
//! ```
use super::ShardMap;
use crate::graph::{Graph, Var};
use crate::manual::{block_states, cast_graph_results, insert_casts};
use crate::mesh::{Axis, AxisStates, Collective, DimSharding, ManualAxisState, Pcast, Sharding};
use crate::refusal::TransformError;
use crate::transform::{
    BatchAxis, VjpCall, batched_with_forced_results, cotangent_or_zeros, is_float, split_by_known_params,
    vjp_of_results,
};
use pallas_ir::{At, Diag, Loc, Type};

/// Returns a `shard_map` like `map` with another body and other shardings, and makes the body's casts explicit.
fn with_body(
    map: &ShardMap,
    body: &Graph,
    operand_shardings: Vec<Sharding>,
    result_shardings: Vec<Sharding>,
) -> Result<ShardMap, TransformError> {
    let of = |all: &[Sharding]| all.iter().map(|sharding| block_states(sharding, &map.mesh)).collect::<Vec<_>>();
    let (mut body, found) = insert_casts(body, &map.mesh, &map.manual, &of(&operand_shardings))?;
    cast_graph_results(&mut body, &map.mesh, &found, &of(&result_shardings)).map_err(|(i, axis)| {
        let found = found[i][axis].name();
        let message = format!("a derivative in `shard_map` is {found} over axis `{}`", map.mesh.name(axis));
        let help =
            "derivatives that `custom_vjp` and `custom_jvp` state have the states of what they are derivatives of";
        TransformError { at: Loc::NONE, diag: Diag::new("shard_map", At::Op, message, help) }
    })?;
    Ok(ShardMap {
        mesh: map.mesh.clone(),
        manual: map.manual.clone(),
        takes: operand_shardings,
        gives: result_shardings,
        body,
    })
}

/// Returns the call with a body that also computes tangents. `is_operand_active` says which operands have a tangent,
/// `is_result_active` which results; tangents follow all operands, and all results, with the same shardings.
pub(super) fn with_tangents(
    map: &ShardMap,
    body: &Graph,
    is_operand_active: &[bool],
    is_result_active: &[bool],
) -> Result<ShardMap, TransformError> {
    let more = |all: &[Sharding], which: &[bool]| {
        let tangents = all.iter().zip(which).filter(|(_, on)| **on).map(|(sharding, _)| sharding.clone());
        all.iter().cloned().chain(tangents).collect()
    };
    with_body(map, body, more(&map.takes, is_operand_active), more(&map.gives, is_result_active))
}

/// Returns the call for a whole batch, and for each result true if it has the batch axis, which is in front and not
/// sharded.
pub(super) fn batched(
    map: &ShardMap,
    has_batch_axis: &[bool],
    axis: BatchAxis<'_>,
) -> Result<(ShardMap, Vec<bool>), TransformError> {
    let (body, flags) = batched_with_forced_results(&map.body, has_batch_axis, axis, &vec![false; map.gives.len()])?;
    let wider = |all: &[Sharding], has: &[bool]| {
        let one = |(sharding, has): (&Sharding, &bool)| match has {
            true => Sharding { dims: [&[DimSharding::default()], &sharding.dims[..]].concat(), ..sharding.clone() },
            false => sharding.clone(),
        };
        all.iter().zip(has).map(one).collect::<Vec<_>>()
    };
    Ok((with_body(map, &body, wider(&map.takes, has_batch_axis), wider(&map.gives, &flags))?, flags))
}

/// Appends the derivative of the call; returns the cotangents of its operands. The forward call is replaced by one that
/// also gives the residuals.
pub(super) fn vjp(map: &ShardMap, mut back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
    let VjpCall { e, on, cotangents, .. } = back;
    let of: Vec<bool> =
        e.results.iter().zip(cotangents).map(|(&r, found)| found.is_some() && is_float(back.to.ty(r))).collect();
    let both = vjp_of_results(&map.body, on, &of)?;
    let (known, n) = (map.body.params.len(), map.gives.len());
    let (mut first, mut second) = split_by_known_params(&both, known, n);
    let stored = first.results.split_off(n);
    let kept = second.params.len() - of.iter().filter(|of| **of).count();
    debug_assert_eq!(stored.len(), kept);

    // Finds the states of the residuals, which leave the first body.
    let of_params: Vec<AxisStates> = map.takes.iter().map(|sharding| block_states(sharding, &map.mesh)).collect();
    let given: Vec<Option<usize>> = stored.iter().map(|v| first.params.iter().position(|p| p == v)).collect();
    let residuals: Vec<Var> = stored.iter().zip(&given).filter(|(_, given)| given.is_none()).map(|(v, _)| *v).collect();
    let (_, found) =
        insert_casts(&Graph { results: residuals.clone(), ..first.clone() }, &map.mesh, &map.manual, &of_params)?;
    let shardings: Vec<Sharding> =
        residuals.iter().zip(&found).map(|(&v, s)| residual_sharding(first.ty(v), s, map)).collect();
    for (&v, states) in residuals.iter().zip(&found) {
        let plain = cast_reduction_states(&mut first, v, states, map, |state| (state, state_outside_body(state)));
        let shape = [&[1], &first.ty(v).shape[..]].concat();
        let boxed = first.reshape(plain, &shape);
        first.results.push(boxed);
    }
    let changed = with_body(map, &first, map.takes.clone(), [&map.gives[..], &shardings].concat())?;
    let types = shardings.iter().zip(changed.body.result_types().split_off(n));
    let types = types.map(|(sharding, block)| ShardMap::whole_array_type(&block, sharding)).collect();
    let outside = back.add_forward_results(changed, types);
    let to = back.to;

    // The second body takes operands of the call as they are, and drops the added first axis of residuals.
    let mut params = vec![];
    let (mut args, mut takes) = (vec![], vec![]);
    let mut front = Graph { equations: vec![], ..second.clone() };
    let mut next = residuals.iter().enumerate();
    for (&p, given) in second.params[..kept].iter().zip(&given) {
        match given {
            Some(i) => {
                params.push(p);
                args.push(e.args[*i]);
                takes.push(map.takes[*i].clone());
            }
            None => {
                let (i, _) = next.next().expect("one for each value that is no operand");
                let block = second.ty(p).clone();
                let outer = front.var(Type::new(block.dtype, [&[1], &block.shape[..]].concat()));
                params.push(outer);
                define_residual(&mut front, outer, p, &found[i], map);
                args.push(outside[i]);
                takes.push(shardings[i].clone());
            }
        }
    }
    params.extend(&second.params[kept..]);
    front.equations.append(&mut second.equations);
    let second = Graph { params, ..front };
    for ((&r, cotangent), sharding) in
        e.results.iter().zip(cotangents).zip(&map.gives).filter(|((_, c), _)| c.is_some())
    {
        let ty = to.ty(r).clone();
        if is_float(&ty) {
            args.push(cotangent_or_zeros(to, *cotangent, &ty));
            takes.push(sharding.clone());
        }
    }
    let gives = map.takes.iter().zip(on).filter(|(_, on)| **on).map(|(sharding, _)| sharding.clone()).collect();
    let mut made = to.push_valid_multi_result(with_body(map, &second, takes, gives)?, &args).into_iter();
    Ok(on.iter().map(|&on| if on { made.next() } else { None }).collect())
}

/// Returns the sharding of a residual with an added first axis, which is sharded by the mesh axes along which devices
/// differ.
fn residual_sharding(block: &Type, states: &[ManualAxisState], map: &ShardMap) -> Sharding {
    let differs = |state: ManualAxisState| matches!(state, ManualAxisState::Varying | ManualAxisState::Unreduced);
    let axes: Vec<Axis> = (0..states.len()).filter(|&i| differs(states[i])).map(|i| map.mesh.axis(i)).collect();
    let mut sharding = Sharding::replicated(block.shape.len() + 1);
    sharding.dims[0].axes = axes;
    sharding
}

/// Appends the equations that define variable `defined` of the backward body as `residual` without its added first
/// axis, cast back to the states that the value had in the forward body.
fn define_residual(to: &mut Graph, residual: Var, defined: Var, states: &[ManualAxisState], map: &ShardMap) {
    let shape = to.ty(residual).shape[1..].to_vec();
    let x = to.reshape(residual, &shape);
    cast_reduction_states(to, x, states, map, |state| (state_outside_body(state), state));
    to.equations.last_mut().expect("it was just appended").results = vec![defined];
}

/// Returns the state in which a residual with `state` in a body leaves it: varying for unreduced, invariant for
/// reduced, otherwise the same.
fn state_outside_body(state: ManualAxisState) -> ManualAxisState {
    match state {
        ManualAxisState::Unreduced => ManualAxisState::Varying,
        ManualAxisState::Reduced => ManualAxisState::Invariant,
        state => state,
    }
}

/// Appends casts of `v` between states along the mesh axes where `states` is unreduced or reduced.
/// `states_before_after` is given that state and returns the states from and to which the axes are cast.
fn cast_reduction_states(
    to: &mut Graph,
    v: Var,
    states: &[ManualAxisState],
    map: &ShardMap,
    states_before_after: impl Fn(ManualAxisState) -> (ManualAxisState, ManualAxisState),
) -> Var {
    let mut v = v;
    for state in [ManualAxisState::Unreduced, ManualAxisState::Reduced] {
        let axes: Vec<Axis> = (0..states.len()).filter(|&i| states[i] == state).map(|i| map.mesh.axis(i)).collect();
        if !axes.is_empty() {
            let (from, to_state) = states_before_after(state);
            let kind = Pcast { from, to: to_state }.into();
            v = to.push_valid(Collective { kind, mesh: map.mesh.clone(), axes }, &[v]);
        }
    }
    v
}

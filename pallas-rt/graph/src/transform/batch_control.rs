//! Loops and branches of many operands at once.
use super::Refused;
use super::active::fixpoint;
use super::batch::{BatchAxis, batched_at_least, batched_branch, stretched, wider};
use super::batch_kernel::kernel;
use super::memo::{Question, flags};
use super::{collective, manual};
use crate::build::dims;
use crate::call::{Call, Callback, Case, Checkpoint, Custom, CustomJvp, Named, Print, Scan, VmapMethod, While};
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Reduce, Transpose};
use pallas_ir::{At, DType, Diag, Literal, Loc, Operand, OperandId, OperandKind, ScalarOp, StructuralOp, Type};

/// The results of a call whose operands have the axis if `has` is true, and for each true if it has it. In a branch,
/// `taken` is true for the elements that take it.
pub(super) fn through(
    to: &mut Graph,
    call: &Call,
    args: &[Var],
    has: &[bool],
    axis: BatchAxis<'_>,
    taken: Option<Var>,
) -> Result<Vec<(Var, bool)>, Refused> {
    match call {
        Call::Scan(scan) => through_scan(to, scan, args, has, axis),
        Call::While(call) => {
            let carried = while_carried(call, has, axis);
            match varies(call, has, &carried, axis) {
                true => while_any(to, call, args, has, axis),
                false => while_all(to, call, args, has, &carried, axis),
            }
        }
        Call::Case(case) if has[0] => case_of_each(to, case, args, has, axis, taken),
        Call::Case(case) => {
            let flags = of_call(call, has, axis);
            let branch = |branch: &Graph| Ok(batched_at_least(branch, &has[1..], axis, &flags)?.0);
            let branches = case.branches.iter().map(branch).collect::<Result<_, Refused>>()?;
            let made = to.fitting_all(Call::Case(Case { branches }), args);
            Ok(made.into_iter().zip(flags).collect())
        }
        Call::Kernel(call) => {
            // What an output takes over has the axis, since the output has it.
            let mut wanted = has.to_vec();
            let operands = &call.kernel.operands;
            let read = |operand: &&Operand| matches!(operand.kind, OperandKind::Input | OperandKind::Prefetch);
            for alias in operands.iter().filter_map(alias_of) {
                let position = operands[..alias.index()].iter().filter(read).count();
                wanted[position] = true;
            }
            let args = widened(to, args, has, &wanted, axis.size);
            let made = to.fitting_all(Call::Kernel(kernel(call, &wanted, axis.size)), &args);
            Ok(made.into_iter().map(|v| (v, true)).collect())
        }
        Call::Custom(custom) => {
            let call = match batched_custom(custom, has, axis) {
                Ok(batched) => Call::Custom(batched),
                // Nobody may ask for its derivative.
                Err(_) if custom.known > 0 => {
                    let all = vec![true; custom.primal.results.len()];
                    Call::Closed(batched_at_least(&custom.primal, has, axis, &all)?.0)
                }
                Err(refused) => return Err(refused),
            };
            let made = to.fitting_all(call, args);
            Ok(made.into_iter().map(|v| (v, true)).collect())
        }
        Call::CustomJvp(custom) => {
            let (arguments, all) = (&custom.primal.params[custom.captured..], vec![true; custom.primal.results.len()]);
            let is_float = |v: &Var| custom.primal.ty(*v).dtype.is_float();
            let tangents =
                arguments.iter().zip(&has[custom.captured..]).filter(|(v, _)| is_float(v)).map(|(_, has)| *has);
            let takes: Vec<bool> = has.iter().copied().chain(tangents).collect();
            let (primal, _) = batched_at_least(&custom.primal, has, axis, &all)?;
            let (rule, _) = batched_at_least(&custom.rule, &takes, axis, &vec![true; custom.rule.results.len()])?;
            let made = to.fitting_all(Call::CustomJvp(CustomJvp { primal, rule, ..*custom }), args);
            Ok(made.into_iter().map(|v| (v, true)).collect())
        }
        Call::Closed(graph) => {
            let (graph, flags) = batched_at_least(graph, has, axis, &depends(graph, has, axis))?;
            let made = to.fitting_all(Call::Closed(graph), args);
            Ok(made.into_iter().zip(flags).collect())
        }
        Call::Checkpoint(Checkpoint { graph, policy }) => {
            let (graph, flags) = batched_at_least(graph, has, axis, &depends(graph, has, axis))?;
            let made = to.fitting_all(Call::Checkpoint(Checkpoint { graph, policy: policy.clone() }), args);
            Ok(made.into_iter().zip(flags).collect())
        }
        Call::ShardMap(map) => {
            let (map, flags) = manual::batched(map, has, axis)?;
            let made = to.fitting_all(Call::ShardMap(map), args);
            Ok(made.into_iter().zip(flags).collect())
        }
        Call::Callback(callback) => Ok(called_back(to, callback, args, has, axis)),
        Call::Print(print) => {
            let batches = [&[axis.size], &print.batches[..]].concat();
            let made = to.fitting_all(Call::Print(Print { batches, ..print.clone() }), args);
            Ok(vec![(made[0], false)])
        }
        Call::Named(named) => {
            let ty = to.ty(args[0]).clone();
            let made = to.fitting_all(Call::Named(Named::new(&*named.name, ty)), args);
            Ok(made.into_iter().zip(has.iter().copied()).collect())
        }
    }
}

/// A callback for a batch, by its method.
fn called_back(
    to: &mut Graph,
    callback: &Callback,
    args: &[Var],
    has: &[bool],
    axis: BatchAxis<'_>,
) -> Vec<(Var, bool)> {
    let made = match callback.method {
        VmapMethod::Sequential => one_by_one(to, callback, args, has, axis),
        method @ (VmapMethod::ExpandDims | VmapMethod::BroadcastAll) => {
            let shared = if method == VmapMethod::ExpandDims { 1 } else { axis.size };
            let args = widened(to, args, has, &vec![true; has.len()], shared);
            let takes = args.iter().map(|&v| to.ty(v).clone()).collect();
            let gives = callback.gives.iter().map(|ty| wider(ty, axis.size)).collect();
            to.fitting_all(Call::Callback(Callback { takes, gives, ..callback.clone() }), &args)
        }
    };
    made.into_iter().map(|v| (v, true)).collect()
}

/// A loop that calls a callback for one example after the other.
fn one_by_one(to: &mut Graph, callback: &Callback, args: &[Var], has: &[bool], axis: BatchAxis<'_>) -> Vec<Var> {
    let (mut body, mut own) = (Graph { at: to.at, ..Graph::default() }, vec![Var(0); args.len()]);
    // Those that are the same for all come first.
    let order: Vec<usize> = (0..args.len()).filter(|&i| !has[i]).chain((0..args.len()).filter(|&i| has[i])).collect();
    for &i in &order {
        own[i] = body.param(callback.takes[i].clone());
    }
    body.results = body.fitting_all(Call::Callback(callback.clone()), &own);
    let captured = has.iter().filter(|has| !**has).count();
    let scan = Scan { body, captured, carried: 0, length: axis.size, reverse: false };
    let operands: Vec<Var> = order.iter().map(|&i| args[i]).collect();
    to.fitting_all(Call::Scan(scan), &operands)
}

/// The input whose memory an operand takes over.
fn alias_of(operand: &Operand) -> Option<OperandId> {
    if let OperandKind::Output { alias, .. } = operand.kind { alias } else { None }
}

/// A function with a stated derivative, whose results all have the axis. The cotangent of an argument without the axis is
/// the sum over it.
fn batched_custom(custom: &Custom, has: &[bool], axis: BatchAxis<'_>) -> Result<Custom, Refused> {
    let results = custom.primal.results.len();
    let all = vec![true; results];
    let (primal, _) = batched_at_least(&custom.primal, has, axis, &all)?;
    let residuals = custom.forward.results.len() - results;
    let (forward, gives) = batched_at_least(&custom.forward, has, axis, &[&all[..], &vec![false; residuals]].concat())?;
    let takes = [&has[..custom.captured], &gives[results..], &all].concat();
    let arguments = &has[custom.captured..];
    let (mut backward, _) = batched_at_least(&custom.backward, &takes, axis, &vec![true; arguments.len()])?;
    for (i, _) in arguments.iter().enumerate().filter(|(_, has)| !**has) {
        let cotangent = backward.results[i];
        let ty = Type::new(backward.ty(cotangent).dtype, &backward.ty(cotangent).shape[1..]);
        backward.results[i] = if ty.dtype.is_float() {
            backward.fitting(StructuralOp::from(Reduce::dropping(ScalarOp::Add, vec![0])), &[cotangent])
        } else {
            backward.splat(Literal::new(ty.dtype, 0.0), &ty.shape)
        };
    }
    Ok(Custom { primal, forward, backward, ..custom.clone() })
}

/// The results of a graph that differ between elements if the parameters do for which `on` is true.
fn depends(graph: &Graph, on: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
    let mut depends = vec![false; graph.types.len()];
    graph.params.iter().zip(on).for_each(|(p, &on)| depends[p.index()] = on);
    for e in &graph.equations {
        let args: Vec<bool> = e.args.iter().map(|a| depends[a.index()]).collect();
        let found = match &e.op {
            Op::Call(call) if args.contains(&true) || axis.is_in(&e.op) => {
                let name = axis.named.map_or(0, |mesh| std::ptr::from_ref(mesh) as usize);
                flags(Question::Batched(name), call, &args, || of_call(call, &args, axis))
            }
            Op::Collective(op) if axis.is_of(op) => vec![collective::differs_along(op, args.contains(&true))],
            _ => {
                vec![args.contains(&true); e.results.len()]
            }
        };
        e.results.iter().zip(found).for_each(|(r, found)| depends[r.index()] = found);
    }
    graph.results.iter().map(|r| depends[r.index()]).collect()
}

/// The results of a call that have the axis if these operands have it.
fn of_call(call: &Call, has: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
    match call {
        Call::Scan(scan) => {
            let on = scan_flags(scan, has, axis);
            let mut found = depends(&scan.body, &on, axis);
            found[..scan.carried].copy_from_slice(&on[scan.captured..scan.captured + scan.carried]);
            found
        }
        Call::While(call) => {
            let carried = while_carried(call, has, axis);
            if varies(call, has, &carried, axis) { vec![true; carried.len()] } else { carried }
        }
        Call::Case(case) => {
            let each: Vec<Vec<bool>> = case.branches.iter().map(|branch| depends(branch, &has[1..], axis)).collect();
            (0..each[0].len()).map(|i| has[0] || each.iter().any(|flags| flags[i])).collect()
        }
        Call::Kernel(call) => vec![true; call.gives.len()],
        Call::Custom(custom) => vec![true; custom.primal.results.len()],
        Call::CustomJvp(custom) => vec![true; custom.primal.results.len()],
        Call::Closed(graph) => depends(graph, has, axis),
        Call::Checkpoint(checkpoint) => depends(&checkpoint.graph, has, axis),
        Call::Named(_) => has.to_vec(),
        Call::Print(_) => vec![false],
        Call::Callback(callback) => vec![has.contains(&true); callback.gives.len()],
        Call::ShardMap(map) => depends(&map.body, has, axis),
    }
}

/// The parameters of a scan's body that have the axis: a carried value has it in all steps if it has it in one.
fn scan_flags(scan: &Scan, has: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
    fixpoint(has, scan.captured, scan.carried, |on| depends(&scan.body, on, axis))
}

/// The carried values of a `while` that have the axis if its condition does not.
fn while_carried(call: &While, has: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
    let (first, n) = (call.body_captured, call.body.results.len());
    fixpoint(&has[call.condition_captured..], first, n, |on| depends(&call.body, on, axis))[first..].to_vec()
}

/// Returns true if the condition of a `while` differs between elements.
fn varies(call: &While, has: &[bool], carried: &[bool], axis: BatchAxis<'_>) -> bool {
    depends(&call.condition, &[&has[..call.condition_captured], carried].concat(), axis)[0]
}

/// Refuses a collective over the axis where a condition differs between the elements: not all of them take part in it.
fn agrees<'g>(
    what: &str,
    graphs: impl IntoIterator<Item = &'g Graph>,
    axis: BatchAxis<'_>,
    at: Loc,
) -> Result<(), Refused> {
    let Some(mesh) = axis.named.filter(|_| graphs.into_iter().any(|graph| communicates(graph, axis))) else {
        return Ok(());
    };
    let name = mesh.name(0);
    let message = format!("a collective over axis `{name}` in {what} whose condition differs along it");
    let help = format!("decide alike for all examples: reduce the condition over `{name}`, with `pmax` or `psum`");
    Err(Refused { at, diag: Diag::new("vmap", At::Op, message, help) })
}

/// Returns true if the elements of the axis exchange something in a graph.
fn communicates(graph: &Graph, axis: BatchAxis<'_>) -> bool {
    let of = |e: &Equation| match &e.op {
        Op::Collective(op) => axis.is_of(op) && op.communicates(),
        Op::Call(call) => call.graphs().into_iter().any(|graph| communicates(graph, axis)),
        _ => false,
    };
    graph.equations.iter().any(of)
}

/// The variables, repeated along the axis where `wanted` is true and `has` is not.
fn widened(to: &mut Graph, args: &[Var], has: &[bool], wanted: &[bool], size: usize) -> Vec<Var> {
    let all = args.iter().zip(has.iter().zip(wanted));
    all.map(|(&v, (&has, &wanted))| if wanted && !has { stretched(to, v, size) } else { v }).collect()
}

/// The first two axes exchanged.
fn swapped(to: &mut Graph, v: Var) -> Var {
    let axes = [1, 0].into_iter().chain(2..to.ty(v).shape.len()).collect();
    to.fitting(StructuralOp::from(Transpose { axes }), &[v])
}

/// The axis of steps is first in arrays and stacks, so there the axis of elements is the second one.
fn through_scan(
    to: &mut Graph,
    scan: &Scan,
    args: &[Var],
    has: &[bool],
    axis: BatchAxis<'_>,
) -> Result<Vec<(Var, bool)>, Refused> {
    let flags = scan_flags(scan, has, axis);
    let fixed = scan.captured + scan.carried;
    let mut all = vec![false; scan.body.results.len()];
    all[..scan.carried].copy_from_slice(&flags[scan.captured..fixed]);
    let (body, gives) = batched_at_least(&scan.body, &flags, axis, &all)?;
    let mut args = widened(to, args, has, &flags, axis.size);
    args.iter_mut().zip(has).skip(fixed).filter(|(_, has)| **has).for_each(|(v, _)| *v = swapped(to, *v));
    let made = to.fitting_all(Call::Scan(Scan { body, ..*scan }), &args);
    let is_stack = |i: usize| i >= scan.carried;
    let made = made.into_iter().zip(gives).enumerate();
    Ok(made.map(|(i, (v, has))| (if has && is_stack(i) { swapped(to, v) } else { v }, has)).collect())
}

/// A `while` whose condition is the same for all elements.
fn while_all(
    to: &mut Graph,
    call: &While,
    args: &[Var],
    has: &[bool],
    carried: &[bool],
    axis: BatchAxis<'_>,
) -> Result<Vec<(Var, bool)>, Refused> {
    let (before, fixed) = has.split_at(call.condition_captured);
    let fixed = &fixed[..call.body_captured];
    let (condition, _) = batched_at_least(&call.condition, &[before, carried].concat(), axis, &[false])?;
    let (body, _) = batched_at_least(&call.body, &[fixed, carried].concat(), axis, carried)?;
    let args = widened(to, args, has, &[before, fixed, carried].concat(), axis.size);
    let made = to.fitting_all(Call::While(While { condition, body, ..*call }), &args);
    Ok(made.into_iter().zip(carried.iter().copied()).collect())
}

/// Appends the equations of a graph; as a call if it has sharding groups, since equations that follow may have the numbers
/// that are free now.
fn called(to: &mut Graph, graph: &Graph, args: &[Var]) -> Vec<Var> {
    match graph.groups() {
        0 => to.inline(graph, args),
        _ => to.fitting_all(Call::Closed(graph.clone()), args),
    }
}

/// A `while` whose condition differs between elements. It carries the condition of each one as well.
///
/// ```text
/// condition    (values.., goes on) -> any(goes on)
/// body         (captured.., values.., goes on) -> (select(goes on, body(values), values).., condition(them))
/// ```
fn while_any(
    to: &mut Graph,
    call: &While,
    args: &[Var],
    has: &[bool],
    axis: BatchAxis<'_>,
) -> Result<Vec<(Var, bool)>, Refused> {
    agrees("a loop", [&call.condition, &call.body], axis, to.at)?;
    let (c, fixed) = (call.condition_captured, call.condition_captured + call.body_captured);
    let all = vec![true; call.body.results.len()];
    let (test, _) = batched_at_least(&call.condition, &[&has[..c], &all].concat(), axis, &[true])?;
    let (step, _) = batched_at_least(&call.body, &[&has[c..fixed], &all].concat(), axis, &all)?;

    let mut args = widened(to, args, has, &[&has[..fixed], &all].concat(), axis.size);
    let goes_on = called(to, &test, &[&args[..c], &args[fixed..]].concat())[0];
    args.push(goes_on);
    let types: Vec<Type> = args.iter().map(|&v| to.ty(v).clone()).collect();

    let mut condition = Graph { at: to.at, ..Graph::default() };
    let params: Vec<Var> = types[fixed..].iter().map(|ty| condition.param(ty.clone())).collect();
    let last = params[all.len()];
    let any = Reduce::dropping(ScalarOp::BitOr, vec![0]);
    condition.results = vec![condition.fitting(StructuralOp::from(any), &[last])];

    let mut body = Graph { at: to.at, ..Graph::default() };
    let params: Vec<Var> = types.iter().map(|ty| body.param(ty.clone())).collect();
    let (values, goes_on) = (&params[fixed..fixed + all.len()], params[fixed + all.len()]);
    let made = body.inline(&step, &[&params[c..fixed], values].concat());
    let made: Vec<Var> = made.into_iter().zip(values).map(|(new, &old)| choose(&mut body, goes_on, new, old)).collect();
    let goes_on = body.inline(&test, &[&params[..c], &made[..]].concat());
    body.results = [made, goes_on].concat();

    let call = While { condition, body, condition_captured: 0, body_captured: fixed };
    let mut made = to.fitting_all(Call::While(call), &args);
    made.truncate(all.len());
    Ok(made.into_iter().map(|v| (v, true)).collect())
}

/// All branches run, and each element takes the results of its own.
fn case_of_each(
    to: &mut Graph,
    case: &Case,
    args: &[Var],
    has: &[bool],
    axis: BatchAxis<'_>,
    outer: Option<Var>,
) -> Result<Vec<(Var, bool)>, Refused> {
    agrees("branches", &case.branches, axis, to.at)?;
    let last = case.branches.len() - 1;
    let compare = |to: &mut Graph, op: ScalarOp, i: usize| {
        let number = to.splat(Literal::int(DType::I32, i as i64), &[axis.size]);
        to.fitting(op, &[args[0], number])
    };
    let mut found: Option<Vec<Var>> = None;
    for (i, branch) in case.branches.iter().enumerate().rev() {
        // Lower numbers take the first branch, higher ones the last.
        let mut taken = match i {
            _ if i == last && i == 0 => to.splat(Literal::int(DType::Bool, 1), &[axis.size]),
            0 => compare(to, ScalarOp::Le, 0),
            _ if i == last => compare(to, ScalarOp::Ge, i),
            _ => compare(to, ScalarOp::Eq, i),
        };
        let branch = batched_branch(branch, &has[1..], axis)?;
        let is_own = taken;
        if let Some(outer) = outer {
            taken = to.fitting(ScalarOp::BitAnd, &[taken, outer]);
        }
        let made = called(to, &branch, &[&args[1..], &[taken]].concat());
        found = Some(match found {
            None => made,
            Some(others) => made.into_iter().zip(others).map(|(own, other)| choose(to, is_own, own, other)).collect(),
        });
    }
    Ok(found.into_iter().flatten().map(|v| (v, true)).collect())
}

/// For each element `yes` or `no`.
pub(super) fn choose(to: &mut Graph, which: Var, yes: Var, no: Var) -> Var {
    let shape = to.ty(yes).shape.clone();
    let which = match (shape.len(), to.ty(which).is_scalar()) {
        (0, true) | (1, false) => which,
        (_, true) => to.fitting(StructuralOp::from(Broadcast::to(dims(&shape))), &[which]),
        (_, false) => to.fitting(StructuralOp::from(Broadcast { to: dims(&shape), dims: vec![0] }), &[which]),
    };
    to.fitting(ScalarOp::Select, &[which, yes, no])
}

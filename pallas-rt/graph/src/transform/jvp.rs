//! Forward mode.
use super::active::carried;
use super::jvp_kernel::{self, Tangents};
use super::rule::{made, structural, value};
use super::split::split;
use super::{Refused, collective, manual, memo, within_limits};
use crate::call::{Call, Case, Scan, While};
use crate::graph::{Equation, Graph, Op, Var};
use crate::inline::expanded;
use pallas_ir::{At, Diag, E, Literal, Loc};
use std::cell::RefCell;

/// The Jacobian-vector product: a graph that computes a graph's results, and from tangents of the parameters for which
/// `on` is true the tangents of its results.
///
/// Its parameters are those of the graph, then a tangent for each parameter that is `on`; its results are those of the
/// graph, then a tangent for each result of a floating-point type, zeros for one that depends on no tangent. Each
/// equation of the graph is computed once.
///
/// # Errors
/// A derivative with more axes or elements than an array can have.
///
/// # Panics
/// If `on` has not one entry for each parameter, or is true for one that has no floating-point type.
pub fn jvp(graph: &Graph, on: &[bool]) -> Result<Graph, Refused> {
    with_results(tangents(graph, on, false)?)
}

/// As [`jvp`], divided: a graph that computes the results, and one that computes the tangents of results from tangents
/// of parameters.
///
/// The first graph takes the parameters, and gives the results and values that the second one needs; that one takes
/// these values and the tangents. Loops and branches are computed again in the second one.
///
/// # Errors
/// As [`jvp`].
///
/// # Panics
/// As [`jvp`].
pub fn linearize(graph: &Graph, on: &[bool]) -> Result<(Graph, Graph), Refused> {
    let both = with_results(tangents(graph, on, true)?)?;
    Ok(split(&both, graph.params.len(), graph.results.len()))
}

/// The graph with tangents of those results that have floating-point types.
fn with_results(tangents: WithTangents) -> Result<Graph, Refused> {
    let WithTangents { graph: mut to, of_results, .. } = tangents;
    for (r, tangent) in to.results.clone().into_iter().zip(of_results) {
        if to.ty(r).dtype.is_float() {
            let tangent = or_zeros(&mut to, tangent, r);
            to.results.push(tangent);
        }
    }
    within_limits(&to)?;
    Ok(to)
}

/// A graph that computes tangents besides its own values. Tangents are further parameters; results are its own alone.
struct WithTangents {
    graph: Graph,
    of_params: Vec<Option<Var>>,
    /// `None` for zero.
    of_results: Vec<Option<Var>>,
}

/// If `apart` is true, no value of the graph depends on a tangent: calls with tangents are not those without.
fn tangents(graph: &Graph, on: &[bool], apart: bool) -> Result<WithTangents, Refused> {
    assert_eq!(on.len(), graph.params.len(), "one entry for each parameter");
    let _memo = memo::scope();
    let graph = &expanded(graph, &|call| match call {
        Call::Closed(graph) => Some(graph),
        Call::Checkpoint(checkpoint) => Some(&checkpoint.graph),
        _ => None,
    });
    let mut to = Graph {
        types: graph.types.clone(),
        params: graph.params.clone(),
        equations: vec![],
        results: graph.results.clone(),
        at: graph.at,
    };
    let mut found: Vec<Option<Var>> = vec![None; graph.types.len()];
    let param = |(&p, &on): (&Var, &bool)| {
        assert!(!on || graph.ty(p).dtype.is_float(), "{p} of {} has no tangent", graph.ty(p));
        found[p.index()] = on.then(|| to.param(graph.ty(p).clone()));
        found[p.index()]
    };
    let of_params = graph.params.iter().zip(on).map(param).collect();
    let mut to = RefCell::new(to);
    // Those of tangents follow those of values.
    let groups = graph.groups();
    for e in &graph.equations {
        let given: Vec<Option<Var>> = e.args.iter().map(|a| found[a.index()]).collect();
        to.get_mut().at = e.loc;
        let is_known = given.iter().all(Option::is_none);
        if let (Op::Call(call), false) = (&e.op, is_known) {
            let made = through_call(to.get_mut(), e, call, &given, apart, 2 * groups)?;
            e.results.iter().zip(made).for_each(|(r, tangent)| found[r.index()] = tangent);
            continue;
        }
        if let (Op::Collective(op), false) = (&e.op, is_known) {
            collective::linear(op, e.loc)?;
        }
        to.get_mut().equations.push(e.clone());
        if !is_known && graph.ty(e.result()).dtype.is_float() {
            found[e.result().index()] = through(&mut to, e, &given, groups);
        }
    }
    let of_results = graph.results.iter().map(|r| found[r.index()]).collect();
    Ok(WithTangents { graph: to.into_inner(), of_params, of_results })
}

/// The tangent of an equation's result, from those of its operands; `None` for zero. Sharding groups of tangents have
/// numbers from `groups` on.
fn through(to: &mut RefCell<Graph>, e: &Equation, given: &[Option<Var>], groups: u32) -> Option<Var> {
    match &e.op {
        Op::Literal(_) | Op::StopGradient => None,
        Op::Barrier => given[0].map(|tangent| to.get_mut().fitting(Op::Barrier, &[tangent])),
        Op::Scalar(op) => {
            let to = &*to;
            let args: Vec<E<'_>> = e.args.iter().map(|&v| value(to, v)).collect();
            let given: Vec<Option<E<'_>>> = given.iter().map(|t| t.map(|v| value(to, v))).collect();
            op.jvp(&args, value(to, e.result()), &given).map(made)
        }
        Op::Structural(op) => {
            let to = &*to;
            let types: Vec<_> = e.args.iter().map(|&v| to.borrow().ty(v).clone()).collect();
            let given: Vec<Option<E<'_>>> = given.iter().map(|t| t.map(|v| value(to, v))).collect();
            structural(to, &e.args, &types, |args| op.jvp(args, value(to, e.result()), &given)).map(made)
        }
        Op::Dynamic(op) => {
            let (to, arrays) = (to.get_mut(), op.arrays());
            let mut args: Vec<Var> = (0..arrays).map(|i| or_zeros(to, given[i], e.args[i])).collect();
            args.extend(&e.args[arrays..]);
            // Both the window and the update are linear in the arrays.
            Some(to.fitting(op.clone(), &args))
        }
        Op::Annotation(_) => given[0].map(|tangent| to.get_mut().fitting(e.op.in_groups_from(groups), &[tangent])),
        Op::Collective(_) => given[0].map(|tangent| to.get_mut().fitting(e.op.clone(), &[tangent])),
        Op::Call(_) => unreachable!("calls have a rule of their own"),
    }
}

/// The tangent of a value, zeros if there is none.
fn or_zeros(to: &mut Graph, tangent: Option<Var>, of: Var) -> Var {
    let ty = to.ty(of).clone();
    tangent.unwrap_or_else(|| to.splat(Literal::new(ty.dtype, 0.0), &ty.shape))
}

/// The values of groups that end at these positions, each group followed by its tangents.
fn grouped(values: &[Var], tangents: &[Option<Var>], ends: &[usize]) -> Vec<Var> {
    let mut all = vec![];
    let mut start = 0;
    for &end in ends {
        all.extend(&values[start..end]);
        all.extend(tangents[start..end].iter().flatten());
        start = end;
    }
    all
}

/// Appends a call that computes tangents as well, in place of the call or behind it if `apart` is true; returns the
/// tangents of its results. What it inlines has sharding groups from number `groups` on.
fn through_call(
    to: &mut Graph,
    e: &Equation,
    call: &Call,
    given: &[Option<Var>],
    apart: bool,
    groups: u32,
) -> Result<Vec<Option<Var>>, Refused> {
    let on: Vec<bool> = given.iter().map(Option::is_some).collect();
    let more = |flags: &[bool]| flags.iter().filter(|on| **on).count();
    // For each operand that is `on` a tangent, for each result with a tangent a variable.
    let operands = |to: &mut Graph, on: &[bool]| -> Vec<Option<Var>> {
        (0..on.len()).map(|i| on[i].then(|| or_zeros(to, given[i], e.args[i]))).collect()
    };
    let outputs = |to: &mut Graph, of: &[Option<Var>]| -> Vec<Option<Var>> {
        e.results.iter().zip(of).map(|(&r, tangent)| tangent.map(|_| to.var(to.ty(r).clone()))).collect()
    };
    let (call, args, ends, found) = match call {
        Call::Scan(scan) => {
            let on = carried(&scan.body, &on, scan.captured, scan.carried);
            let fixed = scan.captured + scan.carried;
            let (takes, gives) = ([scan.captured, fixed, on.len()], [scan.carried, e.results.len()]);
            let body = loop_body(&scan.body, &on, scan.captured, &takes, &gives)?;
            let args = grouped(&e.args, &operands(to, &on), &takes);
            let call = Scan {
                body: body.graph,
                captured: scan.captured + more(&on[..scan.captured]),
                carried: scan.carried + more(&on[scan.captured..fixed]),
                ..*scan
            };
            (Call::Scan(call), args, gives.to_vec(), outputs(to, &body.of_results))
        }
        Call::While(call) => {
            let (first, fixed) = (call.condition_captured, call.body_captured);
            let n = e.results.len();
            let on = carried(&call.body, &on[first..], fixed, n);
            let body = loop_body(&call.body, &on, fixed, &[fixed, fixed + n], &[n])?;
            let mut condition = call.condition.clone();
            for &p in call.condition.params[first..].iter().zip(&on[fixed..]).filter(|(_, on)| **on).map(|(p, _)| p) {
                condition.param(call.condition.ty(p).clone());
            }
            // The condition's captured values have no tangents.
            let all = [vec![false; first], on.clone()].concat();
            let args = grouped(&e.args, &operands(to, &all), &[first + fixed, first + fixed + n]);
            let call = While {
                condition,
                body: body.graph,
                condition_captured: first,
                body_captured: fixed + more(&on[..fixed]),
            };
            (Call::While(call), args, vec![n], outputs(to, &body.of_results))
        }
        Call::Case(case) => {
            let mut branches =
                case.branches.iter().map(|branch| tangents(branch, &on[1..], false)).collect::<Result<Vec<_>, _>>()?;
            let n = e.results.len();
            let has: Vec<bool> = (0..n).map(|i| branches.iter().any(|branch| branch.of_results[i].is_some())).collect();
            for WithTangents { graph, of_results, .. } in &mut branches {
                let own = graph.results.clone();
                for ((tangent, &r), _) in of_results.iter_mut().zip(&own).zip(&has).filter(|(_, has)| **has) {
                    *tangent = Some(or_zeros(graph, *tangent, r));
                }
                graph.results = grouped(&own, of_results, &[n]);
            }
            let args = grouped(&e.args, given, &[e.args.len()]);
            let found = outputs(to, &branches[0].of_results);
            let branches = branches.into_iter().map(|branch| branch.graph).collect();
            (Call::Case(Case { branches }), args, vec![n], found)
        }
        Call::Kernel(call) => {
            let found = jvp_kernel::kernel(call, &on).map_err(|diag| Refused { at: e.loc, diag })?;
            let Some(Tangents { call, takes, gives }) = found else {
                to.equations.push(e.clone());
                return Ok(vec![None; e.results.len()]);
            };
            let args = grouped(&e.args, &operands(to, &takes), &[takes.len()]);
            let found = e.results.iter().zip(&gives).map(|(&r, has)| has.then(|| to.var(to.ty(r).clone()))).collect();
            (Call::Kernel(call), args, vec![gives.len()], found)
        }
        Call::Custom(custom) if custom.has_tangents => {
            let WithTangents { mut graph, of_results, .. } = tangents(&custom.primal, &on, false)?;
            graph.results = grouped(&graph.results, &of_results, &[e.results.len()]);
            let found = outputs(to, &of_results);
            (Call::Closed(graph), grouped(&e.args, given, &[e.args.len()]), vec![e.results.len()], found)
        }
        Call::Custom(_) => {
            let message = "forward mode of a function that states its reverse-mode gradient".to_string();
            let help = "use reverse mode: `grad`, `vjp`, `jacrev`";
            return Err(Refused { at: e.loc, diag: Diag::new("custom-tangent", At::Op, message, help) });
        }
        Call::ShardMap(map) => {
            let WithTangents { mut graph, of_results, .. } = tangents(&map.body, &on, false)?;
            graph.results = grouped(&graph.results, &of_results, &[e.results.len()]);
            let found = outputs(to, &of_results);
            let some = |of: &[Option<Var>]| of.iter().map(Option::is_some).collect::<Vec<_>>();
            let call = manual::with_tangents(map, graph, &on, &some(&of_results))?;
            (Call::ShardMap(call), grouped(&e.args, given, &[e.args.len()]), vec![e.results.len()], found)
        }
        Call::Named(_) => {
            to.equations.push(e.clone());
            return Ok(given.to_vec());
        }
        Call::Callback(callback) => {
            if callback.gives.iter().any(|ty| ty.dtype.is_float()) {
                return Err(no_derivative(e.loc));
            }
            to.equations.push(e.clone());
            return Ok(vec![None; e.results.len()]);
        }
        Call::Print(_) => {
            to.equations.push(e.clone());
            return Ok(vec![None]);
        }
        Call::CustomJvp(custom) => {
            no_tangents(&on[..custom.captured], e)?;
            let is_float = |v: Var, to: &Graph| to.ty(v).dtype.is_float();
            let mut args = e.args.clone();
            for (&arg, tangent) in e.args.iter().zip(given).skip(custom.captured) {
                if is_float(arg, to) {
                    args.push(or_zeros(to, *tangent, arg));
                }
            }
            to.equations.push(e.clone());
            // The rule computes the results too; `common` lets both share them.
            let mut tangents = to.inline_apart(&custom.rule, &args, groups).split_off(e.results.len()).into_iter();
            let found = e.results.iter().map(|&r| if is_float(r, to) { tangents.next() } else { None });
            return Ok(found.collect());
        }
        Call::Closed(_) | Call::Checkpoint(_) => unreachable!("they are expanded before"),
    };
    let own = match apart {
        true => {
            to.equations.push(e.clone());
            e.results.iter().map(|&r| to.var(to.ty(r).clone())).collect()
        }
        false => e.results.clone(),
    };
    let results = grouped(&own, &found, &ends);
    to.equations.push(Equation { op: call.into(), args, results, loc: e.loc });
    Ok(found)
}

/// Refuses tangents of arrays that a function with stated tangents captures.
pub(super) fn no_tangents(captured: &[bool], e: &Equation) -> Result<(), Refused> {
    if !captured.contains(&true) {
        return Ok(());
    }
    let message = "a function with a stated derivative captures an array that the derivative is asked for".to_string();
    let help = "pass the array as an argument, or capture its `stop_gradient`";
    Err(Refused { at: e.loc, diag: Diag::new("custom-captured", At::Op, message, help) })
}

/// Refuses the derivative of a function of the host.
pub(super) fn no_derivative(at: Loc) -> Refused {
    let help =
        "state it by `custom_jvp` around the callback, or give the callback the `stop_gradient` of its arguments";
    Refused { at, diag: Diag::new("callback", At::Op, "a derivative of a `pure_callback`".into(), help) }
}

/// The body of a loop with tangents of the parameters that are `on`. Groups of parameters and of results end at `takes`
/// and `gives`; the carried values are parameters from position `first`, and the first group of results.
fn loop_body(
    body: &Graph,
    on: &[bool],
    first: usize,
    takes: &[usize],
    gives: &[usize],
) -> Result<WithTangents, Refused> {
    let mut made = tangents(body, on, false)?;
    let own = made.graph.results.clone();
    for i in (0..gives[0]).filter(|&i| on[first + i]) {
        let tangent = or_zeros(&mut made.graph, made.of_results[i], own[i]);
        made.of_results[i] = Some(tangent);
    }
    made.graph.params = grouped(&body.params, &made.of_params, takes);
    made.graph.results = grouped(&own, &made.of_results, gives);
    Ok(made)
}

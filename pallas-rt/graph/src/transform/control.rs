//! Reverse mode of loops and branches.
use super::Refused;
use super::active::carried;
use super::checkpoint;
use super::jvp::{no_derivative, no_tangents};
use super::manual;
use super::second;
use super::split::{is_remade, sources};
use super::vjp::{vjp, vjp_of};
use crate::call::{Call, Case, Custom, CustomJvp, Scan};
use crate::dead::without_dead;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::{At, Diag, Literal, ScalarOp, Type};

/// The cotangents of the operands of a call, from those of its results; `None` for zero. `at` is the number of its equation
/// in `to`, which is changed where it has to store more.
pub(super) fn through(
    to: &mut Graph,
    at: usize,
    e: &Equation,
    call: &Call,
    on: &[bool],
    cotangents: &[Option<Var>],
) -> Result<Vec<Option<Var>>, Refused> {
    match call {
        Call::Scan(scan) => through_scan(to, at, e, scan, on, cotangents),
        Call::Case(case) => through_case(to, e, case, on, cotangents),
        Call::While(_) => {
            let message = "reverse mode through a `while_loop`, whose number of steps is not known".to_string();
            let help = "use `scan` or `fori_loop` with a fixed number of steps, and keep the old value by `select` in \
                        steps that come after the end";
            Err(Refused { at: e.loc, diag: Diag::new("while", At::Op, message, help) })
        }
        Call::Kernel(call) => {
            let message = format!("the gradient of kernel `{}`, which states none", call.kernel.name);
            let help = "state it by `custom_vjp`, with a kernel for the way back, or pass the kernel a `stop_gradient` of \
                        its arguments";
            Err(Refused { at: e.loc, diag: Diag::new("kernel-gradient", At::Op, message, help) })
        }
        Call::Custom(custom) => through_custom(to, at, e, custom, on, cotangents),
        Call::Checkpoint(checkpoint) => checkpoint::through(to, at, e, checkpoint, on, cotangents),
        Call::CustomJvp(custom) => through_custom_jvp(to, e, custom, on, cotangents),
        Call::Named(_) => Ok(cotangents.to_vec()),
        Call::Print(_) => Ok(vec![None]),
        Call::Callback(_) => Err(no_derivative(e.loc)),
        Call::ShardMap(map) => manual::through(to, at, e, map, on, cotangents),
        Call::Closed(_) => unreachable!("closed calls are expanded before"),
    }
}

/// The stated derivative. What it needs of the values before is computed in place of the call.
///
/// Where the function has tangents, both are functions with gradients again, so that reverse mode of reverse mode passes.
fn through_custom(
    to: &mut Graph,
    at: usize,
    e: &Equation,
    custom: &Custom,
    on: &[bool],
    cotangents: &[Option<Var>],
) -> Result<Vec<Option<Var>>, Refused> {
    if on[..custom.captured - custom.known].contains(&true) {
        let message = "a function with a stated gradient captures an array that the gradient is asked for".to_string();
        let help = "pass the array as an argument, or capture its `stop_gradient`";
        return Err(Refused { at: e.loc, diag: Diag::new("custom-captured", At::Op, message, help) });
    }
    let gives = custom.forward.gives();
    let residuals: Vec<Var> = gives[e.results.len()..].iter().map(|ty| to.var(ty.clone())).collect();
    // Kernels have tangents of any order; a gradient of a gradient of a gradient is not theirs.
    let gradient = (custom.has_tangents && custom.known == 0).then(|| second::gradient(custom).ok()).flatten();
    let changed = &mut to.equations[at];
    changed.op = match gradient {
        Some(_) => Call::Custom(second::with_residuals(custom)).into(),
        None => Call::Closed(custom.forward.clone()).into(),
    };
    changed.results.extend(&residuals);
    let mut args = [&e.args[..custom.captured], &residuals].concat();
    if gradient.is_some() {
        args.extend(&e.args[custom.captured..]);
    }
    for (&r, &cotangent) in e.results.iter().zip(cotangents) {
        let ty = to.ty(r).clone();
        args.push(or_zeros(to, cotangent, &ty));
    }
    let call = gradient.map_or_else(|| Call::Closed(custom.backward.clone()), Call::Custom);
    let made = to.fitting_all(call, &args);
    let found = on.iter().enumerate().map(|(i, &on)| Some(made[i.checked_sub(custom.captured)?]).filter(|_| on));
    Ok(found.collect())
}

/// The stated tangents, which are linear in those of the arguments: their derivative by these is their transpose.
fn through_custom_jvp(
    to: &mut Graph,
    e: &Equation,
    custom: &CustomJvp,
    on: &[bool],
    cotangents: &[Option<Var>],
) -> Result<Vec<Option<Var>>, Refused> {
    no_tangents(&on[..custom.captured], e)?;
    let n = e.results.len();
    let wrt: Vec<bool> = (0..custom.rule.params.len()).map(|i| i >= e.args.len()).collect();
    let of: Vec<bool> = (0..custom.rule.results.len()).map(|i| i >= n).collect();
    let mut backward = vjp_of(&custom.rule, &wrt, &of)?;
    backward.results.drain(..custom.rule.results.len());
    let backward = without_dead(backward);
    let mut args = e.args.clone();
    let mut floats = vec![];
    for (i, &arg) in e.args.iter().enumerate().skip(custom.captured) {
        let ty = to.ty(arg).clone();
        if is_float(&ty) {
            floats.push(i);
            args.push(or_zeros(to, None, &ty));
        }
    }
    for (&r, &cotangent) in e.results.iter().zip(cotangents) {
        let ty = to.ty(r).clone();
        if is_float(&ty) {
            args.push(or_zeros(to, cotangent, &ty));
        }
    }
    let made = to.fitting_all(Call::Closed(backward), &args);
    let mut found = vec![None; on.len()];
    floats.into_iter().zip(made).filter(|(i, _)| on[*i]).for_each(|(i, v)| found[i] = Some(v));
    Ok(found)
}

pub(super) fn is_float(ty: &Type) -> bool {
    ty.dtype.is_float()
}

/// The cotangent of a value, zeros if there is none.
pub(super) fn or_zeros(to: &mut Graph, cotangent: Option<Var>, ty: &Type) -> Var {
    cotangent.unwrap_or_else(|| to.splat(Literal::new(ty.dtype, 0.0), &ty.shape))
}

/// Each branch computes its own results again: what it needs of them is not stored.
fn through_case(
    to: &mut Graph,
    e: &Equation,
    case: &Case,
    on: &[bool],
    cotangents: &[Option<Var>],
) -> Result<Vec<Option<Var>>, Refused> {
    let backward = |branch: &Graph| {
        let mut both = vjp(branch, &on[1..])?;
        // What it shows is shown by the branch itself.
        both.equations.retain(|e| !matches!(&e.op, Op::Call(call) if matches!(**call, Call::Print(_))));
        let results = both.results[branch.results.len()..].to_vec();
        Ok(Graph { results, ..both })
    };
    let branches = case.branches.iter().map(backward).collect::<Result<Vec<_>, Refused>>()?;
    let mut args = e.args.clone();
    for (&r, &cotangent) in e.results.iter().zip(cotangents) {
        let ty = to.ty(r).clone();
        if is_float(&ty) {
            args.push(or_zeros(to, cotangent, &ty));
        }
    }
    let mut found = to.fitting_all(Call::Case(Case { branches }), &args).into_iter();
    // `vjp` gives zeros for integers that are asked for; none is.
    Ok(on.iter().enumerate().map(|(i, &on)| if on && i > 0 { found.next() } else { None }).collect())
}

/// A scan forwards that stores what its steps need on the way back, and a scan in the other direction. That one carries
/// the cotangents of the carried values, and the sums of those of the captured ones.
fn through_scan(
    to: &mut Graph,
    at: usize,
    e: &Equation,
    scan: &Scan,
    on: &[bool],
    cotangents: &[Option<Var>],
) -> Result<Vec<Option<Var>>, Refused> {
    let flags = carried(&scan.body, on, scan.captured, scan.carried);
    let both = vjp(&scan.body, &flags)?;
    let mut split = Split::new(&both, scan);

    // Forwards: the same scan with more stacks.
    let stored: Vec<Var> = split.stored.iter().map(|&v| to.var(stacked(both.ty(v), scan.length))).collect();
    let results = [&both.results[..scan.body.results.len()], &split.stored[..]].concat();
    let forward = Graph {
        equations: std::mem::take(&mut split.forward),
        results,
        params: scan.body.params.clone(),
        ..both.clone()
    };
    let changed = &mut to.equations[at];
    changed.op = Call::Scan(Scan { body: forward, ..scan.clone() }).into();
    changed.results.extend(&stored);

    // Backwards.
    let types = |range: std::ops::Range<usize>| -> Vec<(usize, Type)> {
        let all = range.filter(|&i| flags[i]).map(|i| (i, both.ty(both.params[i]).clone()));
        all.filter(|(_, ty)| is_float(ty)).collect()
    };
    let fixed = scan.captured + scan.carried;
    let (sums, states) = (types(0..scan.captured), types(scan.captured..fixed));
    let mut args: Vec<Var> = split.captured.iter().map(|&i| e.args[i]).collect();
    for (i, ty) in &states {
        args.push(or_zeros(to, cotangents[i - scan.captured], ty));
    }
    for (_, ty) in &sums {
        args.push(or_zeros(to, None, ty));
    }
    for (&r, &cotangent) in e.results.iter().zip(cotangents).skip(scan.carried) {
        let ty = to.ty(r).clone();
        if is_float(&ty) {
            args.push(or_zeros(to, cotangent, &ty));
        }
    }
    args.extend(&stored);
    args.extend(split.arrays.iter().map(|&i| e.args[i]));
    let body = split.backward(&both, scan, &flags, &states, &sums);
    let back = Scan {
        body,
        captured: split.captured.len(),
        carried: states.len() + sums.len(),
        length: scan.length,
        reverse: !scan.reverse,
    };
    let made = to.fitting_all(Call::Scan(back), &args);
    let mut found = vec![None; on.len()];
    let arrays = types(fixed..on.len());
    for ((i, _), &v) in states.iter().chain(&sums).chain(&arrays).zip(&made) {
        found[*i] = on[*i].then_some(v);
    }
    Ok(found)
}

/// The type of a stack of values.
fn stacked(ty: &Type, length: usize) -> Type {
    Type::new(ty.dtype, [&[length], &ty.shape[..]].concat())
}

/// The derivative of a scan's body, divided into what does not depend on cotangents and what does.
struct Split {
    forward: Vec<Equation>,
    backward: Vec<Equation>,
    /// Equations that the second part has as well: see [`is_remade`].
    remade: Vec<Equation>,
    /// Values of the first part that the second one uses: numbers of captured parameters and of arrays, and variables that
    /// are stored for it.
    captured: Vec<usize>,
    arrays: Vec<usize>,
    stored: Vec<Var>,
}

impl Split {
    fn new(both: &Graph, scan: &Scan) -> Split {
        let known = scan.body.params.len();
        let mut is_back = vec![false; both.types.len()];
        both.params[known..].iter().for_each(|p| is_back[p.index()] = true);
        // What is computed again belongs to the way back, unless a result needs it.
        let mut is_needed = vec![false; both.types.len()];
        both.results[..scan.body.results.len()].iter().for_each(|r| is_needed[r.index()] = true);
        for e in both.equations.iter().rev() {
            if e.results.iter().any(|r| is_needed[r.index()]) {
                e.args.iter().for_each(|a| is_needed[a.index()] = true);
            }
        }
        let (mut forward, mut backward) = (vec![], vec![]);
        for e in &both.equations {
            let is_again = e.op == Op::Barrier && !is_needed[e.result().index()];
            if is_again || e.args.iter().any(|a| is_back[a.index()]) {
                e.results.iter().for_each(|r| is_back[r.index()] = true);
                backward.push(e.clone());
            } else {
                forward.push(e.clone());
            }
        }
        let definitions = both.definitions();
        let mut split =
            Split { forward, remade: vec![], captured: vec![], arrays: vec![], stored: vec![], backward: vec![] };
        let mut seen = vec![false; both.types.len()];
        let cotangents = &both.results[scan.body.results.len()..];
        let used = backward.iter().flat_map(|e| &e.args).chain(cotangents);
        let definition = |v: Var| definitions[v.index()].map(|i| &both.equations[i]);
        let all = used.filter(|v| !is_back[v.index()]).flat_map(|&v| sources(v, definition));
        for v in all {
            if std::mem::replace(&mut seen[v.index()], true) {
                continue;
            }
            let parameter = both.params[..known].iter().position(|&p| p == v);
            match (parameter, definition(v)) {
                (Some(i), _) if i < scan.captured => split.captured.push(i),
                (Some(i), _) if i >= scan.captured + scan.carried => split.arrays.push(i),
                (None, Some(e)) if is_remade(&e.op) => split.remade.push(e.clone()),
                _ => split.stored.push(v),
            }
        }
        split.backward = backward;
        split
    }

    /// The body of the scan backwards.
    fn backward(
        &self,
        both: &Graph,
        scan: &Scan,
        flags: &[bool],
        states: &[(usize, Type)],
        sums: &[(usize, Type)],
    ) -> Graph {
        let n = scan.body.results.len();
        let mut graph = Graph { types: both.types.clone(), ..Graph::default() };
        graph.params.extend(self.captured.iter().map(|&i| both.params[i]));
        // The cotangents of the results, in the order of the parameters of `both`.
        let mut cotangents = both.params[scan.body.params.len()..].iter();
        let of_results: Vec<Option<Var>> = scan.body.results[..n]
            .iter()
            .map(|&r| is_float(both.ty(r)).then(|| *cotangents.next().expect("one for each result of floats")))
            .collect();
        graph.params.extend(states.iter().map(|(i, _)| of_results[i - scan.captured].expect("it is of floats")));
        let so_far: Vec<Var> = sums.iter().map(|(_, ty)| graph.param(ty.clone())).collect();
        graph.params.extend(of_results[scan.carried..].iter().flatten());
        graph.params.extend(&self.stored);
        graph.params.extend(self.arrays.iter().map(|&i| both.params[i]));
        graph.equations.extend(self.remade.iter().cloned());
        // A carried value of floats that is not active has no cotangent.
        for (i, cotangent) in of_results[..scan.carried].iter().enumerate() {
            if let (Some(v), false) = (cotangent, flags[scan.captured + i]) {
                let ty = both.ty(*v);
                let zeros = graph.splat(Literal::new(ty.dtype, 0.0), &ty.shape);
                rename(&mut graph, zeros, *v);
            }
        }
        graph.equations.extend(self.backward.iter().cloned());
        // One for each parameter that is active, in order.
        let mut made = both.results[n..].iter();
        let mut of_params = |range: std::ops::Range<usize>| -> Vec<Var> {
            let active = range.filter(|&i| flags[i] && is_float(both.ty(both.params[i])));
            active.map(|_| *made.next().expect("one for each active parameter")).collect()
        };
        let fixed = scan.captured + scan.carried;
        let (captured, carried, arrays) =
            (of_params(0..scan.captured), of_params(scan.captured..fixed), of_params(fixed..flags.len()));
        graph.results = carried;
        for (sum, more) in so_far.into_iter().zip(captured) {
            let sum = graph.fitting(ScalarOp::Add, &[sum, more]);
            graph.results.push(sum);
        }
        graph.results.extend(arrays);
        graph
    }
}

/// Lets the last equation define another variable.
fn rename(graph: &mut Graph, from: Var, to: Var) {
    let last = graph.equations.last_mut().expect("it was just appended");
    assert_eq!(last.results, [from]);
    last.results = vec![to];
}

//! The values that have a derivative by some of the parameters.
use super::rule::value;
use crate::call::Call;
use crate::graph::{Graph, Op};
use pallas_ir::scalar::Ty;
use pallas_ir::{E, ScalarOp, Type};
use std::cell::RefCell;
use std::sync::LazyLock;

/// By scalar operation and operand, true if the operation's slope by the operand is not 0 everywhere, as that of `floor` is.
static SLOPES: LazyLock<Vec<Vec<bool>>> = LazyLock::new(|| ScalarOp::ALL.iter().map(|op| slopes(*op)).collect());

fn slopes(op: ScalarOp) -> Vec<bool> {
    let row = op.row();
    let Some(float) = row.class.dtypes().iter().copied().find(|dtype| dtype.is_float()) else {
        return vec![false; row.operands.len()];
    };
    let dtype = |ty: Ty| if let Ty::Is(dtype) = ty { dtype } else { float };
    let graph = RefCell::new(Graph::default());
    let param = |ty: Ty| value(&graph, graph.borrow_mut().param(Type::scalar(dtype(ty))));
    let args: Vec<E<'_>> = row.operands.iter().map(|(_, ty)| param(*ty)).collect();
    let y = param(row.result);
    let slope = |i: usize| {
        let tangents: Vec<Option<E<'_>>> = args.iter().enumerate().map(|(k, x)| (k == i).then_some(*x)).collect();
        op.jvp(&args, y, &tangents).is_some()
    };
    (0..args.len()).map(slope).collect()
}

/// By variable, true if it depends on one of the parameters for which `on` is true, all along values of floating-point
/// types and operations with a derivative.
pub(super) fn active(graph: &Graph, on: &[bool]) -> Vec<bool> {
    let is_float = |i: usize| graph.types[i].dtype.is_float();
    let mut active = vec![false; graph.types.len()];
    for (p, &on) in graph.params.iter().zip(on) {
        active[p.index()] = on && is_float(p.index());
    }
    for e in &graph.equations {
        let args: Vec<bool> = e.args.iter().map(|a| active[a.index()]).collect();
        let found = match &e.op {
            Op::Literal(_) | Op::StopGradient => vec![false; e.results.len()],
            Op::Scalar(op) => vec![args.iter().zip(&SLOPES[*op as usize]).any(|(on, slope)| *on && *slope)],
            Op::Barrier | Op::Structural(_) | Op::Dynamic(_) | Op::Annotation(_) | Op::Collective(_) => {
                vec![args.contains(&true)]
            }
            Op::Call(call) => results(call, &args),
        };
        e.results.iter().zip(found).for_each(|(r, found)| active[r.index()] = found && is_float(r.index()));
    }
    active
}

/// The results of a graph that are active.
fn of_graph(graph: &Graph, on: &[bool]) -> Vec<bool> {
    let active = active(graph, on);
    graph.results.iter().map(|r| active[r.index()]).collect()
}

/// The results of a call that are active if these operands are.
fn results(call: &Call, on: &[bool]) -> Vec<bool> {
    match call {
        Call::Scan(scan) => {
            let on = carried(&scan.body, on, scan.captured, scan.carried);
            let mut found = of_graph(&scan.body, &on);
            // A scan without steps gives what it took.
            found.iter_mut().zip(&on[scan.captured..]).take(scan.carried).for_each(|(found, on)| *found |= on);
            found
        }
        Call::While(call) => {
            let on = &on[call.condition_captured..];
            let n = call.body.results.len();
            carried(&call.body, on, call.body_captured, n)[call.body_captured..].to_vec()
        }
        Call::Case(case) => {
            let each: Vec<Vec<bool>> = case.branches.iter().map(|branch| of_graph(branch, &on[1..])).collect();
            (0..each[0].len()).map(|i| each.iter().any(|flags| flags[i])).collect()
        }
        Call::Kernel(call) => vec![on.contains(&true); call.gives.len()],
        Call::Custom(custom) => vec![on.contains(&true); custom.primal.results.len()],
        Call::CustomJvp(custom) => vec![on.contains(&true); custom.primal.results.len()],
        Call::Closed(graph) => of_graph(graph, on),
        Call::Checkpoint(checkpoint) => of_graph(&checkpoint.graph, on),
        Call::ShardMap(map) => of_graph(&map.body, on),
        Call::Named(_) => on.to_vec(),
        Call::Print(_) => vec![false],
    }
}

/// The flags of a loop body's parameters: a carried value that is active after some step is active before it as well.
/// The carried values are `n` parameters from position `first`, and the first results.
pub(super) fn carried(body: &Graph, on: &[bool], first: usize, n: usize) -> Vec<bool> {
    fixpoint(on, first, n, |on| of_graph(body, on))
}

/// As [`carried`], for flags of results that follow from flags of parameters.
pub(super) fn fixpoint(on: &[bool], first: usize, n: usize, of: impl Fn(&[bool]) -> Vec<bool>) -> Vec<bool> {
    let mut on = on.to_vec();
    loop {
        let next = of(&on);
        let news: Vec<usize> = (0..n).filter(|&i| next[i] && !on[first + i]).collect();
        if news.is_empty() {
            return on;
        }
        news.into_iter().for_each(|i| on[first + i] = true);
    }
}

//! Finds the values of a graph that have a derivative by some of its parameters (*active* values).
use super::memo::{CallFlagMeaning, cached_call_flags};
use super::rule::as_expression;
use crate::graph::{Graph, Op};
use pallas_ir::scalar::SignatureType;
use pallas_ir::{E, ScalarOp, Type};
use std::cell::RefCell;
use std::sync::LazyLock;

/// For each scalar operation, a bool for each of its operands: true if the derivative by it can be nonzero, false if it
/// is zero everywhere, as for `floor`.
static NONZERO_DERIVATIVE_OPERANDS: LazyLock<Vec<Vec<bool>>> =
    LazyLock::new(|| ScalarOp::ALL.iter().map(|op| nonzero_derivative_operands(*op)).collect());

/// Returns a bool for each operand of a scalar operation: true if the derivative by it can be nonzero, false if it is
/// zero everywhere.
fn nonzero_derivative_operands(op: ScalarOp) -> Vec<bool> {
    let row = op.row();
    let Some(float) = row.class.dtypes().iter().copied().find(|dtype| dtype.is_float()) else {
        return vec![false; row.operands.len()];
    };
    let dtype = |ty: SignatureType| if let SignatureType::Is(dtype) = ty { dtype } else { float };
    let graph = RefCell::new(Graph::default());
    let param = |ty: SignatureType| as_expression(&graph, graph.borrow_mut().param(Type::scalar(dtype(ty))));
    let args: Vec<E<'_>> = row.operands.iter().map(|(_, ty)| param(*ty)).collect();
    let y = param(row.result);
    let slope = |i: usize| {
        let tangents: Vec<Option<E<'_>>> = args.iter().enumerate().map(|(k, x)| (k == i).then_some(*x)).collect();
        op.jvp(&args, y, &tangents).is_some()
    };
    (0..args.len()).map(slope).collect()
}

/// Returns for each variable whether it is active: it depends on a parameter for which `is_active_param` is true
/// through values of floating-point types and operations with a derivative.
pub(super) fn active_vars(graph: &Graph, is_active_param: &[bool]) -> Vec<bool> {
    let is_float = |i: usize| graph.types[i].dtype.is_float();
    let mut active = vec![false; graph.types.len()];
    for (p, &on) in graph.params.iter().zip(is_active_param) {
        active[p.index()] = on && is_float(p.index());
    }
    for e in &graph.equations {
        #[cfg(test)]
        tests::VISITED.with(|visited| visited.set(visited.get() + 1));
        let args: Vec<bool> = e.args.iter().map(|a| active[a.index()]).collect();
        let found = match &e.op {
            Op::Literal(_) => vec![false],
            Op::Identity(op) => vec![args[0] && op.has_tangent()],
            Op::Scalar(op) => {
                vec![args.iter().zip(&NONZERO_DERIVATIVE_OPERANDS[*op as usize]).any(|(on, slope)| *on && *slope)]
            }
            Op::Structural(_) | Op::Dynamic(_) | Op::Collective(_) => vec![args.contains(&true)],
            Op::Call(call) => {
                cached_call_flags(CallFlagMeaning::Active, call, &args, || call.rule().active_results(&args))
            }
        };
        e.results.iter().zip(found).for_each(|(r, found)| active[r.index()] = found && is_float(r.index()));
    }
    active
}

/// Returns a bool for each result of a graph: true if it has a derivative by the parameters for which `is_active` is
/// true.
pub(crate) fn active_results(graph: &Graph, is_active: &[bool]) -> Vec<bool> {
    let active = active_vars(graph, is_active);
    graph.results.iter().map(|r| active[r.index()]).collect()
}

/// Returns a bool for each parameter of a loop body: true if in some step it depends on what the loop is differentiated
/// by; `is_active` says so for the first step, and carried values pass it on. The carried values are the
/// `carried_count` parameters from index `first_carried` on, and as many first results.
pub(crate) fn active_loop_params(
    body: &Graph,
    is_active: &[bool],
    first_carried: usize,
    carried_count: usize,
) -> Vec<bool> {
    extend_flags_to_fixpoint(is_active, first_carried, carried_count, |on| active_results(body, on))
}

/// Returns the flags of a loop body's parameters, extended to carried values: repeats `result_flags`, which gives the
/// flags of the results for those of the parameters, until no carried value gets a new one. The carried values are the
/// `carried_count` parameters from index `first_carried` on, and as many first results.
pub(crate) fn extend_flags_to_fixpoint(
    param_flags: &[bool],
    first_carried: usize,
    carried_count: usize,
    result_flags: impl Fn(&[bool]) -> Vec<bool>,
) -> Vec<bool> {
    let mut on = param_flags.to_vec();
    loop {
        let next = result_flags(&on);
        let news: Vec<usize> = (0..carried_count).filter(|&i| next[i] && !on[first_carried + i]).collect();
        if news.is_empty() {
            return on;
        }
        news.into_iter().for_each(|i| on[first_carried + i] = true);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{batched, jvp, vjp};
    use crate::call::{Case, Scan};
    use crate::graph::Graph;
    use pallas_ir::{DType, Literal, ScalarOp, Type};
    use std::cell::Cell;

    thread_local! {
        pub(super) static VISITED: Cell<usize> = const { Cell::new(0) };
    }

    /// Graph `(w, x, number) -> y` with `levels` nested loops and branches; each carried value becomes active in the
    /// second step.
    fn nested(levels: usize) -> Graph {
        let mut graph = Graph::default();
        let [w, x] = [0, 1].map(|_| graph.param(Type::scalar(DType::F32)));
        let number = graph.param(Type::scalar(DType::I32));
        let y = graph.push(ScalarOp::Mul, &[w, x]).expect("floats");
        graph.results = vec![y];
        if levels == 0 {
            return graph;
        }
        let branches = vec![nested(levels - 1), nested(0)];
        let mut body = Graph::default();
        let [w2, number2, carried] = [DType::F32, DType::I32, DType::F32].map(|dtype| body.param(Type::scalar(dtype)));
        let step = body.push_multi_result(Case { branches }, &[number2, w2, carried, number2]).expect("it fits")[0];
        body.results = vec![step];
        let start = graph.literal(Literal::new(DType::F32, 1.0));
        let scan = Scan { body, captured: 2, carried: 1, length: 2, reverse: false };
        let last = graph.push_multi_result(scan, &[w, number, start]).expect("it fits")[0];
        let sum = graph.push(ScalarOp::Add, &[last, y]).expect("floats");
        graph.results = vec![sum];
        graph
    }

    /// The number of visited equations grows at most with the square of the nesting depth; it does not double with each
    /// level.
    #[test]
    fn loops_in_loops_are_looked_at_once() {
        let visited = |levels: usize| {
            let graph = nested(levels);
            let before = VISITED.get();
            vjp(&graph, &[true, true, false]).expect("it has gradients");
            jvp(&graph, &[true, false, false]).expect("it has tangents");
            batched(&graph, &[true, false, false], 3).expect("it has batches");
            VISITED.get() - before
        };
        let (few, many) = (visited(5), visited(20));
        assert!(many <= few * 20, "{few} equations of 5 levels, {many} of 20");
    }
}

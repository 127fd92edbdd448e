//! Finds the values of a graph that have a derivative by some of its parameters (*active* values).
use super::memo::{CachedProperty, cached_flags};
use super::rule::as_expression;
use crate::graph::{Graph, Op};
use pallas_ir::scalar::Ty;
use pallas_ir::{E, ScalarOp, Type};
use std::cell::RefCell;
use std::sync::LazyLock;

/// For each scalar operation and operand, true if the derivative by the operand is not 0 everywhere, as it is for
/// `floor`.
static HAS_DERIVATIVE: LazyLock<Vec<Vec<bool>>> =
    LazyLock::new(|| ScalarOp::ALL.iter().map(|op| has_derivative(*op)).collect());

/// Returns for each operand of a scalar operation whether the derivative by it is not 0 everywhere.
fn has_derivative(op: ScalarOp) -> Vec<bool> {
    let row = op.row();
    let Some(float) = row.class.dtypes().iter().copied().find(|dtype| dtype.is_float()) else {
        return vec![false; row.operands.len()];
    };
    let dtype = |ty: Ty| if let Ty::Is(dtype) = ty { dtype } else { float };
    let graph = RefCell::new(Graph::default());
    let param = |ty: Ty| as_expression(&graph, graph.borrow_mut().param(Type::scalar(dtype(ty))));
    let args: Vec<E<'_>> = row.operands.iter().map(|(_, ty)| param(*ty)).collect();
    let y = param(row.result);
    let slope = |i: usize| {
        let tangents: Vec<Option<E<'_>>> = args.iter().enumerate().map(|(k, x)| (k == i).then_some(*x)).collect();
        op.jvp(&args, y, &tangents).is_some()
    };
    (0..args.len()).map(slope).collect()
}

/// Returns for each variable whether it is active: it depends on a parameter for which `on` is true through values of
/// floating-point types and operations with a derivative.
pub(super) fn active_vars(graph: &Graph, on: &[bool]) -> Vec<bool> {
    let is_float = |i: usize| graph.types[i].dtype.is_float();
    let mut active = vec![false; graph.types.len()];
    for (p, &on) in graph.params.iter().zip(on) {
        active[p.index()] = on && is_float(p.index());
    }
    for e in &graph.equations {
        #[cfg(test)]
        tests::VISITED.with(|visited| visited.set(visited.get() + 1));
        let args: Vec<bool> = e.args.iter().map(|a| active[a.index()]).collect();
        let found = match &e.op {
            Op::Literal(_) => vec![false],
            Op::Identity(op) => vec![args[0] && op.has_tangent()],
            Op::Scalar(op) => vec![args.iter().zip(&HAS_DERIVATIVE[*op as usize]).any(|(on, slope)| *on && *slope)],
            Op::Structural(_) | Op::Dynamic(_) | Op::Collective(_) => vec![args.contains(&true)],
            Op::Call(call) => cached_flags(CachedProperty::Active, call, &args, || call.rule().active_results(&args)),
        };
        e.results.iter().zip(found).for_each(|(r, found)| active[r.index()] = found && is_float(r.index()));
    }
    active
}

/// Returns for each result of a graph whether it is active.
pub(crate) fn active_results(graph: &Graph, on: &[bool]) -> Vec<bool> {
    let active = active_vars(graph, on);
    graph.results.iter().map(|r| active[r.index()]).collect()
}

/// Returns which parameters of a loop body are active in some step, if those with `on` true are in the first: a carried
/// value that a step makes active is so in the next. The carried values are the `n` parameters from index `first` on,
/// and the first `n` results.
pub(crate) fn active_loop_params(body: &Graph, on: &[bool], first: usize, n: usize) -> Vec<bool> {
    fixpoint(on, first, n, |on| active_results(body, on))
}

/// Extends the flags of a loop body's parameters to carried values: repeats `of`, which gives the flags of the results,
/// until no carried value gets a new one. The carried values are the `n` parameters from index `first` on, and the
/// first `n` results.
pub(crate) fn fixpoint(on: &[bool], first: usize, n: usize, of: impl Fn(&[bool]) -> Vec<bool>) -> Vec<bool> {
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

//! Check that a graph is linear in some of its parameters, read off the tangents of its operations.
use super::Refused;
use super::rule::{made, structural, value};
use crate::call::Call;
use crate::graph::{Equation, Graph, Op, Var};
use crate::inline::expanded;
use pallas_ir::{At, Diag, E, Literal, Loc, ScalarOp};
use std::cell::RefCell;

/// The first operation that makes a result of a graph, from number `first` on, not linear in the parameters for which `on`
/// is true.
///
/// An operation is linear in operands if its tangent by them has none of these operands in it, and if it has no other term
/// besides: `dx * y` is, `dx * dx` and `dx + y` are not. Terms that are zero for sure are none, nor is NaN, which lookups give
/// for elements that do not exist. Loops, branches and kernels are not looked into.
pub fn not_linear(graph: &Graph, on: &[bool], first: usize) -> Option<Refused> {
    let graph = &expanded(graph, &|call| match call {
        Call::Closed(graph) => Some(graph),
        Call::Checkpoint(checkpoint) => Some(&checkpoint.graph),
        _ => None,
    });
    let mut depends = vec![false; graph.types.len()];
    graph.params.iter().zip(on).for_each(|(p, &on)| depends[p.index()] = on);
    let mut is_zero = vec![false; graph.types.len()];
    let mut wrong: Vec<Option<usize>> = vec![None; graph.types.len()];
    for (at, e) in graph.equations.iter().enumerate() {
        let args = || e.args.iter().map(|a| a.index());
        let on = args().any(|a| depends[a]);
        let found =
            args().find_map(|a| wrong[a]).or_else(|| (on && !is_linear(graph, e, &depends, &is_zero)).then_some(at));
        let zero = match &e.op {
            // NaN stands for elements that do not exist.
            Op::Literal(x) => *x == Literal::new(x.dtype, 0.0) || x.as_f64().is_nan(),
            Op::Scalar(ScalarOp::Mul) => args().any(|a| is_zero[a]),
            Op::Structural(_) | Op::Barrier | Op::StopGradient | Op::Annotation(_) => {
                !e.args.is_empty() && args().all(|a| is_zero[a])
            }
            Op::Scalar(_) | Op::Dynamic(_) | Op::Collective(_) | Op::Call(_) => false,
        };
        for r in &e.results {
            let is_float = graph.ty(*r).dtype.is_float();
            (depends[r.index()], is_zero[r.index()]) = (on && is_float && e.op != Op::StopGradient, zero);
            wrong[r.index()] = found;
        }
    }
    let refused = |at: Loc, message: String| {
        let help = "a tangent is a sum of the arguments' tangents, each times what depends on arguments alone";
        Refused { at, diag: Diag::new("not-linear", At::Op, message, help) }
    };
    graph.results.iter().skip(first).find_map(|r| {
        if let Some(at) = wrong[r.index()] {
            let e = &graph.equations[at];
            let text = e.op.to_string();
            let name = text.split(' ').next().unwrap_or_default();
            return Some(refused(e.loc, format!("`{name}` makes a stated tangent that is not linear in the tangents")));
        }
        let is_constant = !depends[r.index()] && !is_zero[r.index()];
        (is_constant && graph.ty(*r).dtype.is_float())
            .then(|| refused(graph.at, format!("a stated tangent of {} does not depend on the tangents", graph.ty(*r))))
    })
}

/// Returns true if an operation is linear in those of its operands that depend on the parameters.
fn is_linear(graph: &Graph, e: &Equation, depends: &[bool], is_zero: &[bool]) -> bool {
    let linear: Vec<usize> = (0..e.args.len()).filter(|&i| depends[e.args[i].index()]).collect();
    let mut to = Graph::default();
    let params: Vec<Var> = e.args.iter().map(|&a| to.param(graph.ty(a).clone())).collect();
    let y = to.param(graph.ty(e.result()).clone());
    let holes: Vec<Var> = e.args.iter().map(|&a| to.param(graph.ty(a).clone())).collect();
    let to = RefCell::new(to);
    let mut reads = vec![false; params.len()];
    for &i in &linear {
        let tangents: Vec<Option<E<'_>>> = (0..params.len()).map(|k| (k == i).then(|| value(&to, holes[k]))).collect();
        let tangent = match &e.op {
            Op::Scalar(op) => {
                let args: Vec<E<'_>> = params.iter().map(|&v| value(&to, v)).collect();
                op.jvp(&args, value(&to, y), &tangents)
            }
            Op::Structural(op) => {
                let types: Vec<_> = e.args.iter().map(|&a| graph.ty(a).clone()).collect();
                structural(&to, &params, &types, |args| op.jvp(args, value(&to, y), &tangents))
            }
            // Linear, or not looked into.
            Op::Barrier | Op::StopGradient | Op::Annotation(_) | Op::Dynamic(_) | Op::Collective(_) => return true,
            Op::Call(_) | Op::Literal(_) => return true,
        };
        // Without a tangent there is no slope: the sign of a tangent is not linear.
        let Some(tangent) = tangent.map(made) else { return false };
        let used = needed(&to.borrow(), tangent);
        if used[y.index()] || linear.iter().any(|&k| used[params[k].index()]) {
            return false;
        }
        params.iter().zip(&mut reads).for_each(|(p, reads)| *reads |= used[p.index()]);
    }
    // What is no factor is a term.
    let is_term = |i: usize| graph.ty(e.args[i]).dtype.is_float() && !linear.contains(&i) && !reads[i];
    (0..e.args.len()).all(|i| !is_term(i) || is_zero[e.args[i].index()])
}

/// By variable, true if a result depends on it.
fn needed(graph: &Graph, result: Var) -> Vec<bool> {
    let mut needed = vec![false; graph.types.len()];
    needed[result.index()] = true;
    for e in graph.equations.iter().rev() {
        if e.results.iter().any(|r| needed[r.index()]) {
            e.args.iter().for_each(|a| needed[a.index()] = true);
        }
    }
    needed
}

//! Reverse mode of graphs whose values are partly computed again.
use super::Refused;
use super::control::{is_float, or_zeros};
use super::vjp::vjp;
use crate::call::{Call, Checkpoint};
use crate::dead::without_dead;
use crate::graph::{Equation, Graph, Op, Var};
use crate::inline::expanded;

/// The cotangents of the operands of a checkpoint. The derivative takes the values that the policy stores, which the call
/// gives as well from now on, and computes the others again from the operands, behind barriers so that they stay apart
/// from the first time.
pub(super) fn through(
    to: &mut Graph,
    at: usize,
    e: &Equation,
    checkpoint: &Checkpoint,
    on: &[bool],
    cotangents: &[Option<Var>],
) -> Result<Vec<Option<Var>>, Refused> {
    let graph = expanded(&checkpoint.graph, &|call| if let Call::Closed(graph) = call { Some(graph) } else { None });
    let both = vjp(&graph, on)?;
    let mut backward = Graph { results: both.results[graph.results.len()..].to_vec(), ..both };

    let takes = backward.params.len();
    let stored = stored(&graph, checkpoint);
    let mut given: Vec<Var> = (0..backward.types.len() as u32).map(Var).collect();
    for &v in &stored {
        given[v.index()] = backward.param(graph.ty(v).clone());
    }
    let rename = |v: &mut Var| {
        if let Some(&name) = given.get(v.index()) {
            *v = name;
        }
    };
    backward.equations.iter_mut().flat_map(|e| &mut e.args).for_each(rename);
    backward.results.iter_mut().for_each(rename);
    let mut backward = without_dead(backward);
    // What the derivative does not need is not stored.
    let mut is_read = vec![false; backward.types.len()];
    let read = backward.equations.iter().flat_map(|e| &e.args).chain(&backward.results);
    read.for_each(|v| is_read[v.index()] = true);
    let params = backward.params.split_off(takes);
    let kept: Vec<(Var, Var)> = stored.into_iter().zip(params).filter(|(_, p)| is_read[p.index()]).collect();
    backward.params.extend(kept.iter().map(|(_, p)| *p));

    let mut args: Vec<Var> = e.args.iter().map(|&arg| to.fitting(Op::Barrier, &[arg])).collect();
    for (&r, &cotangent) in e.results.iter().zip(cotangents) {
        let ty = to.ty(r).clone();
        if is_float(&ty) {
            args.push(or_zeros(to, cotangent, &ty));
        }
    }
    if !kept.is_empty() {
        let residuals: Vec<Var> = kept.iter().map(|(v, _)| to.var(graph.ty(*v).clone())).collect();
        let mut forward = graph;
        forward.results.extend(kept.iter().map(|(v, _)| *v));
        let changed = &mut to.equations[at];
        changed.op = Call::Checkpoint(Checkpoint { graph: forward, policy: checkpoint.policy.clone() }).into();
        changed.results.extend(&residuals);
        args.extend(residuals);
    }
    let mut made = to.fitting_all(Call::Closed(backward), &args).into_iter();
    Ok(on.iter().map(|&on| if on { made.next() } else { None }).collect())
}

/// The values that the policy stores. Arrays that depend on no operand are made again.
fn stored(graph: &Graph, checkpoint: &Checkpoint) -> Vec<Var> {
    let mut depends = vec![false; graph.types.len()];
    graph.params.iter().for_each(|p| depends[p.index()] = true);
    let mut all = vec![];
    for e in &graph.equations {
        if e.args.iter().any(|a| depends[a.index()]) {
            e.results.iter().for_each(|r| depends[r.index()] = true);
            if checkpoint.policy.saves(&e.op) {
                all.extend(&e.results);
            }
        }
    }
    all
}

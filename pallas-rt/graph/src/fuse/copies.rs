//! Broadcasts that several equations read, once for each of them.
//!
//! ```text
//! y = broadcast x; a = f(y); b = g(y)    ->    y = broadcast x; a = f(y); z = broadcast x; b = g(z)
//! ```
//!
//! Clusters that read one broadcast would store it, though its operand is smaller and computing it again is free. Within a
//! cluster `lower` makes equal ones once.
use super::alone::is_alone;
use super::cluster::is_free;
use crate::graph::{Graph, Op};
use pallas_ir::StructuralOp;
use std::borrow::Cow;

/// The graph with a copy of each broadcast for every equation that may compute it.
pub(super) fn copied(graph: &Graph) -> Cow<'_, Graph> {
    let (definitions, uses) = (graph.definitions(), graph.uses());
    let mut is_shared = vec![false; graph.types.len()];
    for e in &graph.equations {
        let is_broadcast = matches!(e.op, Op::Structural(StructuralOp::Broadcast(_)));
        if is_broadcast && !is_free(graph, &definitions, e) {
            let (from, to) = (graph.ty(e.args[0]), graph.ty(e.result()));
            // Copies of a single element, as of the words of a random key, would fill kernels, which take so many equations.
            let is_smaller = (2..to.elements()).contains(&from.elements());
            is_shared[e.result().index()] = is_smaller && uses[e.result().index()].len() > 1;
        }
    }
    if !is_shared.contains(&true) {
        return Cow::Borrowed(graph);
    }
    let mut to = Graph { equations: vec![], ..graph.clone() };
    // By variable, true if it has a reader; results have one from the beginning.
    let mut is_read = vec![false; graph.types.len()];
    graph.results.iter().for_each(|v| is_read[v.index()] = true);
    for e in &graph.equations {
        let mut e = e.clone();
        for arg in e.args.iter_mut().filter(|v| is_shared[v.index()]) {
            if !is_alone(&e.op) && std::mem::replace(&mut is_read[arg.index()], true) {
                let broadcast = &graph.equations[definitions[arg.index()].expect("a broadcast defines it")];
                to.at = broadcast.loc;
                *arg = to.fitting(broadcast.op.clone(), &broadcast.args);
            }
        }
        to.equations.push(e);
    }
    to.at = graph.at;
    Cow::Owned(to)
}

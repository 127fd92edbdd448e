//! Drops the equations that no result depends on, and that have no effect.
//!
//! ```text
//! { lambda %0:f32[2] . %1:f32[2] = exp %0  %2:f32[2] = neg %0  in %2 }
//! { lambda %0:f32[2] .                     %2:f32[2] = neg %0  in %2 }
//! ```
use crate::call::has_effect;
use crate::graph::Graph;

/// The graph without them.
pub(crate) fn without_dead(graph: &Graph) -> Graph {
    let mut live = vec![false; graph.types.len()];
    graph.results.iter().for_each(|r| live[r.index()] = true);
    let mut kept = vec![];
    for e in graph.equations.iter().rev() {
        if e.results.iter().any(|r| live[r.index()]) || has_effect(&e.op) {
            e.args.iter().for_each(|a| live[a.index()] = true);
            kept.push(e.clone());
        }
    }
    kept.reverse();
    Graph { equations: kept, ..graph.clone() }
}

//! Inlines functions: replaces calls by the equations of the called graphs.
//!
//! ```text
//! { lambda %0:f32[2] . %1:f32[2] = call { lambda %0:f32[2] . %1:f32[2] = exp %0 in %1 } %0  in %1 }
//! { lambda %0:f32[2] . %1:f32[2] = exp %0                                                   in %1 }
//! ```
use crate::call::{Call, ExpansionStage};
use crate::graph::{Equation, Graph, Op, Var};

/// Returns the graph with every function inlined, for use after all derivatives are taken. Loops, branches and kernels
/// stay.
pub fn inline(graph: &Graph) -> Graph {
    expand_calls(graph, &|call| call.expansion_at(ExpansionStage::Plan))
}

/// Returns the graph with each call replaced by the equations of the graph that `expansion_of` gives for it, also
/// inside of such graphs; calls for which `expansion_of` gives `None` stay.
pub(crate) fn expand_calls(graph: &Graph, expansion_of: &dyn Fn(&Call) -> Option<&Graph>) -> Graph {
    let called = |e: &Equation| match &e.op {
        Op::Call(call) => expansion_of(call).is_some(),
        _ => false,
    };
    if !graph.equations.iter().any(called) {
        return graph.clone();
    }
    let mut to = graph.with_equations(vec![]);
    let mut same: Vec<Var> = (0..graph.types.len() as u32).map(Var).collect();
    let groups = graph.sharding_group_count();
    for e in &graph.equations {
        let mut e = e.clone();
        e.args.iter_mut().for_each(|a| *a = same[a.index()]);
        let body = if let Op::Call(call) = &e.op { expansion_of(call) } else { None };
        match body {
            Some(body) => {
                let made = to.inline_with_sharding_groups_from(&expand_calls(body, expansion_of), &e.args, groups);
                e.results.iter().zip(made).for_each(|(r, v)| same[r.index()] = v);
            }
            None => to.equations.push(e),
        }
    }
    let results = graph.results.iter().map(|r| same[r.index()]).collect();
    Graph { results, ..to }
}

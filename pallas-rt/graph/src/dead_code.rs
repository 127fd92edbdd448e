//! Drops equations that no result depends on and that have no effect, and unread stacks and carried values of scans.
//!
//! ```text
//! { lambda %0:f32[2] . %1:f32[2] = exp %0  %2:f32[2] = neg %0  in %2 }
//! { lambda %0:f32[2] .                     %2:f32[2] = neg %0  in %2 }
//!
//! %3, %4 = scan { lambda i x . j = add i, 1  y = exp x       in j, y } %0, %1        %5 = neg %4
//! %4     = scan { lambda x .                 y = exp x       in y } %1               %5 = neg %4
//! ```
use crate::call::has_effect;
use crate::graph::{Graph, Op};

/// Returns the graph without equations, and without parts of calls, that have no effect and that no result depends on.
pub(crate) fn without_dead_equations(mut graph: Graph) -> Graph {
    let mut live = vec![false; graph.types.len()];
    graph.results.iter().for_each(|r| live[r.index()] = true);
    let mut kept = vec![];
    for mut e in std::mem::take(&mut graph.equations).into_iter().rev() {
        if e.results.iter().any(|r| live[r.index()]) || has_effect(&e.op) {
            let is_read: Vec<bool> = e.results.iter().map(|r| live[r.index()]).collect();
            if is_read.contains(&false)
                && let Op::Call(call) = &e.op
                && let Some(less) = call.stays().and_then(|step| step.without_unread_results(&e, &is_read))
            {
                e = less;
            }
            e.args.iter().for_each(|a| live[a.index()] = true);
            kept.push(e);
        }
    }
    kept.reverse();
    Graph { equations: kept, ..graph }
}

//! Splits a graph into a part that depends only on its first parameters, and the rest.
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;

/// Splits a graph in two: the first one computes everything that depends only on the first `known_param_count`
/// parameters, the second one the rest.
///
/// The first `known_result_count` results must depend only on these parameters. The first graph takes them, and gives
/// those results followed by the values that the second graph needs. The second graph takes these values and the later
/// parameters, and gives the other results. Constants, reshapes and broadcasts that both need are computed in both.
///
/// # Panics
/// If one of the first results depends on a later parameter.
pub fn split_by_known_params(graph: &Graph, known_param_count: usize, known_result_count: usize) -> (Graph, Graph) {
    let mut is_late = vec![false; graph.types.len()];
    graph.params[known_param_count..].iter().for_each(|p| is_late[p.index()] = true);
    let empty = || Graph { types: graph.types.clone(), ..Graph::default() };
    let (mut first, mut second) = (empty(), empty());
    first.params = graph.params[..known_param_count].to_vec();
    for e in &graph.equations {
        if e.args.iter().any(|a| is_late[a.index()]) {
            e.results.iter().for_each(|r| is_late[r.index()] = true);
            second.equations.push(e.clone());
        } else {
            first.equations.push(e.clone());
        }
    }
    first.results = graph.results[..known_result_count].to_vec();
    assert!(first.results.iter().all(|r| !is_late[r.index()]), "the first results are known");
    second.results = graph.results[known_result_count..].to_vec();

    let definitions = graph.definitions();
    let definition = |v: Var| definitions[v.index()].map(|i| &graph.equations[i]);
    let (mut again, mut seen) = (vec![], vec![false; graph.types.len()]);
    let needed: Vec<Var> = second.equations.iter().flat_map(|e| &e.args).chain(&second.results).copied().collect();
    for v in needed.into_iter().filter(|v| !is_late[v.index()]) {
        for v in rematerialized_chain(v, definition) {
            if std::mem::replace(&mut seen[v.index()], true) {
                continue;
            }
            match definition(v).filter(|e| is_rematerialized(&e.op)) {
                Some(e) => again.push(e.clone()),
                None => second.params.push(v),
            }
        }
    }
    first.results.extend(&second.params);
    second.params.extend(&graph.params[known_param_count..]);
    second.equations.splice(0..0, again);
    (first, second)
}

/// Returns true for an operation that is computed again where its result is needed, instead of storing the result: its
/// operand is no larger, and may be stored anyway.
pub(crate) fn is_rematerialized(op: &Op) -> bool {
    matches!(op, Op::Literal(_) | Op::Structural(StructuralOp::Broadcast(_) | StructuralOp::Reshape(_)))
}

/// Returns `v` and the values from which it is computed by operations that are computed again ([`is_rematerialized`]),
/// in the order in which they are computed.
pub(crate) fn rematerialized_chain<'g>(v: Var, definition: impl Fn(Var) -> Option<&'g Equation>) -> Vec<Var> {
    let mut found = vec![v];
    let of = |v: Var| definition(v).filter(|e| is_rematerialized(&e.op)).and_then(|e| e.args.first().copied());
    while let Some(source) = of(found[found.len() - 1]) {
        found.push(source);
    }
    found.reverse();
    found
}

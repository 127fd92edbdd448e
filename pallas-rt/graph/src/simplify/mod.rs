//! Simplification of a graph to an equal one with fewer equations: passes of one file each, in the order of [`PASSES`].
mod axes;
mod cancel;
mod common_subexpressions;
mod opposite_moves;
mod products;
mod rewrite;
mod scan_carries;
mod scan_hoisting;
mod scan_stacks;
mod select_broadcast;
mod separated_axes;
mod slices;
mod unit_axes;
mod vector_products;
mod whole_window_gathers;
mod windows;

pub use crate::inline::inline as inlined;

use crate::dead_code::without_dead_equations;
use crate::graph::{Graph, Op};
use crate::stage_watch::StageObserver;

/// A pass, which takes a graph and returns one that computes the same results.
pub type Pass = fn(Graph) -> Graph;

/// All passes with their names, in the order in which they run.
pub const PASSES: &[(&str, Pass)] = &[
    ("inline", |graph| inlined(&graph)),
    ("stacks", scan_stacks::remove_redundant_scan_arrays),
    ("carries", scan_carries::replace_counters_by_arrays),
    ("dead", without_dead_equations),
    ("steps", scan_hoisting::hoist_out_of_scans),
    ("stacks", scan_stacks::remove_redundant_scan_arrays),
    ("dead", without_dead_equations),
    ("slices", slices::push_slices_to_operands),
    ("dead", without_dead_equations),
    ("units", unit_axes::drop_inserted_unit_axes),
    ("whole", whole_window_gathers::replace_whole_window_accesses),
    ("products", products::replace_sums_of_products),
    ("vectors", vector_products::replace_vector_products),
    ("windows", windows::simplify_windows),
    ("opposites", opposite_moves::cancel_opposite_moves),
    ("spread", select_broadcast::compute_selects_before_broadcasts),
    ("cancel", cancel::simplify_equations),
    ("common", common_subexpressions::eliminate_common_subexpressions),
    ("dead", without_dead_equations),
];

/// Passes that run after [`PASSES`], only on the outermost graph: values that a loop carries keep the axes along which
/// programs split them.
pub const OUTERMOST_GRAPH_PASSES: &[(&str, Pass)] = &[
    ("twice", separated_axes::split_folds_and_broadcasts),
    ("axes", axes::join_adjacent_axes),
    ("cancel", cancel::simplify_equations),
    ("common", common_subexpressions::eliminate_common_subexpressions),
    ("dead", without_dead_equations),
];

/// Simplifies a graph, and the graphs that it calls, by all passes.
pub fn simplify(graph: &Graph) -> Graph {
    simplify_watched(graph, &mut ())
}

/// Simplifies a graph like [`simplify`], and shows `watch` the graph after each pass.
pub fn simplify_watched(graph: &Graph, watch: &mut dyn StageObserver) -> Graph {
    let mut graph = run_passes(PASSES, graph.clone(), watch);
    simplify_called_graphs(&mut graph);
    run_passes(OUTERMOST_GRAPH_PASSES, graph, watch)
}

/// Simplifies a graph that another graph calls, and those that it calls itself.
fn simplify_called_graph(graph: &Graph) -> Graph {
    let mut graph = run_passes(PASSES, graph.clone(), &mut ());
    simplify_called_graphs(&mut graph);
    graph
}

/// Runs passes in order; shows `watch` the graph after each.
fn run_passes(passes: &[(&'static str, Pass)], graph: Graph, watch: &mut dyn StageObserver) -> Graph {
    passes.iter().fold(graph, |graph, (name, pass)| {
        let graph = pass(graph);
        watch.observe_stage(name, &graph);
        graph
    })
}

/// Simplifies the graphs that a graph calls.
fn simplify_called_graphs(graph: &mut Graph) {
    for e in &mut graph.equations {
        if let Op::Call(call) = &e.op {
            e.op = call.map_graphs(simplify_called_graph).into();
        }
    }
}

//! Simplification of a graph to an equal one with fewer equations: passes of one file each, in the order of [`PASSES`].
mod axes;
mod cancel;
mod carries;
mod common;
mod opposites;
mod products;
mod rewrite;
mod slices;
mod spread;
mod stacks;
mod steps;
mod twice;
mod units;
mod vectors;
mod whole;
mod windows;

pub use crate::inline::inline as inlined;

use crate::dead::without_dead;
use crate::graph::{Graph, Op};
use crate::watch::Watch;

/// A pass, which returns a graph equal to its argument.
pub type Pass = fn(Graph) -> Graph;

/// All passes with their names, in the order in which they run.
pub const PASSES: &[(&str, Pass)] = &[
    ("inline", |graph| inlined(&graph)),
    ("stacks", stacks::stacks),
    ("carries", carries::carries),
    ("dead", without_dead),
    ("steps", steps::steps),
    ("stacks", stacks::stacks),
    ("dead", without_dead),
    ("slices", slices::slices),
    ("dead", without_dead),
    ("units", units::units),
    ("whole", whole::whole),
    ("products", products::products),
    ("vectors", vectors::vectors),
    ("windows", windows::windows),
    ("opposites", opposites::opposites),
    ("spread", spread::spread),
    ("cancel", cancel::cancel),
    ("common", common::common),
    ("dead", without_dead),
];

/// Passes that run after [`PASSES`], only on the outermost graph: values that a loop carries keep the axes along which
/// programs split them.
pub const OUTERMOST: &[(&str, Pass)] = &[
    ("twice", twice::twice),
    ("axes", axes::axes),
    ("cancel", cancel::cancel),
    ("common", common::common),
    ("dead", without_dead),
];

/// Simplifies a graph, and the graphs that it calls, by all passes.
pub fn simplify(graph: &Graph) -> Graph {
    simplify_watched(graph, &mut ())
}

/// Simplifies a graph like [`simplify`], and shows `watch` the graph after each pass.
pub fn simplify_watched(graph: &Graph, watch: &mut dyn Watch) -> Graph {
    let mut graph = passed(PASSES, graph.clone(), watch);
    simplify_called(&mut graph);
    passed(OUTERMOST, graph, watch)
}

/// Simplifies a graph that another graph calls, and those that it calls itself.
fn called(graph: &Graph) -> Graph {
    let mut graph = passed(PASSES, graph.clone(), &mut ());
    simplify_called(&mut graph);
    graph
}

/// Runs passes in order; shows `watch` the graph after each.
fn passed(passes: &[(&'static str, Pass)], graph: Graph, watch: &mut dyn Watch) -> Graph {
    passes.iter().fold(graph, |graph, (name, pass)| {
        let graph = pass(graph);
        watch.made(name, &graph);
        graph
    })
}

/// Simplifies the graphs that a graph calls.
fn simplify_called(graph: &mut Graph) {
    for e in &mut graph.equations {
        if let Op::Call(call) = &e.op {
            e.op = call.map(called).into();
        }
    }
}

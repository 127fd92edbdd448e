//! From a graph to one that computes the same with fewer equations: a pass each, in the order of [`PASSES`].
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

/// A pass: from a graph to an equal one.
pub type Pass = fn(Graph) -> Graph;

/// All passes by name, in the order in which they run.
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

/// Passes after these over a graph that no other one calls: what a loop carries keeps the axes along which programs divide
/// it.
pub const OUTERMOST: &[(&str, Pass)] = &[
    ("twice", twice::twice),
    ("axes", axes::axes),
    ("cancel", cancel::cancel),
    ("common", common::common),
    ("dead", without_dead),
];

/// Runs every pass, also on the graphs that a graph calls.
pub fn simplify(graph: &Graph) -> Graph {
    simplify_watched(graph, &mut ())
}

/// The graph of [`simplify`]; shows it after each pass.
pub fn simplify_watched(graph: &Graph, watch: &mut dyn Watch) -> Graph {
    let mut graph = passed(PASSES, graph.clone(), watch);
    simplify_called(&mut graph);
    passed(OUTERMOST, graph, watch)
}

/// Runs the passes for a graph that may be called.
fn called(graph: &Graph) -> Graph {
    let mut graph = passed(PASSES, graph.clone(), &mut ());
    simplify_called(&mut graph);
    graph
}

fn passed(passes: &[(&'static str, Pass)], graph: Graph, watch: &mut dyn Watch) -> Graph {
    passes.iter().fold(graph, |graph, (name, pass)| {
        let graph = pass(graph);
        watch.made(name, &graph);
        graph
    })
}

fn simplify_called(graph: &mut Graph) {
    for e in &mut graph.equations {
        if let Op::Call(call) = &e.op {
            e.op = call.map(called).into();
        }
    }
}

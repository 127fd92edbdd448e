//! All steps from a graph with declared shardings to the graph that each device runs.
use super::partition::{Partitioned, partition};
use super::propagate::Propagation;
use super::text::Sharded;
use super::view::Program;
use crate::graph::Graph;
use crate::mesh::{Mesh, Sharding};
use crate::refused::Refused;
use crate::watch::Watch;
use std::collections::HashMap;
use std::sync::Arc;

/// Most times that a graph is partitioned again to find shardings of the results of `shard_map` bodies.
const MOST_ROUNDS: usize = 4;

/// Propagates declared shardings of parameters and results through a graph that calls no functions, and partitions it
/// for the mesh.
///
/// # Errors
/// The errors of [`partition`].
pub fn divide(
    graph: &Graph,
    mesh: &Arc<Mesh>,
    params: &[Option<Sharding>],
    results: &[Option<Sharding>],
    watch: &mut dyn Watch,
) -> Result<(Propagation, Partitioned), Refused> {
    let mut known = HashMap::new();
    let mut round = 0;
    loop {
        let program = Program::with_results(graph, &known);
        watch.made("view", &program);
        let mut found = Propagation::of(program, params, results);
        watch.made("import", &Sharded(&found, mesh));
        found.rounds();
        watch.made("propagate", &Sharded(&found, mesh));
        let made = partition(&found, mesh)?;
        watch.made("localize", &made.graph);
        round += 1;
        // Shardings of a body's results are found when the body is partitioned: each round takes them past one more body.
        if made.results_of_maps == known || round == MOST_ROUNDS {
            return Ok((found, made));
        }
        known.clone_from(&made.results_of_maps);
    }
}

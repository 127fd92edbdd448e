//! All steps from a graph with declared shardings to the graph that each device runs.
use super::partition::{PartitionedGraph, partition};
use super::program_text::PropagationStageOutput;
use super::propagate::Propagation;
use super::propagation_program::RegionGraph;
use crate::graph::Graph;
use crate::mesh::{Mesh, Sharding};
use crate::refusal::TransformError;
use crate::stage_watch::StageObserver;
use std::collections::HashMap;
use std::sync::Arc;

/// Most times that a graph is partitioned again to find shardings of the results of `shard_map` bodies.
const MAX_REPARTITION_ROUNDS: usize = 4;

/// Propagates declared shardings of parameters and results through a graph that calls no functions, and partitions it
/// for the mesh.
///
/// # Errors
/// The errors of [`partition`].
pub fn propagate_and_partition(
    graph: &Graph,
    mesh: &Arc<Mesh>,
    params: &[Option<Sharding>],
    results: &[Option<Sharding>],
    watch: &mut dyn StageObserver,
) -> Result<(Propagation, PartitionedGraph), TransformError> {
    let mut known = HashMap::new();
    let mut round = 0;
    loop {
        let program = RegionGraph::from_graph_with_known_results(graph, &known);
        watch.observe_stage("view", &program);
        let mut found = Propagation::new(program, params, results);
        watch.observe_stage("import", &PropagationStageOutput(&found, mesh));
        found.run_priority_rounds();
        watch.observe_stage("propagate", &PropagationStageOutput(&found, mesh));
        let made = partition(&found, mesh)?;
        watch.observe_stage("localize", &made.graph);
        round += 1;
        // Shardings of a body's results are found when the body is partitioned: each round takes them past one more
        // body.
        if made.results_of_maps == known || round == MAX_REPARTITION_ROUNDS {
            return Ok((found, made));
        }
        known.clone_from(&made.results_of_maps);
    }
}

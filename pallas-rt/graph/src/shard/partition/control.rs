//! Partitioning of the bodies of loops and branches.
//!
//! A body reads blocks of values from outside as captured parameters. A value that a loop carries has one sharding,
//! that of the loop's result: initial values, and the values that the body returns, are resharded to it.
use super::{PartitionScope, Partitioner};
use crate::graph::{Graph, Var};
use crate::mesh::Sharding;
use crate::shard::propagation_program::{Region, Val};

impl Partitioner<'_> {
    /// Converts a region to a graph on blocks. `params` has the region's parameters with their shardings, `results` its
    /// results with those to which they are converted. Returns the graph, with parameters for values from outside after
    /// its own, and these values.
    pub(crate) fn partition_region(
        &mut self,
        region: &Region,
        params: &[(Val, Sharding)],
        results: &[(Val, Sharding)],
    ) -> (Graph, Vec<Val>) {
        self.scopes.push(PartitionScope::default());
        for (v, sharding) in params {
            self.add_param(*v, sharding.clone());
        }
        self.emit_nodes(region);
        let made: Vec<Var> = results.iter().map(|(v, sharding)| self.reshard_value(*v, sharding)).collect();
        let PartitionScope { mut graph, captured, .. } = self.scopes.pop().expect("the region's own");
        graph.results = made;
        (graph, captured)
    }

    /// Returns the blocks of values that a body reads from outside.
    pub(crate) fn captured_blocks(&mut self, captured: &[Val]) -> Vec<Var> {
        captured.iter().map(|&v| self.finalize_block(v).var).collect()
    }
}

/// Moves the last `captured_count` parameters of a body's graph, which are the captured ones, to the front.
pub(crate) fn move_captured_params_first(mut graph: Graph, captured_count: usize) -> Graph {
    let own = graph.params.len() - captured_count;
    graph.params.rotate_left(own);
    graph
}

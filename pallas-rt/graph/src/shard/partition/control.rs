//! Bodies of loops and branches on blocks.
//!
//! A body reads blocks of values from outside as parameters that are captured. What a loop carries has one sharding, that of
//! its results: initial values, and what the body gives, are resharded to it.
use super::{OpenGraph, Partition};
use crate::graph::{Graph, Var};
use crate::mesh::Sharding;
use crate::shard::view::{Region, Val};

impl Partition<'_> {
    /// Builds the graph of a region whose parameters have these shardings, and whose results are to have those. Returns it
    /// with the values that it reads from outside; its own parameters come first.
    pub(crate) fn region(
        &mut self,
        region: &Region,
        params: &[(Val, Sharding)],
        results: &[(Val, Sharding)],
    ) -> (Graph, Vec<Val>) {
        self.scopes.push(OpenGraph::default());
        for (v, sharding) in params {
            self.param(*v, sharding.clone());
        }
        self.nodes(region);
        let made: Vec<Var> = results.iter().map(|(v, sharding)| self.sharded(*v, sharding)).collect();
        let OpenGraph { mut graph, captured, .. } = self.scopes.pop().expect("the region's own");
        graph.results = made;
        (graph, captured)
    }

    /// The blocks of values from outside.
    pub(crate) fn outside(&mut self, captured: &[Val]) -> Vec<Var> {
        captured.iter().map(|&v| self.settled(v).var).collect()
    }
}

/// The graph of a body, whose last parameters are captured, with these in front.
pub(crate) fn captured_first(mut graph: Graph, captured: usize) -> Graph {
    let own = graph.params.len() - captured;
    graph.params.rotate_left(own);
    graph
}

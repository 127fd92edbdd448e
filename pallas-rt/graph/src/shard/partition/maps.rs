//! Calls of `shard_map` on blocks.
use super::{Block, Partition, Partitioned, partition};
use crate::call::ShardMap;
use crate::graph::{Graph, Var};
use crate::manual::without_casts;
use crate::mesh::{Mesh, Sharding};
use crate::refused::Refused;
use crate::shard::propagate::{Propagation, propagate};
use crate::shard::submesh::Submesh;
use crate::shard::view::{Node, Program};
use crate::simplify::inlined;
use pallas_ir::Literal;
use std::collections::HashMap;
use std::sync::Arc;

/// Times that a graph is partitioned to find shardings after bodies.
const MOST_ROUNDS: usize = 4;

/// Propagates declared shardings of parameters and results through a graph without calls of functions, and partitions it.
///
/// # Errors
/// As [`partition`].
pub fn divide(
    graph: &Graph,
    mesh: &Arc<Mesh>,
    params: &[Option<Sharding>],
    results: &[Option<Sharding>],
) -> Result<(Propagation, Partitioned), Refused> {
    let mut known = HashMap::new();
    let mut round = 0;
    loop {
        let found = propagate(Program::with_results(graph, &known), params, results);
        let made = partition(&found, mesh)?;
        round += 1;
        // Shardings of a body's results are found when the body is partitioned: each round takes them past one more body.
        if made.results_of_maps == known || round == MOST_ROUNDS {
            return Ok((found, made));
        }
        known.clone_from(&made.results_of_maps);
    }
}

impl Partition<'_> {
    /// The body of a `shard_map` stands in place of the call: it works on blocks.
    pub(super) fn shard_map(&mut self, node: &Node, map: &ShardMap) {
        if map.is_partial() {
            if let Err(refused) = self.partial(node, map) {
                self.refused.get_or_insert(refused);
                // What follows needs values, which nobody runs.
                for (&v, manual) in node.results.iter().zip(&map.gives) {
                    let sharding = manual.normal(self.mesh);
                    let ty = self.block_type(v, &sharding);
                    let zeros = self.graph().splat(Literal::new(ty.dtype, 0.0), &ty.shape);
                    self.define(v, zeros, sharding);
                }
            }
            return;
        }
        let takes = node.operands.iter().zip(&map.takes);
        let args: Vec<Var> = takes.map(|(&v, sharding)| self.divided(v, &sharding.normal(self.mesh))).collect();
        let made = self.graph().inline(&inlined(&without_casts(&map.body)), &args);
        for ((&v, var), gives) in node.results.iter().zip(made).zip(&map.gives) {
            self.define(v, var, gives.normal(self.mesh));
            let wanted = self.wanted(v);
            let var = self.divided(v, &wanted);
            self.define(v, var, wanted);
        }
    }

    /// A body that leaves axes automatic is partitioned for the mesh of these, with what is known about operands and results.
    fn partial(&mut self, node: &Node, map: &ShardMap) -> Result<(), Refused> {
        let auto = Submesh::of(self.mesh, &map.manual);
        let body = auto.inner_graph(&inlined(&without_casts(&map.body)))?;
        let (takes, gives) = (body.takes(), body.gives());
        let own: Vec<Sharding> = (node.operands.iter().zip(&map.takes).zip(&takes))
            .map(|((&v, manual), ty)| auto.within(manual, self.block(v).known(), &ty.shape))
            .collect();
        let wanted: Vec<Sharding> = (node.results.iter().zip(&map.gives).zip(&gives))
            .map(|((&v, manual), ty)| auto.within(manual, &self.wanted(v), &ty.shape))
            .collect();
        let some = |all: Vec<Sharding>| all.into_iter().map(Some).collect::<Vec<_>>();
        // Nobody declared what was found outside: a kernel that cannot follow it is no mistake.
        let (_, made) = divide(&body, &auto.mesh, &some(own), &some(wanted))
            .or_else(|_| divide(&body, &auto.mesh, &vec![None; takes.len()], &vec![None; gives.len()]))?;
        let operands = node.operands.iter().zip(&map.takes).zip(&made.params);
        let args: Vec<Var> = operands.map(|((&v, manual), own)| self.divided(v, &auto.around(manual, own))).collect();
        let vars = self.graph().inline(&auto.outer_graph(&made.graph), &args);
        let shardings: Vec<Sharding> =
            map.gives.iter().zip(&made.results).map(|(manual, own)| auto.around(manual, own)).collect();
        for ((&v, var), sharding) in node.results.iter().zip(vars).zip(&shardings) {
            self.say(v, Block { var, sharding: sharding.clone(), partial: None, said: None });
        }
        self.results_of_maps.insert(node.label, shardings);
        Ok(())
    }
}

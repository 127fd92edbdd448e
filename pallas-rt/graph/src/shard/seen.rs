//! Graphs whose constraints are on several meshes, as ones on one of them.
use crate::graph::{Graph, Op};
use crate::identity::Change;
use crate::mesh::{Mesh, Placed};
use std::sync::Arc;

/// The graph with all constraints on this mesh; `None` if a sharding on another one is none on this: see
/// [`Mesh::sharding_of`].
pub fn seen_from(graph: &Graph, mesh: &Arc<Mesh>) -> Option<Graph> {
    let mut to = graph.clone();
    for e in &mut to.equations {
        e.op = match &e.op {
            Op::Identity(op) => match op.data().placed() {
                Some(placed) if placed.mesh != *mesh => {
                    let sharding = mesh.sharding_of(&placed.mesh, &placed.sharding)?;
                    op.data().changed(Change::Placed(Placed { mesh: mesh.clone(), sharding })).into()
                }
                _ => continue,
            },
            // The body of a `shard_map` is on the mesh that it names.
            Op::Call(call) if call.mesh().is_none() && !call.graphs().is_empty() => {
                call.try_map(|graph| seen_from(graph, mesh).ok_or(())).ok()?.into()
            }
            _ => continue,
        };
    }
    Some(to)
}

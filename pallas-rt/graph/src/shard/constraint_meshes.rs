//! Translation of constraints on several meshes of the same devices to one of the meshes.
use crate::graph::{Graph, Op};
use crate::identity::IdentityUpdate;
use crate::mesh::{Mesh, MeshSharding};
use std::sync::Arc;

/// Translates all constraints of a graph to this mesh; returns `None` if a sharding on another mesh cannot be
/// translated: see [`Mesh::translate_sharding`].
pub fn translate_constraints(graph: &Graph, mesh: &Arc<Mesh>) -> Option<Graph> {
    let mut to = graph.clone();
    for e in &mut to.equations {
        e.op = match &e.op {
            Op::Identity(op) => match op.sharding_constraint() {
                Some(placed) if placed.mesh != *mesh => {
                    let sharding = mesh.translate_sharding(&placed.mesh, &placed.sharding)?;
                    op.data()
                        .with_update(IdentityUpdate::ReplaceSharding(MeshSharding { mesh: mesh.clone(), sharding }))
                        .into()
                }
                _ => continue,
            },
            // The body of a `shard_map` stays on the mesh that it names.
            Op::Call(call) if call.mesh().is_none() && !call.graphs().is_empty() => {
                call.try_map_graphs(|graph| translate_constraints(graph, mesh).ok_or(())).ok()?.into()
            }
            _ => continue,
        };
    }
    Some(to)
}

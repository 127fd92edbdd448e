//! The partitioner's part for `shard_map`: puts its body, which works on blocks already, in place of the call.
use super::ShardMap;
use crate::graph::Var;
use crate::manual::without_pcasts;
use crate::mesh::Sharding;
use crate::refusal::TransformError;
use crate::shard::partition::Partitioner;
use crate::shard::propagate_and_partition;
use crate::shard::propagation_program::Node;
use crate::shard::submesh::Submesh;
use crate::simplify::inlined;
use pallas_ir::Literal;

/// Appends the body of a `shard_map` in place of the call, with operands and results resharded to its shardings.
pub(super) fn inline_body(map: &ShardMap, to: &mut Partitioner<'_>, node: &Node) {
    if map.has_automatic_axes() {
        if let Err(refused) = inline_partly_manual_body(map, to, node) {
            to.record_error(refused);
            // After an error, later nodes still need values, which never run.
            for (&v, manual) in node.results.iter().zip(&map.gives) {
                let sharding = manual.normal(to.mesh);
                let ty = to.block_type(v, &sharding);
                let zeros = to.graph().splat(Literal::new(ty.dtype, 0.0), &ty.shape);
                to.define_value(v, zeros, sharding);
            }
        }
        return;
    }
    let takes = node.operands.iter().zip(&map.takes);
    let args: Vec<Var> = takes.map(|(&v, sharding)| to.reshard_value(v, &sharding.normal(to.mesh))).collect();
    let made = to.graph().inline(&inlined(&without_pcasts(&map.body)), &args);
    for ((&v, var), gives) in node.results.iter().zip(made).zip(&map.gives) {
        to.define_value(v, var, gives.normal(to.mesh));
        let wanted = to.propagated_sharding(v);
        let var = to.reshard_value(v, &wanted);
        to.define_value(v, var, wanted);
    }
}

/// Partitions a body over the automatic axes of the mesh, from the shardings that its operands and results have
/// outside, and appends it in place of the call; it is manual along the other axes.
fn inline_partly_manual_body(map: &ShardMap, to: &mut Partitioner<'_>, node: &Node) -> Result<(), TransformError> {
    let auto = Submesh::new(to.mesh, &map.manual);
    let body = auto.to_submesh_graph(&inlined(&without_pcasts(&map.body)))?;
    let (takes, gives) = (body.param_types(), body.result_types());
    let own: Vec<Sharding> = (node.operands.iter().zip(&map.takes).zip(&takes))
        .map(|((&v, manual), ty)| auto.strip_manual_axes(manual, &to.sharding_for_readers(v), &ty.shape))
        .collect();
    let wanted: Vec<Sharding> = (node.results.iter().zip(&map.gives).zip(&gives))
        .map(|((&v, manual), ty)| auto.strip_manual_axes(manual, &to.propagated_sharding(v), &ty.shape))
        .collect();
    let some = |all: Vec<Sharding>| all.into_iter().map(Some).collect::<Vec<_>>();
    // Shardings found outside are not declared, so if a kernel cannot follow them, the body is partitioned without
    // them.
    let (_, made) = propagate_and_partition(&body, &auto.mesh, &some(own), &some(wanted), &mut ()).or_else(|_| {
        propagate_and_partition(&body, &auto.mesh, &vec![None; takes.len()], &vec![None; gives.len()], &mut ())
    })?;
    let operands = node.operands.iter().zip(&map.takes).zip(&made.params);
    let args: Vec<Var> =
        operands.map(|((&v, manual), own)| to.reshard_value(v, &auto.prepend_manual_axes(manual, own))).collect();
    let vars = to.graph().inline(&auto.to_whole_mesh_graph(&made.graph), &args);
    let shardings: Vec<Sharding> =
        map.gives.iter().zip(&made.results).map(|(manual, own)| auto.prepend_manual_axes(manual, own)).collect();
    for ((&v, var), sharding) in node.results.iter().zip(vars).zip(&shardings) {
        to.define_pending_reshard(v, var, sharding.clone());
    }
    to.results_of_maps.insert(node.label, shardings);
    Ok(())
}

//! The partitioner's part for `shard_map`: puts its body, which works on blocks already, in place of the call.
use super::ShardMap;
use crate::graph::Var;
use crate::manual::without_casts;
use crate::mesh::Sharding;
use crate::refused::Refused;
use crate::shard::divide;
use crate::shard::partition::Partition;
use crate::shard::submesh::Submesh;
use crate::shard::view::Node;
use crate::simplify::inlined;
use pallas_ir::Literal;

/// Appends the body of a `shard_map` in place of the call, with operands and results resharded to its shardings.
pub(super) fn localized(map: &ShardMap, to: &mut Partition<'_>, node: &Node) {
    if map.is_partial() {
        if let Err(refused) = partial(map, to, node) {
            to.refuse(refused);
            // After an error, later nodes still need values, which never run.
            for (&v, manual) in node.results.iter().zip(&map.gives) {
                let sharding = manual.normal(to.mesh);
                let ty = to.block_type(v, &sharding);
                let zeros = to.graph().splat(Literal::new(ty.dtype, 0.0), &ty.shape);
                to.define(v, zeros, sharding);
            }
        }
        return;
    }
    let takes = node.operands.iter().zip(&map.takes);
    let args: Vec<Var> = takes.map(|(&v, sharding)| to.sharded(v, &sharding.normal(to.mesh))).collect();
    let made = to.graph().inline(&inlined(&without_casts(&map.body)), &args);
    for ((&v, var), gives) in node.results.iter().zip(made).zip(&map.gives) {
        to.define(v, var, gives.normal(to.mesh));
        let wanted = to.wanted(v);
        let var = to.sharded(v, &wanted);
        to.define(v, var, wanted);
    }
}

/// Partitions a body with automatic axes for the mesh of these axes, from what is known about operands and results
/// outside of it, and appends it.
fn partial(map: &ShardMap, to: &mut Partition<'_>, node: &Node) -> Result<(), Refused> {
    let auto = Submesh::of(to.mesh, &map.manual);
    let body = auto.inner_graph(&inlined(&without_casts(&map.body)))?;
    let (takes, gives) = (body.takes(), body.gives());
    let own: Vec<Sharding> = (node.operands.iter().zip(&map.takes).zip(&takes))
        .map(|((&v, manual), ty)| auto.within(manual, &to.known(v), &ty.shape))
        .collect();
    let wanted: Vec<Sharding> = (node.results.iter().zip(&map.gives).zip(&gives))
        .map(|((&v, manual), ty)| auto.within(manual, &to.wanted(v), &ty.shape))
        .collect();
    let some = |all: Vec<Sharding>| all.into_iter().map(Some).collect::<Vec<_>>();
    // Shardings found outside are not declared, so if a kernel cannot follow them, the body is partitioned without
    // them.
    let (_, made) = divide(&body, &auto.mesh, &some(own), &some(wanted), &mut ())
        .or_else(|_| divide(&body, &auto.mesh, &vec![None; takes.len()], &vec![None; gives.len()], &mut ()))?;
    let operands = node.operands.iter().zip(&map.takes).zip(&made.params);
    let args: Vec<Var> = operands.map(|((&v, manual), own)| to.sharded(v, &auto.around(manual, own))).collect();
    let vars = to.graph().inline(&auto.outer_graph(&made.graph), &args);
    let shardings: Vec<Sharding> =
        map.gives.iter().zip(&made.results).map(|(manual, own)| auto.around(manual, own)).collect();
    for ((&v, var), sharding) in node.results.iter().zip(vars).zip(&shardings) {
        to.define_as_found(v, var, sharding.clone());
    }
    to.results_of_maps.insert(node.label, shardings);
    Ok(())
}

//! Blocks that an axis divides unevenly: what lies beyond the array in the last ones.
use super::super::partition_traits::ShardedOperation;
use super::block_slicing::{emit_device_coordinate, emit_fill_past_end};
use super::partial_result_monoid;
use crate::graph::{Graph, Op};
use crate::mesh::axis::product_of_sizes;
use pallas_ir::StructuralOp;

/// Replaces the elements of last blocks beyond the array by neutral ones, where the operation adds them up.
pub(super) fn mask_padding(graph: &mut Graph, work: &mut ShardedOperation<'_>) {
    let folded: Vec<(usize, usize)> = match &work.op {
        Op::Structural(StructuralOp::Dot(dot)) => dot.contract.iter().flat_map(|&(i, j)| [(0, i), (1, j)]).collect(),
        Op::Structural(StructuralOp::Reduce(reduce)) => reduce.axes.iter().map(|&axis| (0, axis)).collect(),
        Op::Structural(StructuralOp::Conv(conv)) => vec![(0, conv.lhs[1]), (1, conv.rhs[1])],
        _ => return,
    };
    for (operand, dim) in folded {
        let (ty, sharding) = &work.operands[operand];
        let axes = &sharding.dims[dim].axes;
        if ty.shape[dim].is_multiple_of(product_of_sizes(axes)) {
            continue;
        }
        let neutral = partial_result_monoid(&work.op, ty.dtype).neutral(ty.dtype).expect("it combines parts");
        let coordinate = emit_device_coordinate(graph, work.mesh, axes);
        work.args[operand] = emit_fill_past_end(graph, work.args[operand], dim, coordinate, ty.shape[dim], neutral);
    }
}

//! Operations on blocks that address a sharded operand by data: gathers, scatters, updates of windows.
//!
//! ```text
//! gather    each device looks up the rows that it has, and has zeros for others: parts of a sum
//! scatter   each device scatters the updates that fall into its block; or all of its own updates, whose results are
//!           parts of a sum
//! update    each device writes the part of the window that falls into its block
//! ```
use super::block_slicing::{
    emit_block_iota, emit_broadcast, emit_device_coordinate, emit_fill_past_end, emit_range_mask,
};
use crate::build::constant_dims;
use crate::graph::{Graph, Var};
use crate::mesh::Mesh;
use crate::mesh::axis::{Axis, product_of_sizes};
use crate::shard::partition_traits::ShardedOperation;
use pallas_ir::structural::{IndexedWindows, Pad, Reduce};
use pallas_ir::{DType, Literal, ScalarOp, StructuralOp, Type};
use std::sync::Arc;

/// A sharded dimension of the array that a gather or scatter addresses by vectors of start indices.
struct IndexedDim {
    /// Index of its component in the vector of a start.
    start: usize,
    /// The axes that shard the dimension.
    axes: Vec<Axis>,
    /// Extent of the dimension.
    extent: usize,
    /// Extent of a block along the dimension.
    block: usize,
}

/// Returns the sharded dimensions of operand 0 that starts address and that are not dimensions of windows.
fn find_indexed_dims(graph: &Graph, work: &ShardedOperation<'_>, windows: &IndexedWindows) -> Vec<IndexedDim> {
    let (ty, sharding) = &work.operands[0];
    let block = &graph.ty(work.args[0]).shape;
    let of = |dim: usize| {
        let window = &windows.axes[dim];
        let start = window.start.filter(|_| window.axis.is_none())?;
        let axes = sharding.dims[dim].axes.clone();
        (product_of_sizes(&axes) > 1).then(|| IndexedDim { start, axes, extent: ty.shape[dim], block: block[dim] })
    };
    (0..block.len()).filter_map(of).collect()
}

/// Replaces the starts of a gather by starts in each device's own block; returns for each element of the result a bool
/// that is true if the block has it, or `None` if no addressed dimension is sharded.
pub(super) fn localize_gather_starts(
    graph: &mut Graph,
    work: &mut ShardedOperation<'_>,
    windows: &IndexedWindows,
) -> Option<Var> {
    let mut is_own: Option<Var> = None;
    let all = find_indexed_dims(graph, work, windows);
    for IndexedDim { start, axes, extent, block } in &all {
        let starts = work.args[1];
        let shape = graph.ty(starts).shape.clone();
        // Like a gather, clamp a start beyond the operand to its end.
        let bound = |graph: &mut Graph, n: usize| graph.splat(Literal::int(DType::I32, n as i64), &shape);
        let [zero, last] = [0, extent - 1].map(|n| bound(graph, n));
        let held = graph.push_valid(ScalarOp::Clamp, &[starts, zero, last]);
        let local = emit_positions_in_block(graph, work.mesh, held, axes, *block);
        let is_here = emit_range_mask(graph, local, 0, *block as i64);
        let last = bound(graph, block - 1);
        let local = graph.push_valid(ScalarOp::Clamp, &[local, zero, last]);
        let mut is_here = is_here;
        work.args[1] = match emit_start_component_mask(graph, &shape, windows, *start) {
            Some(of_start) => {
                let is_other = graph.push_valid(ScalarOp::Not, &[of_start]);
                is_here = graph.push_valid(ScalarOp::BitOr, &[is_here, is_other]);
                graph.push_valid(ScalarOp::Select, &[of_start, local, starts])
            }
            None => local,
        };
        is_own = Some(emit_and(graph, is_own, is_here));
    }
    let mut is_own = is_own?;
    if let Some(vector) = windows.vector {
        is_own = graph.push_valid(StructuralOp::from(Reduce::dropping(ScalarOp::BitAnd, vec![vector])), &[is_own]);
    }
    Some(emit_broadcast(graph, is_own, &work.gives.shape, &windows.index))
}

/// Appends the conjunction of an optional condition and a further one.
fn emit_and(graph: &mut Graph, so_far: Option<Var>, further: Var) -> Var {
    so_far.map_or(further, |other| graph.push_valid(ScalarOp::BitAnd, &[other, further]))
}

/// Appends positions relative to the first one of the device's block, whose extent is `block_extent`.
fn emit_positions_in_block(
    graph: &mut Graph,
    mesh: &Arc<Mesh>,
    positions: Var,
    axes: &[Axis],
    block_extent: usize,
) -> Var {
    let coordinate = emit_device_coordinate(graph, mesh, axes);
    let block = graph.i32_literal(block_extent as i64);
    let first = graph.push_valid(ScalarOp::Mul, &[coordinate, block]);
    let shape = graph.ty(positions).shape.clone();
    let first = emit_broadcast(graph, first, &shape, &[]);
    graph.push_valid(ScalarOp::Sub, &[positions, first])
}

/// Appends a bool for each entry of the array of start vectors: true if it is component number `component` of its
/// vector. Returns `None` if each vector has one component.
fn emit_start_component_mask(
    graph: &mut Graph,
    shape: &[usize],
    windows: &IndexedWindows,
    component: usize,
) -> Option<Var> {
    let vector = windows.vector.filter(|&dim| shape[dim] > 1)?;
    let entry = emit_block_iota(graph, vector, &Type::new(DType::I32, shape), None);
    let start = graph.splat(Literal::int(DType::I32, component as i64), shape);
    Some(graph.push_valid(ScalarOp::Eq, &[entry, start]))
}

/// Makes a scatter work on each device's blocks. If devices have different updates, whose results `monoid` combines
/// afterwards, only one of them starts from the operand, the others from neutral elements.
pub(super) fn localize_scatter(
    graph: &mut Graph,
    work: &mut ShardedOperation<'_>,
    windows: &IndexedWindows,
    monoid: Option<ScalarOp>,
) {
    let (ty, sharding) = work.operands[1].clone();
    // Updates for indices beyond the array are dropped.
    for (dim, own) in sharding.dims.iter().enumerate() {
        if !ty.shape[dim].is_multiple_of(product_of_sizes(&own.axes)) {
            let coordinate = emit_device_coordinate(graph, work.mesh, &own.axes);
            work.args[1] =
                emit_fill_past_end(graph, work.args[1], dim, coordinate, ty.shape[dim], Literal::int(DType::I32, -1));
        }
    }
    // A window that lies beyond the block is left out, like one beyond the operand.
    for IndexedDim { start, axes, block, .. } in find_indexed_dims(graph, work, windows) {
        let starts = work.args[1];
        let local = emit_positions_in_block(graph, work.mesh, starts, &axes, block);
        let shape = graph.ty(starts).shape.clone();
        work.args[1] = match emit_start_component_mask(graph, &shape, windows, start) {
            Some(of_start) => graph.push_valid(ScalarOp::Select, &[of_start, local, starts]),
            None => local,
        };
    }
    if let Some(op) = monoid.filter(|_| !work.parts.is_empty()) {
        let coordinate = emit_device_coordinate(graph, work.mesh, &work.parts);
        let zero = graph.i32_literal(0);
        let is_first = graph.push_valid(ScalarOp::Eq, &[coordinate, zero]);
        let Type { dtype, shape } = graph.ty(work.args[0]).clone();
        let is_first = emit_broadcast(graph, is_first, &shape, &[]);
        let neutral = graph.splat(op.neutral(dtype).expect("it combines parts"), &shape);
        work.args[0] = graph.push_valid(ScalarOp::Select, &[is_first, work.args[0], neutral]);
    }
}

/// Appends an update of a window on blocks: each device writes the part of the window that falls into its block.
/// Returns `None` if no dimension is sharded along which the window is shorter than the whole array (a block may be as
/// long as the window).
pub(crate) fn emit_window_update(graph: &mut Graph, work: &ShardedOperation<'_>) -> Option<Var> {
    let (ty, sharding) = &work.operands[0];
    let whole = &work.operands[1].0.shape;
    let is_partial = |dim: usize| whole[dim] != ty.shape[dim] && product_of_sizes(&sharding.dims[dim].axes) > 1;
    let partial: Vec<usize> = (0..whole.len()).filter(|&dim| is_partial(dim)).collect();
    if partial.is_empty() {
        return None;
    }
    let (x, part) = (work.args[0], work.args[1]);
    let (block, own) = (graph.ty(x).shape.clone(), graph.ty(part).shape.clone());
    let window: Vec<usize> = own.iter().zip(&block).map(|(m, n)| *m.min(n)).collect();
    let zero = graph.i32_literal(0);
    // The position in the block to which the window is written, and the first element of it that is there.
    let (mut to, mut from, mut is_there) = (work.args[2..].to_vec(), vec![zero; own.len()], None);
    let (mut low, mut high) = (vec![0; own.len()], vec![0; own.len()]);
    for &dim in &partial {
        let mut scalar = |n: usize| graph.i32_literal(n as i64);
        let [last, most, size] = [ty.shape[dim] - whole[dim], block[dim] - window[dim], window[dim]].map(&mut scalar);
        let start = graph.push_valid(ScalarOp::Clamp, &[to[dim], zero, last]);
        let local = emit_positions_in_block(graph, work.mesh, start, &sharding.dims[dim].axes, block[dim]);
        to[dim] = graph.push_valid(ScalarOp::Clamp, &[local, zero, most]);
        let first = graph.push_valid(ScalarOp::Sub, &[to[dim], local]);
        // The window is padded by as many elements as may be beyond the block.
        from[dim] = graph.push_valid(ScalarOp::Add, &[first, size]);
        (low[dim], high[dim]) = (window[dim], window[dim]);
        let position = emit_block_iota(graph, dim, &Type::new(DType::I32, &window[..]), None);
        let first = emit_broadcast(graph, first, &window, &[]);
        let element = graph.push_valid(ScalarOp::Add, &[position, first]);
        let is_in = emit_range_mask(graph, element, 0, own[dim] as i64);
        is_there = Some(emit_and(graph, is_there, is_in));
    }
    let fill = graph.literal(Literal::new(ty.dtype, 0.0));
    let padded = graph
        .push_valid(StructuralOp::from(Pad { low: constant_dims(&low), high: constant_dims(&high) }), &[part, fill]);
    let new = graph.push_dynamic_slice(padded, &window, &from);
    let old = graph.push_dynamic_slice(x, &window, &to);
    let merged = graph.push_valid(ScalarOp::Select, &[is_there.expect("a dimension is sharded"), new, old]);
    Some(graph.push_dynamic_update_slice(x, merged, &to))
}

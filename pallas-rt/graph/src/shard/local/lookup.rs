//! Operations on blocks that address a sharded operand by data: gathers, scatters, updates of windows.
//!
//! ```text
//! gather    each device looks up the rows that it has, and has zeros for others: parts of a sum
//! scatter   each device scatters the updates that fall into its block; or all of its own updates, whose results are parts of
//!           a sum
//! update    each device writes the part of the window that falls into its block
//! ```
use super::pieces::{between, coordinate, iota, spread, until};
use crate::build::dims;
use crate::graph::{Graph, Var};
use crate::mesh::Mesh;
use crate::mesh::axis::{Axis, size};
use crate::shard::regions::Sharded;
use pallas_ir::structural::{Pad, Reduce, Windows};
use pallas_ir::{DType, Literal, ScalarOp, StructuralOp, Type};
use std::sync::Arc;

/// A sharded dimension of operand 0 that starts of windows address.
struct Addressed {
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
fn addressed(graph: &Graph, work: &Sharded<'_>, windows: &Windows) -> Vec<Addressed> {
    let (ty, sharding) = &work.operands[0];
    let block = &graph.ty(work.args[0]).shape;
    let of = |dim: usize| {
        let window = &windows.axes[dim];
        let start = window.start.filter(|_| window.axis.is_none())?;
        let axes = sharding.dims[dim].axes.clone();
        (size(&axes) > 1).then(|| Addressed { start, axes, extent: ty.shape[dim], block: block[dim] })
    };
    (0..block.len()).filter_map(of).collect()
}

/// Replaces the starts of a gather by starts in each device's own block; returns for each element of the result a bool
/// that is true if the block has it, or `None` if no addressed dimension is sharded.
pub(super) fn own_rows(graph: &mut Graph, work: &mut Sharded<'_>, windows: &Windows) -> Option<Var> {
    let mut is_own: Option<Var> = None;
    let all = addressed(graph, work, windows);
    for Addressed { start, axes, extent, block } in &all {
        let starts = work.args[1];
        let shape = graph.ty(starts).shape.clone();
        // Like a gather, clamp a start beyond the operand to its end.
        let bound = |graph: &mut Graph, n: usize| graph.splat(Literal::int(DType::I32, n as i64), &shape);
        let [zero, last] = [0, extent - 1].map(|n| bound(graph, n));
        let held = graph.fitting(ScalarOp::Clamp, &[starts, zero, last]);
        let local = in_block(graph, work.mesh, held, axes, *block);
        let is_here = between(graph, local, 0, *block as i64);
        let last = bound(graph, block - 1);
        let local = graph.fitting(ScalarOp::Clamp, &[local, zero, last]);
        let mut is_here = is_here;
        work.args[1] = match of_start(graph, &shape, windows, *start) {
            Some(of_start) => {
                let is_other = graph.fitting(ScalarOp::Not, &[of_start]);
                is_here = graph.fitting(ScalarOp::BitOr, &[is_here, is_other]);
                graph.fitting(ScalarOp::Select, &[of_start, local, starts])
            }
            None => local,
        };
        is_own = Some(both(graph, is_own, is_here));
    }
    let mut is_own = is_own?;
    if let Some(vector) = windows.vector {
        is_own = graph.fitting(StructuralOp::from(Reduce::dropping(ScalarOp::BitAnd, vec![vector])), &[is_own]);
    }
    Some(spread(graph, is_own, &work.gives.shape, &windows.index))
}

/// Appends the conjunction of an optional condition and a further one.
fn both(graph: &mut Graph, so_far: Option<Var>, further: Var) -> Var {
    so_far.map_or(further, |other| graph.fitting(ScalarOp::BitAnd, &[other, further]))
}

/// Appends positions relative to the first one of the device's block, whose extent is `block`.
fn in_block(graph: &mut Graph, mesh: &Arc<Mesh>, positions: Var, axes: &[Axis], block: usize) -> Var {
    let coordinate = coordinate(graph, mesh, axes);
    let block = graph.int(block as i64);
    let first = graph.fitting(ScalarOp::Mul, &[coordinate, block]);
    let shape = graph.ty(positions).shape.clone();
    let first = spread(graph, first, &shape, &[]);
    graph.fitting(ScalarOp::Sub, &[positions, first])
}

/// Appends a bool for each entry of the starts: true if it is the component `start`. Returns `None` if each start has
/// one component.
fn of_start(graph: &mut Graph, shape: &[usize], windows: &Windows, start: usize) -> Option<Var> {
    let vector = windows.vector.filter(|&dim| shape[dim] > 1)?;
    let entry = iota(graph, vector, &Type::new(DType::I32, shape), None);
    let start = graph.splat(Literal::int(DType::I32, start as i64), shape);
    Some(graph.fitting(ScalarOp::Eq, &[entry, start]))
}

/// Makes a scatter work on each device's blocks. Along the axes `parts` devices have different updates, whose results
/// are combined afterwards: then only one of the devices starts from the operand, the others from neutral elements.
pub(super) fn scatter(graph: &mut Graph, work: &mut Sharded<'_>, windows: &Windows, op: Option<ScalarOp>) {
    let (ty, sharding) = work.operands[1].clone();
    // Updates for indices beyond the array are dropped.
    for (dim, own) in sharding.dims.iter().enumerate() {
        if !ty.shape[dim].is_multiple_of(size(&own.axes)) {
            let coordinate = coordinate(graph, work.mesh, &own.axes);
            work.args[1] = until(graph, work.args[1], dim, coordinate, ty.shape[dim], Literal::int(DType::I32, -1));
        }
    }
    // A window that lies beyond the block is left out, like one beyond the operand.
    for Addressed { start, axes, block, .. } in addressed(graph, work, windows) {
        let starts = work.args[1];
        let local = in_block(graph, work.mesh, starts, &axes, block);
        let shape = graph.ty(starts).shape.clone();
        work.args[1] = match of_start(graph, &shape, windows, start) {
            Some(of_start) => graph.fitting(ScalarOp::Select, &[of_start, local, starts]),
            None => local,
        };
    }
    if let Some(op) = op.filter(|_| !work.parts.is_empty()) {
        let coordinate = coordinate(graph, work.mesh, &work.parts);
        let zero = graph.int(0);
        let is_first = graph.fitting(ScalarOp::Eq, &[coordinate, zero]);
        let Type { dtype, shape } = graph.ty(work.args[0]).clone();
        let is_first = spread(graph, is_first, &shape, &[]);
        let neutral = graph.splat(op.neutral(dtype).expect("it combines parts"), &shape);
        work.args[0] = graph.fitting(ScalarOp::Select, &[is_first, work.args[0], neutral]);
    }
}

/// Appends an update of a window on blocks: each device writes the part of the window that falls into its block.
/// Returns `None` if no dimension is sharded along which the window is shorter than the whole array (a block may be as
/// long as the window).
pub(crate) fn update(graph: &mut Graph, work: &Sharded<'_>) -> Option<Var> {
    let (ty, sharding) = &work.operands[0];
    let whole = &work.operands[1].0.shape;
    let is_partial = |dim: usize| whole[dim] != ty.shape[dim] && size(&sharding.dims[dim].axes) > 1;
    let partial: Vec<usize> = (0..whole.len()).filter(|&dim| is_partial(dim)).collect();
    if partial.is_empty() {
        return None;
    }
    let (x, part) = (work.args[0], work.args[1]);
    let (block, own) = (graph.ty(x).shape.clone(), graph.ty(part).shape.clone());
    let window: Vec<usize> = own.iter().zip(&block).map(|(m, n)| *m.min(n)).collect();
    let zero = graph.int(0);
    // The position in the block to which the window is written, and the first element of it that is there.
    let (mut to, mut from, mut is_there) = (work.args[2..].to_vec(), vec![zero; own.len()], None);
    let (mut low, mut high) = (vec![0; own.len()], vec![0; own.len()]);
    for &dim in &partial {
        let mut scalar = |n: usize| graph.int(n as i64);
        let [last, most, size] = [ty.shape[dim] - whole[dim], block[dim] - window[dim], window[dim]].map(&mut scalar);
        let start = graph.fitting(ScalarOp::Clamp, &[to[dim], zero, last]);
        let local = in_block(graph, work.mesh, start, &sharding.dims[dim].axes, block[dim]);
        to[dim] = graph.fitting(ScalarOp::Clamp, &[local, zero, most]);
        let first = graph.fitting(ScalarOp::Sub, &[to[dim], local]);
        // The window is padded by as many elements as may be beyond the block.
        from[dim] = graph.fitting(ScalarOp::Add, &[first, size]);
        (low[dim], high[dim]) = (window[dim], window[dim]);
        let position = iota(graph, dim, &Type::new(DType::I32, &window[..]), None);
        let first = spread(graph, first, &window, &[]);
        let element = graph.fitting(ScalarOp::Add, &[position, first]);
        let is_in = between(graph, element, 0, own[dim] as i64);
        is_there = Some(both(graph, is_there, is_in));
    }
    let fill = graph.literal(Literal::new(ty.dtype, 0.0));
    let padded = graph.fitting(StructuralOp::from(Pad { low: dims(&low), high: dims(&high) }), &[part, fill]);
    let new = graph.window(padded, &window, &from);
    let old = graph.window(x, &window, &to);
    let merged = graph.fitting(ScalarOp::Select, &[is_there.expect("a dimension is sharded"), new, old]);
    Some(graph.with_window(x, merged, &to))
}

//! Operations on blocks that move elements along a sharded dimension: slices, pads, reversals, rolls, concatenations,
//! convolutions and folds of windows.
//!
//! ```text
//! block, rows of other blocks --concatenate--> rows that the device has --gather by position--> rows of the result, or
//!                                                                                               what its windows see
//! ```
//!
//! The access form of the operation says which rows each dimension reads; the dimensions are handled one after the
//! other. Afterwards the operation is only left to act on dimensions that are not sharded, or on windows whose elements
//! are all on the device.
use super::block_slicing::{
    DeviceGroup, emit_block_iota, emit_broadcast, emit_device_coordinate, emit_range_mask, join_blocks,
};
use super::halo::{AffineRead, HaloPlan, PermuteRound, plan_halo_exchange};
use crate::build::constant_dims;
use crate::graph::{Graph, Op, Var};
use crate::mesh::axis::product_of_sizes;
use crate::mesh::{AllGather, Collective, CollectiveKind, DeviceTable, Permute};
use crate::shard::partition_traits::ShardedOperation;
use pallas_ir::structural::{AccessForm, Concat, Gather, MapPiece, WindowDim};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};

/// Returns true if an operation that moves elements along dimension `dim` of its result can be done on blocks, where
/// the dimension has this extent and is sharded into `parts` blocks.
pub(in crate::shard) fn can_shard_dim(op: &StructuralOp, dim: usize, extent: usize, parts: usize) -> bool {
    match op {
        StructuralOp::Slice(_) | StructuralOp::Pad(_) | StructuralOp::Reverse(_) => true,
        StructuralOp::Roll(_) | StructuralOp::Concat(_) => true,
        // The windows of each device's first row have to begin at an element, not between dilated elements.
        StructuralOp::Conv(_) | StructuralOp::ReduceWindow(_) => window_over_dim(op, dim)
            .is_some_and(|(window, _)| extent.div_ceil(parts) as i64 * window.stride % window.dilation == 0),
        _ => false,
    }
}

/// Returns the window that moves over dimension `dim` of the result, and the dimension of operand 0 that it moves over.
fn window_over_dim(op: &StructuralOp, dim: usize) -> Option<(WindowDim, usize)> {
    match op {
        StructuralOp::ReduceWindow(op) => Some((op.windows[dim], dim)),
        StructuralOp::Conv(op) => {
            let i = op.out[2..].iter().position(|&out| out == dim)?;
            Some((op.windows[i], op.lhs[2 + i]))
        }
        _ => None,
    }
}

/// Brings each device the rows that an operation needs along sharded dimensions, and replaces the operation by one on
/// these rows. Returns the result if nothing is left to do with the rows.
pub(super) fn exchange_rows(graph: &mut Graph, work: &mut ShardedOperation<'_>) -> Option<Var> {
    let Op::Structural(op) = &work.op else { return None };
    let shapes: Vec<Vec<Dim>> = work.operands.iter().map(|(ty, _)| ty.dims()).collect();
    let shapes: Vec<&[Dim]> = shapes.iter().map(|dims| &dims[..]).collect();
    let (mut left, access) = (op.clone(), op.access(&shapes));
    let mut is_moved = false;
    for dim in 0..work.gives.shape.len() {
        let (extent, axes) = (work.result.0.shape[dim], work.result.1.dims[dim].axes.clone());
        let group = DeviceGroup { mesh: work.mesh, axes: &axes };
        if product_of_sizes(&axes) == 1 {
            continue;
        }
        let count = work.gives.shape[dim];
        if let Some((window, from)) = window_over_dim(&left, dim) {
            if let Some(seen) = find_window_coverage(&left, work, dim, window, from) {
                let fill = Some(graph.literal(seen.fill));
                let extent = work.operands[0].0.shape[from];
                let sources = [RowSource { block: work.args[0], extent, reads: vec![seen.read] }];
                let rows = RowExchange { group, dim: from, count: seen.count, sources: &sources, fill };
                work.args[0] = rows.emit_exchange(graph);
                replace_window(&mut left, dim, seen.window);
            }
        } else if let AccessForm::Map(pieces) = &access {
            if let Some(sources) = find_moved_rows(pieces, work, dim, extent) {
                let fill = pieces.iter().find(|piece| piece.index.is_empty()).map(|piece| work.args[piece.operand]);
                work.args[0] = RowExchange { group, dim, count, sources: &sources, fill }.emit_exchange(graph);
                is_moved = true;
            }
            if remove_movement(&mut left, dim) {
                return Some(work.args[0]);
            }
        }
    }
    let is_done = is_moved && graph.ty(work.args[0]).shape == work.gives.shape && is_free_of_movement(&left);
    work.op = left.into();
    is_done.then(|| work.args[0])
}

/// Returns the device's block of an array whose blocks along `dim` get `new_block_extent` elements instead of the
/// present number. `group` shards the dimension, whose whole extent is `whole_extent`; elements beyond it are
/// arbitrary.
pub(crate) fn resize_blocks(
    graph: &mut Graph,
    group: DeviceGroup<'_>,
    block: Var,
    dim: usize,
    [whole_extent, new_block_extent]: [usize; 2],
) -> Var {
    if graph.ty(block).shape[dim] == new_block_extent {
        return block;
    }
    let own = AffineRead { offset: 0, step: new_block_extent as i64, stride: 1, within: 0..whole_extent as i64 };
    read_rows(graph, group, block, dim, new_block_extent, vec![own])
}

/// Returns the `count` rows along `dim` that each device reads from the blocks of all devices of a group; rows that no
/// read covers are arbitrary.
pub(super) fn read_rows(
    graph: &mut Graph,
    group: DeviceGroup<'_>,
    block: Var,
    dim: usize,
    count: usize,
    reads: Vec<AffineRead>,
) -> Var {
    let extent = graph.ty(block).shape[dim] * product_of_sizes(group.axes);
    let sources = [RowSource { block, extent, reads }];
    RowExchange { group, dim, count, sources: &sources, fill: None }.emit_exchange(graph)
}

/// Range of rows along a dimension that each device reads of a sharded array.
pub(in crate::shard) struct RowRange {
    /// The dimension along which rows are read.
    pub dim: usize,
    /// Extent of the whole array along the dimension.
    pub extent: usize,
    /// Number of rows that each device reads.
    pub count: usize,
    /// The row at which the first device begins to read.
    pub offset: i64,
    /// Distance between the first rows of adjacent devices.
    pub step: i64,
}

/// Returns the rows that each device reads, with zeros in place of rows that the array does not have.
pub(in crate::shard) fn read_zero_padded_rows(
    graph: &mut Graph,
    group: DeviceGroup<'_>,
    block: Var,
    range: &RowRange,
) -> Var {
    let &RowRange { dim, extent, count, offset, step } = range;
    let reads = vec![AffineRead { offset, step, stride: 1, within: 0..extent as i64 }];
    let fill = Some(graph.literal(Literal::new(graph.ty(block).dtype, 0.0)));
    RowExchange { group, dim, count, sources: &[RowSource { block, extent, reads }], fill }.emit_exchange(graph)
}

/// Removes from an operation the movement along a dimension, which has been done; returns true if nothing else is left
/// of it.
fn remove_movement(op: &mut StructuralOp, dim: usize) -> bool {
    match op {
        StructuralOp::Slice(slice) => (slice.start[dim], slice.stride[dim]) = (0, 1),
        StructuralOp::Pad(pad) => (pad.low[dim], pad.high[dim]) = (0i64.into(), 0i64.into()),
        StructuralOp::Reverse(reverse) => reverse.axes.retain(|&axis| axis != dim),
        StructuralOp::Roll(roll) => return roll.axis == dim,
        StructuralOp::Concat(concat) => return concat.axis == dim,
        _ => {}
    }
    false
}

/// Returns true for a slice that begins at 0 with stride 1, a pad by nothing, or a reversal of no axis; the slice may
/// still cut off elements at the end.
fn is_free_of_movement(op: &StructuralOp) -> bool {
    match op {
        StructuralOp::Slice(slice) => slice.start.iter().all(|&n| n == 0) && slice.stride.iter().all(|&n| n == 1),
        StructuralOp::Pad(pad) => pad.low.iter().chain(&pad.high).all(|n| n.as_number() == Some(0)),
        StructuralOp::Reverse(reverse) => reverse.axes.is_empty(),
        _ => false,
    }
}

/// Returns the rows that each operand contributes along dimension `dim` of the result, which has this extent; `None` if
/// every element keeps its position.
fn find_moved_rows(
    pieces: &[MapPiece],
    work: &ShardedOperation<'_>,
    dim: usize,
    extent: usize,
) -> Option<Vec<RowSource>> {
    let mut sources: Vec<RowSource> = vec![];
    for piece in pieces {
        let Some(index) = piece.index.iter().find(|index| index.axis == Some(dim)) else { continue };
        let number = |n: &Dim| n.as_number().expect("an access form has sizes of numbers");
        let bound = piece.bounds.iter().find(|bound| bound.0 == dim);
        let (low, high) = bound.map_or((0, extent as i64), |(_, low, high)| (number(low), number(high)));
        let (stride, offset) = (number(&index.stride), number(&index.offset));
        let [first, last] = [low, high - 1].map(|i| offset + stride * i);
        let within = if low < high { first.min(last)..first.max(last) + 1 } else { 0..0 };
        let read = AffineRead { offset, step: stride * work.gives.shape[dim] as i64, stride, within };
        let block = work.args[piece.operand];
        match sources.iter_mut().find(|source| source.block == block) {
            Some(source) => source.reads.push(read),
            None => {
                let extent = work.operands[piece.operand].0.shape[dim];
                sources.push(RowSource { block, extent, reads: vec![read] });
            }
        }
    }
    let stays = |source: &RowSource| {
        source.extent == extent && source.reads.iter().all(|read| read.offset == 0 && read.stride == 1)
    };
    (!sources.iter().all(stays)).then_some(sources)
}

/// The elements of operand 0 that the windows of each device cover along a dimension.
struct WindowCoverage {
    /// The rows of the operand to read.
    read: AffineRead,
    /// Number of rows that each device reads.
    count: usize,
    /// The window that is to move over the rows that a device has read.
    window: WindowDim,
    /// The value of rows beyond the array: neutral for the operation.
    fill: Literal,
}

/// Returns the rows along dimension `operand_dim` of operand 0 that the windows for the result's dimension `dim` cover;
/// `None` if each window is one element at its own position.
fn find_window_coverage(
    op: &StructuralOp,
    work: &ShardedOperation<'_>,
    dim: usize,
    window: WindowDim,
    operand_dim: usize,
) -> Option<WindowCoverage> {
    let ty = work.operands[0].0;
    let (extent, places, count) = (ty.shape[operand_dim], work.result.0.shape[dim], work.gives.shape[dim]);
    let (size, fill) = match op {
        StructuralOp::ReduceWindow(op) => (op.size[dim], op.op.neutral(ty.dtype).expect("a monoid")),
        StructuralOp::Conv(op) => {
            let i = op.out[2..].iter().position(|&out| out == dim).expect("a place");
            (work.operands[1].0.shape[op.rhs[2 + i]] as i64, Literal::new(ty.dtype, 0.0))
        }
        _ => return None,
    };
    if size == 1 && (WindowDim { spacing: 1, ..window }) == WindowDim::PLAIN {
        return None;
    }
    // Dilated elements lie `apart` positions from each other; the first one that a device reads is `begin` positions
    // before its first window.
    let (apart, reach) = (window.dilation, (size - 1) * window.spacing);
    let begin = (-window.low).rem_euclid(apart);
    let end = begin + (count as i64 - 1) * window.stride + reach;
    let seen = end / apart + 1;
    let last = ((places as i64 - 1) * window.stride - window.low + reach).div_euclid(apart);
    let read = AffineRead {
        offset: (-window.low - begin) / apart,
        step: count as i64 * window.stride / apart,
        stride: 1,
        within: 0..(last + 1).clamp(0, extent as i64),
    };
    let window = WindowDim { low: -begin, high: end - (seen - 1) * apart, ..window };
    Some(WindowCoverage { read, count: seen as usize, window, fill })
}

/// Replaces the window that an operation moves over a dimension of its result.
fn replace_window(op: &mut StructuralOp, dim: usize, window: WindowDim) {
    match op {
        StructuralOp::ReduceWindow(op) => op.windows[dim] = window,
        StructuralOp::Conv(op) => {
            let i = op.out[2..].iter().position(|&out| out == dim).expect("a place");
            op.windows[i] = window;
        }
        _ => {}
    }
}

/// An operand whose rows devices read, with what they read of it.
struct RowSource {
    /// The device's block of the operand.
    block: Var,
    /// Extent of the whole operand along the dimension.
    extent: usize,
    /// The rows that each device reads.
    reads: Vec<AffineRead>,
}

/// Rows along a dimension that each device reads from its own blocks and from those of other devices.
struct RowExchange<'a> {
    /// The devices along the axes that shard the dimension.
    group: DeviceGroup<'a>,
    dim: usize,
    /// Number of rows that each device gets.
    count: usize,
    sources: &'a [RowSource],
    /// A scalar for rows that no read covers; `None`: these are arbitrary.
    fill: Option<Var>,
}

/// Consecutive rows of a source that a device has after communication.
struct AvailableRows {
    /// Index in the whole source of the first row, an i32 scalar; `None`: 0.
    first: Option<Var>,
    /// Number of consecutive rows.
    count: usize,
    /// Position of the first row among all rows that the device has.
    at: usize,
}

impl RowExchange<'_> {
    /// Appends the collectives that bring each device its rows; returns the rows of the device.
    fn emit_exchange(&self, graph: &mut Graph) -> Var {
        let device = emit_device_coordinate(graph, self.group.mesh, self.group.axes);
        let (mut parts, mut held, mut is_own) = (vec![], vec![], true);
        for source in self.sources {
            let block = graph.ty(source.block).shape[self.dim];
            let plan =
                plan_halo_exchange(&source.reads, self.count, source.extent, block, product_of_sizes(self.group.axes));
            is_own &= plan == HaloPlan::Rounds { keeps_own: true, rounds: vec![] };
            held.push(self.emit_row_transfers(graph, source.block, device, &plan, &mut parts));
        }
        let shape = match self.sources {
            [source, ..] => [&graph.ty(source.block).shape[..]].concat(),
            [] => unreachable!("an operation has operands"),
        };
        let in_place = |read: &AffineRead| (read.offset, read.step, read.stride) == (0, shape[self.dim] as i64, 1);
        let positions = self.emit_row_positions(graph, device);
        let rows = match &parts[..] {
            [] => {
                let shape: Vec<usize> = with_extent(&shape, self.dim, self.count);
                let fill = self.fill.expect("rows that are not read are filled");
                return emit_broadcast(graph, fill, &shape, &[]);
            }
            [own] if is_own && self.count == shape[self.dim] && self.sources[0].reads.iter().all(in_place) => *own,
            _ => {
                let index = self.emit_row_index(graph, &positions, &held);
                let all = match &parts[..] {
                    [one] => *one,
                    _ => graph.push_valid(StructuralOp::from(Concat { axis: self.dim }), &parts),
                };
                emit_take(graph, all, index, self.dim)
            }
        };
        let Some(fill) = self.fill else { return rows };
        let is_read: Vec<Var> = positions.iter().flatten().map(|(_, is_read)| *is_read).collect();
        let is_read = is_read.into_iter().reduce(|a, b| graph.push_valid(ScalarOp::BitOr, &[a, b]));
        let shape = graph.ty(rows).shape.clone();
        let fill = emit_broadcast(graph, fill, &shape, &[]);
        let Some(is_read) = is_read else { return fill };
        let is_read = emit_broadcast(graph, is_read, &shape, &[self.dim]);
        graph.push_valid(ScalarOp::Select, &[is_read, rows, fill])
    }

    /// Returns by source and by read two arrays with an element for each row: the row of the source that it is, and a
    /// bool that is true if the read covers it.
    fn emit_row_positions(&self, graph: &mut Graph, device: Var) -> Vec<Vec<(Var, Var)>> {
        let ty = Type::new(DType::I32, [self.count]);
        let own = emit_block_iota(graph, 0, &ty, None);
        let mut of = |read: &AffineRead| {
            let scaled = |graph: &mut Graph, x: Var, by: i64| {
                let shape = graph.ty(x).shape.clone();
                let by = graph.splat(Literal::int(DType::I32, by), &shape);
                graph.push_valid(ScalarOp::Mul, &[x, by])
            };
            let rows = if read.stride == 1 { own } else { scaled(graph, own, read.stride) };
            let step = scaled(graph, device, read.step);
            let offset = graph.i32_literal(read.offset);
            let first = graph.push_valid(ScalarOp::Add, &[step, offset]);
            let first = emit_broadcast(graph, first, &[self.count], &[]);
            let element = graph.push_valid(ScalarOp::Add, &[rows, first]);
            let is_read = emit_range_mask(graph, element, read.within.start, read.within.end);
            (element, is_read)
        };
        self.sources.iter().map(|source| source.reads.iter().map(&mut of).collect()).collect()
    }

    /// Appends the collectives by which devices exchange rows of the operand with this `block`, as `plan` says, and
    /// adds the arrays of rows that each device has then to `parts`. Returns which rows of the whole operand they are.
    fn emit_row_transfers(
        &self,
        graph: &mut Graph,
        block: Var,
        device: Var,
        plan: &HaloPlan,
        parts: &mut Vec<Var>,
    ) -> Vec<AvailableRows> {
        let shape = graph.ty(block).shape.clone();
        let (dim, own) = (self.dim, shape[self.dim]);
        let mut at: usize = parts.iter().map(|&part| graph.ty(part).shape[dim]).sum();
        let exchange = |graph: &mut Graph, kind: CollectiveKind, args: &[Var]| {
            graph.push_valid(Collective { kind, mesh: self.group.mesh.clone(), axes: self.group.axes.to_vec() }, args)
        };
        let mut held = vec![];
        let mut add = |part: Var, count: usize, first: Option<Var>| {
            parts.push(part);
            held.push(AvailableRows { first, count, at });
            at += count;
        };
        match plan {
            HaloPlan::Gather => {
                let all = exchange(graph, AllGather.into(), &[block]);
                let (mut counts, devices) = (vec![1; shape.len()], product_of_sizes(self.group.axes));
                counts[dim] = devices;
                let all = join_blocks(graph, all, &counts, &with_extent(&shape, dim, own * devices));
                add(all, own * devices, None);
            }
            HaloPlan::Rounds { keeps_own, rounds } => {
                if *keeps_own {
                    let extent = graph.i32_literal(own as i64);
                    let first = graph.push_valid(ScalarOp::Mul, &[device, extent]);
                    add(block, own, Some(first));
                }
                for PermuteRound { sources, rows, sent, received } in rounds {
                    let table = |graph: &mut Graph, all: &[usize]| {
                        exchange(graph, DeviceTable(all.iter().map(|&n| n as i32).collect()).into(), &[])
                    };
                    let mut payload = block;
                    if *rows < own {
                        let zero = graph.i32_literal(0);
                        let mut starts = vec![zero; shape.len()];
                        starts[dim] = table(graph, sent);
                        let size = with_extent(&shape, dim, *rows);
                        payload = graph.push_dynamic_slice(block, &size, &starts);
                    }
                    let first = table(graph, received);
                    let received = exchange(graph, Permute(sources.clone()).into(), &[payload]);
                    add(received, *rows, Some(first));
                }
            }
        }
        held
    }

    /// Returns for each row its position among the rows that the device has; any position if no read covers it.
    fn emit_row_index(&self, graph: &mut Graph, positions: &[Vec<(Var, Var)>], held: &[Vec<AvailableRows>]) -> Var {
        let mut index: Option<Var> = None;
        for (positions, held) in positions.iter().zip(held) {
            for &(element, is_read) in positions {
                let Some(own) = self.emit_index_in_source(graph, element, held) else { continue };
                let select = |other| graph.push_valid(ScalarOp::Select, &[is_read, own, other]);
                index = Some(index.map_or(own, select));
            }
        }
        index.expect("some rows are there")
    }

    /// Returns for each row, whose number in a source `element` has, its index among all rows that the device has;
    /// `None` if `held`, the rows of this source that it has, is empty.
    fn emit_index_in_source(&self, graph: &mut Graph, element: Var, held: &[AvailableRows]) -> Option<Var> {
        let mut index: Option<Var> = None;
        for AvailableRows { first, count, at } in held {
            let from_first = match first {
                Some(first) => {
                    let first = emit_broadcast(graph, *first, &[self.count], &[]);
                    graph.push_valid(ScalarOp::Sub, &[element, first])
                }
                None => element,
            };
            let shift = graph.splat(Literal::int(DType::I32, *at as i64), &[self.count]);
            let own = graph.push_valid(ScalarOp::Add, &[from_first, shift]);
            index = Some(match index {
                Some(other) => {
                    let is_here = emit_range_mask(graph, from_first, 0, *count as i64);
                    graph.push_valid(ScalarOp::Select, &[is_here, own, other])
                }
                None => own,
            });
        }
        index
    }
}

/// Returns the rows of an array at these positions along a dimension.
fn emit_take(graph: &mut Graph, x: Var, index: Var, dim: usize) -> Var {
    let shape = graph.ty(x).shape.clone();
    let op = Gather {
        offset_dims: (0..shape.len()).filter(|&other| other != dim).collect(),
        collapsed_slice_dims: vec![dim],
        operand_batching_dims: vec![],
        start_indices_batching_dims: vec![],
        start_index_map: vec![dim],
        index_vector_dim: 1,
        slice_sizes: constant_dims(&with_extent(&shape, dim, 1)),
    };
    graph.push_valid(StructuralOp::from(op), &[x, index])
}

/// Returns a shape with another extent along a dimension.
fn with_extent(shape: &[usize], dim: usize, extent: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[dim] = extent;
    shape
}

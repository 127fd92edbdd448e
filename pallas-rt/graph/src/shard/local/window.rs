//! Operations on blocks that move elements along a sharded dimension: slices, pads, reversals, rolls, concatenations,
//! convolutions and folds of windows.
//!
//! ```text
//! block, rows of other blocks --concatenate--> rows that the device has --gather by position--> rows of the result, or what
//!                                                                                               its windows see
//! ```
//!
//! The access form of the operation says which rows each dimension reads; the dimensions are handled one after the
//! other. Afterwards the operation is only left to act on dimensions that are not sharded, or on windows whose elements
//! are all on the device.
use super::halo::{Plan, Read, Round, plan};
use super::pieces::{Group, between, coordinate, iota, joined, spread};
use crate::build::dims;
use crate::graph::{Graph, Op, Var};
use crate::mesh::axis::size;
use crate::mesh::{AllGather, Collective, CollectiveKind, DeviceTable, Permute};
use crate::shard::regions::Sharded;
use pallas_ir::structural::{Access, Concat, Gather, Piece, WindowDim};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};

/// Returns true if an operation that moves elements along dimension `dim` of its result can be done on blocks, where
/// the dimension has this extent and is sharded into `parts` blocks.
pub(in crate::shard) fn moves(op: &StructuralOp, dim: usize, extent: usize, parts: usize) -> bool {
    match op {
        StructuralOp::Slice(_) | StructuralOp::Pad(_) | StructuralOp::Reverse(_) => true,
        StructuralOp::Roll(_) | StructuralOp::Concat(_) => true,
        // The windows of each device's first row have to begin at an element, not between dilated elements.
        StructuralOp::Conv(_) | StructuralOp::ReduceWindow(_) => windowed(op, dim)
            .is_some_and(|(window, _)| extent.div_ceil(parts) as i64 * window.stride % window.dilation == 0),
        _ => false,
    }
}

/// Returns the window that moves over dimension `dim` of the result, and the dimension of operand 0 that it moves over.
fn windowed(op: &StructuralOp, dim: usize) -> Option<(WindowDim, usize)> {
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
pub(super) fn exchange(graph: &mut Graph, work: &mut Sharded<'_>) -> Option<Var> {
    let Op::Structural(op) = &work.op else { return None };
    let shapes: Vec<Vec<Dim>> = work.operands.iter().map(|(ty, _)| ty.dims()).collect();
    let shapes: Vec<&[Dim]> = shapes.iter().map(|dims| &dims[..]).collect();
    let (mut left, access) = (op.clone(), op.access(&shapes));
    let mut is_moved = false;
    for dim in 0..work.gives.shape.len() {
        let (extent, axes) = (work.result.0.shape[dim], work.result.1.dims[dim].axes.clone());
        let group = Group { mesh: work.mesh, axes: &axes };
        if size(&axes) == 1 {
            continue;
        }
        let count = work.gives.shape[dim];
        if let Some((window, from)) = windowed(&left, dim) {
            if let Some(seen) = seen(&left, work, dim, window, from) {
                let fill = Some(graph.literal(seen.fill));
                let extent = work.operands[0].0.shape[from];
                let sources = [Source { block: work.args[0], extent, reads: vec![seen.read] }];
                let rows = Rows { group, dim: from, count: seen.count, sources: &sources, fill };
                work.args[0] = rows.read(graph);
                see(&mut left, dim, seen.window);
            }
        } else if let Access::Map(pieces) = &access {
            if let Some(sources) = moved(pieces, work, dim, extent) {
                let fill = pieces.iter().find(|piece| piece.index.is_empty()).map(|piece| work.args[piece.operand]);
                work.args[0] = Rows { group, dim, count, sources: &sources, fill }.read(graph);
                is_moved = true;
            }
            if is_still(&mut left, dim) {
                return Some(work.args[0]);
            }
        }
    }
    let is_done = is_moved && graph.ty(work.args[0]).shape == work.gives.shape && is_identity(&left);
    work.op = left.into();
    is_done.then(|| work.args[0])
}

/// Returns the device's block of an array whose blocks along `dim` get `count` elements instead of the present number.
/// `group` shards the dimension, whose whole extent is `extent`; elements beyond it are arbitrary.
pub(crate) fn regrouped(
    graph: &mut Graph,
    group: Group<'_>,
    block: Var,
    dim: usize,
    [extent, count]: [usize; 2],
) -> Var {
    if graph.ty(block).shape[dim] == count {
        return block;
    }
    let own = Read { offset: 0, step: count as i64, stride: 1, within: 0..extent as i64 };
    read(graph, group, block, dim, count, vec![own])
}

/// Returns the `count` rows along `dim` that each device reads from the blocks of all devices of a group; rows that no
/// read covers are arbitrary.
pub(super) fn read(graph: &mut Graph, group: Group<'_>, block: Var, dim: usize, count: usize, reads: Vec<Read>) -> Var {
    let extent = graph.ty(block).shape[dim] * size(group.axes);
    let sources = [Source { block, extent, reads }];
    Rows { group, dim, count, sources: &sources, fill: None }.read(graph)
}

/// Range of rows along a dimension that each device reads of a sharded array.
pub(in crate::shard) struct Met {
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
pub(in crate::shard) fn met(graph: &mut Graph, group: Group<'_>, block: Var, met: &Met) -> Var {
    let &Met { dim, extent, count, offset, step } = met;
    let reads = vec![Read { offset, step, stride: 1, within: 0..extent as i64 }];
    let fill = Some(graph.literal(Literal::new(graph.ty(block).dtype, 0.0)));
    Rows { group, dim, count, sources: &[Source { block, extent, reads }], fill }.read(graph)
}

/// Removes from an operation the movement along a dimension, which has been done; returns true if nothing else is left
/// of it.
fn is_still(op: &mut StructuralOp, dim: usize) -> bool {
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
fn is_identity(op: &StructuralOp) -> bool {
    match op {
        StructuralOp::Slice(slice) => slice.start.iter().all(|&n| n == 0) && slice.stride.iter().all(|&n| n == 1),
        StructuralOp::Pad(pad) => pad.low.iter().chain(&pad.high).all(|n| n.as_number() == Some(0)),
        StructuralOp::Reverse(reverse) => reverse.axes.is_empty(),
        _ => false,
    }
}

/// Returns the rows that each operand contributes along dimension `dim` of the result, which has this extent; `None` if
/// every element keeps its position.
fn moved(pieces: &[Piece], work: &Sharded<'_>, dim: usize, extent: usize) -> Option<Vec<Source>> {
    let mut sources: Vec<Source> = vec![];
    for piece in pieces {
        let Some(index) = piece.index.iter().find(|index| index.axis == Some(dim)) else { continue };
        let number = |n: &Dim| n.as_number().expect("an access form has sizes of numbers");
        let bound = piece.bounds.iter().find(|bound| bound.0 == dim);
        let (low, high) = bound.map_or((0, extent as i64), |(_, low, high)| (number(low), number(high)));
        let (stride, offset) = (number(&index.stride), number(&index.offset));
        let [first, last] = [low, high - 1].map(|i| offset + stride * i);
        let within = if low < high { first.min(last)..first.max(last) + 1 } else { 0..0 };
        let read = Read { offset, step: stride * work.gives.shape[dim] as i64, stride, within };
        let block = work.args[piece.operand];
        match sources.iter_mut().find(|source| source.block == block) {
            Some(source) => source.reads.push(read),
            None => {
                let extent = work.operands[piece.operand].0.shape[dim];
                sources.push(Source { block, extent, reads: vec![read] });
            }
        }
    }
    let stays = |source: &Source| {
        source.extent == extent && source.reads.iter().all(|read| read.offset == 0 && read.stride == 1)
    };
    (!sources.iter().all(stays)).then_some(sources)
}

/// The elements of operand 0 that the windows of each device cover along a dimension.
struct Seen {
    /// The rows of the operand to read.
    read: Read,
    /// Number of rows that each device reads.
    count: usize,
    /// The window that is to move over the rows that a device has read.
    window: WindowDim,
    /// The value of rows beyond the array: neutral for the operation.
    fill: Literal,
}

/// Returns the rows along dimension `from` of operand 0 that the windows for the result's dimension `dim` cover; `None`
/// if each window is one element at its own position.
fn seen(op: &StructuralOp, work: &Sharded<'_>, dim: usize, window: WindowDim, from: usize) -> Option<Seen> {
    let ty = work.operands[0].0;
    let (extent, places, count) = (ty.shape[from], work.result.0.shape[dim], work.gives.shape[dim]);
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
    let read = Read {
        offset: (-window.low - begin) / apart,
        step: count as i64 * window.stride / apart,
        stride: 1,
        within: 0..(last + 1).clamp(0, extent as i64),
    };
    let window = WindowDim { low: -begin, high: end - (seen - 1) * apart, ..window };
    Some(Seen { read, count: seen as usize, window, fill })
}

/// Replaces the window that an operation moves over a dimension of its result.
fn see(op: &mut StructuralOp, dim: usize, window: WindowDim) {
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
struct Source {
    /// The device's block of the operand.
    block: Var,
    /// Extent of the whole operand along the dimension.
    extent: usize,
    /// The rows that each device reads.
    reads: Vec<Read>,
}

/// Rows along a dimension that each device reads from its own blocks and from those of other devices.
struct Rows<'a> {
    /// The devices along the axes that shard the dimension.
    group: Group<'a>,
    dim: usize,
    /// Number of rows that each device gets.
    count: usize,
    sources: &'a [Source],
    /// A scalar for rows that no read covers; `None`: these are arbitrary.
    fill: Option<Var>,
}

/// Consecutive rows of a source that a device has after communication.
struct Held {
    /// Index in the whole source of the first row, an i32 scalar; `None`: 0.
    first: Option<Var>,
    /// Number of consecutive rows.
    count: usize,
    /// Position of the first row among all rows that the device has.
    at: usize,
}

impl Rows<'_> {
    /// Appends the collectives that bring each device its rows; returns the rows of the device.
    fn read(&self, graph: &mut Graph) -> Var {
        let device = coordinate(graph, self.group.mesh, self.group.axes);
        let (mut parts, mut held, mut is_own) = (vec![], vec![], true);
        for source in self.sources {
            let block = graph.ty(source.block).shape[self.dim];
            let plan = plan(&source.reads, self.count, source.extent, block, size(self.group.axes));
            is_own &= plan == Plan::Rounds { keeps_own: true, rounds: vec![] };
            held.push(self.collect(graph, source.block, device, &plan, &mut parts));
        }
        let shape = match self.sources {
            [source, ..] => [&graph.ty(source.block).shape[..]].concat(),
            [] => unreachable!("an operation has operands"),
        };
        let in_place = |read: &Read| (read.offset, read.step, read.stride) == (0, shape[self.dim] as i64, 1);
        let positions = self.positions(graph, device);
        let rows = match &parts[..] {
            [] => {
                let shape: Vec<usize> = replaced(&shape, self.dim, self.count);
                let fill = self.fill.expect("rows that are not read are filled");
                return spread(graph, fill, &shape, &[]);
            }
            [own] if is_own && self.count == shape[self.dim] && self.sources[0].reads.iter().all(in_place) => *own,
            _ => {
                let index = self.index(graph, &positions, &held);
                let all = match &parts[..] {
                    [one] => *one,
                    _ => graph.fitting(StructuralOp::from(Concat { axis: self.dim }), &parts),
                };
                take(graph, all, index, self.dim)
            }
        };
        let Some(fill) = self.fill else { return rows };
        let is_read: Vec<Var> = positions.iter().flatten().map(|(_, is_read)| *is_read).collect();
        let is_read = is_read.into_iter().reduce(|a, b| graph.fitting(ScalarOp::BitOr, &[a, b]));
        let shape = graph.ty(rows).shape.clone();
        let fill = spread(graph, fill, &shape, &[]);
        let Some(is_read) = is_read else { return fill };
        let is_read = spread(graph, is_read, &shape, &[self.dim]);
        graph.fitting(ScalarOp::Select, &[is_read, rows, fill])
    }

    /// Returns by source and by read two arrays with an element for each row: the row of the source that it is, and a
    /// bool that is true if the read covers it.
    fn positions(&self, graph: &mut Graph, device: Var) -> Vec<Vec<(Var, Var)>> {
        let ty = Type::new(DType::I32, [self.count]);
        let own = iota(graph, 0, &ty, None);
        let mut of = |read: &Read| {
            let scaled = |graph: &mut Graph, x: Var, by: i64| {
                let shape = graph.ty(x).shape.clone();
                let by = graph.splat(Literal::int(DType::I32, by), &shape);
                graph.fitting(ScalarOp::Mul, &[x, by])
            };
            let rows = if read.stride == 1 { own } else { scaled(graph, own, read.stride) };
            let step = scaled(graph, device, read.step);
            let offset = graph.int(read.offset);
            let first = graph.fitting(ScalarOp::Add, &[step, offset]);
            let first = spread(graph, first, &[self.count], &[]);
            let element = graph.fitting(ScalarOp::Add, &[rows, first]);
            let is_read = between(graph, element, read.within.start, read.within.end);
            (element, is_read)
        };
        self.sources.iter().map(|source| source.reads.iter().map(&mut of).collect()).collect()
    }

    /// Appends the collectives for one source, and adds the arrays of rows that each device has afterwards to `parts`;
    /// returns which rows these are.
    fn collect(&self, graph: &mut Graph, block: Var, device: Var, plan: &Plan, parts: &mut Vec<Var>) -> Vec<Held> {
        let shape = graph.ty(block).shape.clone();
        let (dim, own) = (self.dim, shape[self.dim]);
        let mut at: usize = parts.iter().map(|&part| graph.ty(part).shape[dim]).sum();
        let exchange = |graph: &mut Graph, kind: CollectiveKind, args: &[Var]| {
            graph.fitting(Collective { kind, mesh: self.group.mesh.clone(), axes: self.group.axes.to_vec() }, args)
        };
        let mut held = vec![];
        let mut add = |part: Var, count: usize, first: Option<Var>| {
            parts.push(part);
            held.push(Held { first, count, at });
            at += count;
        };
        match plan {
            Plan::Gather => {
                let all = exchange(graph, AllGather.into(), &[block]);
                let (mut counts, devices) = (vec![1; shape.len()], size(self.group.axes));
                counts[dim] = devices;
                let all = joined(graph, all, &counts, &replaced(&shape, dim, own * devices));
                add(all, own * devices, None);
            }
            Plan::Rounds { keeps_own, rounds } => {
                if *keeps_own {
                    let extent = graph.int(own as i64);
                    let first = graph.fitting(ScalarOp::Mul, &[device, extent]);
                    add(block, own, Some(first));
                }
                for Round { sources, rows, sent, received } in rounds {
                    let table = |graph: &mut Graph, all: &[usize]| {
                        exchange(graph, DeviceTable(all.iter().map(|&n| n as i32).collect()).into(), &[])
                    };
                    let mut payload = block;
                    if *rows < own {
                        let zero = graph.int(0);
                        let mut starts = vec![zero; shape.len()];
                        starts[dim] = table(graph, sent);
                        let size = replaced(&shape, dim, *rows);
                        payload = graph.window(block, &size, &starts);
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
    fn index(&self, graph: &mut Graph, positions: &[Vec<(Var, Var)>], held: &[Vec<Held>]) -> Var {
        let mut index: Option<Var> = None;
        for (positions, held) in positions.iter().zip(held) {
            for &(element, is_read) in positions {
                let Some(own) = self.index_in(graph, element, held) else { continue };
                let select = |other| graph.fitting(ScalarOp::Select, &[is_read, own, other]);
                index = Some(index.map_or(own, select));
            }
        }
        index.expect("some rows are there")
    }

    /// Returns for each row its position among the rows of one source that the device has, given its number in the
    /// source.
    fn index_in(&self, graph: &mut Graph, element: Var, held: &[Held]) -> Option<Var> {
        let mut index: Option<Var> = None;
        for Held { first, count, at } in held {
            let from_first = match first {
                Some(first) => {
                    let first = spread(graph, *first, &[self.count], &[]);
                    graph.fitting(ScalarOp::Sub, &[element, first])
                }
                None => element,
            };
            let shift = graph.splat(Literal::int(DType::I32, *at as i64), &[self.count]);
            let own = graph.fitting(ScalarOp::Add, &[from_first, shift]);
            index = Some(match index {
                Some(other) => {
                    let is_here = between(graph, from_first, 0, *count as i64);
                    graph.fitting(ScalarOp::Select, &[is_here, own, other])
                }
                None => own,
            });
        }
        index
    }
}

/// Returns the rows of an array at these positions along a dimension.
fn take(graph: &mut Graph, x: Var, index: Var, dim: usize) -> Var {
    let shape = graph.ty(x).shape.clone();
    let op = Gather {
        offset_dims: (0..shape.len()).filter(|&other| other != dim).collect(),
        collapsed_slice_dims: vec![dim],
        operand_batching_dims: vec![],
        start_indices_batching_dims: vec![],
        start_index_map: vec![dim],
        index_vector_dim: 1,
        slice_sizes: dims(&replaced(&shape, dim, 1)),
    };
    graph.fitting(StructuralOp::from(op), &[x, index])
}

/// Returns a shape with another extent along a dimension.
fn replaced(shape: &[usize], dim: usize, extent: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[dim] = extent;
    shape
}

//! Reshapes on blocks that split or merge unevenly sharded dimensions, so that a block of the result is not made of
//! whole blocks of the operand.
//!
//! ```text
//! [5, 8] in 3 blocks of 2 rows:     elements 0-15, 16-31, 32-39
//! [40] in 3 blocks of 14 elements:  elements 0-13, 14-27, 28-39: devices 1 and 2 receive some of a neighbour
//! ```
//!
//! Dimensions form a group if they have the same elements before and after the reshape. If blocks have one position of
//! a group's first dimensions, some of the next one, and all of the others, each block is a row of consecutive
//! elements. Devices then receive the elements that they lack from others, as for a slice.
use super::block_slicing::DeviceGroup;
use super::halo::AffineRead;
use super::shifted_rows;
use crate::graph::{Graph, Var};
use crate::mesh::axis::{Axis, product_of_sizes, push_merged};
use crate::shard::op_sharding_rule::{FactorRole, ShardingRule};
use crate::shard::partition_traits::ShardedOperation;
use pallas_ir::Type;
use std::ops::Range;

/// Most runs of consecutive elements that a device reads one by one for a reshape; an operand with more runs is
/// gathered whole.
const MAX_RUNS_BEFORE_GATHER: usize = 32;

/// Returns the groups of a reshape in order: ranges of dimensions of the operand and of the result with equal numbers
/// of elements, as few dimensions as possible. A dimension of extent 1 belongs to the group around it, or is a group by
/// itself.
fn group_reshape_dims(from: &[usize], to: &[usize]) -> Vec<[Range<usize>; 2]> {
    let (mut groups, mut i, mut j) = (vec![], 0, 0);
    while i < from.len() || j < to.len() {
        let first = [i, j];
        if from.get(i) == Some(&1) {
            i += 1;
        } else if to.get(j) == Some(&1) {
            j += 1;
        } else {
            let mut counts = [from[i], to[j]];
            (i, j) = (i + 1, j + 1);
            while counts[0] != counts[1] {
                match counts[0] < counts[1] {
                    true => (counts[0], i) = (counts[0] * from[i], i + 1),
                    false => (counts[1], j) = (counts[1] * to[j], j + 1),
                }
            }
        }
        groups.push([first[0]..i, first[1]..j]);
    }
    groups
}

/// Dimensions of a reshape's operand or result that form a group ([`group_reshape_dims`]), as a single dimension whose
/// blocks are rows of consecutive elements.
#[derive(PartialEq, Debug)]
struct FlattenedDim {
    /// The axes that shard the dimension.
    axes: Vec<Axis>,
    /// Number of elements in a block of the dimension.
    block: usize,
    /// Length of the runs of consecutive elements; each run begins in a new block.
    run: usize,
    /// By run, the position of its first element in the concatenation of all blocks.
    begins: Vec<usize>,
}

impl FlattenedDim {
    /// Returns the dimensions of a shape, sharded by these axes each, as one; `None` if blocks are not rows of
    /// consecutive elements.
    fn from_dims(shape: &[usize], axes: &[Vec<Axis>]) -> Option<FlattenedDim> {
        let blocks: Vec<usize> = shape.iter().zip(axes).map(|(n, axes)| n.div_ceil(product_of_sizes(axes))).collect();
        let last = axes.iter().rposition(|axes| !axes.is_empty()).unwrap_or(0);
        let leads = shape.iter().product::<usize>() / shape[last..].iter().product::<usize>();
        if blocks[..last].iter().any(|&n| n != 1) || leads > MAX_RUNS_BEFORE_GATHER {
            return None;
        }
        let block = blocks[last..].iter().product();
        let mut begins = vec![0];
        for (&n, axes) in shape[..last].iter().zip(axes) {
            let next = |begin: usize| (0..n).map(move |i| begin * product_of_sizes(axes) + i);
            begins = begins.into_iter().flat_map(next).collect();
        }
        begins.iter_mut().for_each(|begin| *begin *= product_of_sizes(&axes[last]) * block);
        let mut all = vec![];
        axes.iter().flatten().for_each(|&axis| push_merged(&mut all, axis));
        Some(FlattenedDim { axes: all, block, run: shape[last..].iter().product(), begins })
    }

    /// Returns the position of an element in the concatenation of all blocks.
    fn position_in_blocks(&self, element: usize) -> usize {
        self.begins[element / self.run] + element % self.run
    }

    /// Returns the reads by which each device gets its block of `to`, which has the same elements in blocks of another
    /// size, from all blocks of this dimension.
    fn find_reads(&self, to: &FlattenedDim) -> Vec<AffineRead> {
        let (count, mut element, mut reads) = (self.run * self.begins.len(), 0, Vec::<AffineRead>::new());
        while element < count {
            let end = [self.run, to.run].map(|run| (element / run + 1) * run).into_iter().min().expect("two");
            let [from, at] = [self.position_in_blocks(element), to.position_in_blocks(element)].map(|n| n as i64);
            let within = from..from + (end - element) as i64;
            match reads.last_mut().filter(|read| read.offset == from - at && read.within.end == from) {
                Some(read) => read.within.end = within.end,
                None => reads.push(AffineRead { offset: from - at, step: to.block as i64, stride: 1, within }),
            }
            element = end;
        }
        reads
    }
}

/// Clears the axes of a reshape's factors with which blocks of the result are neither made of the operand's blocks nor
/// rows of consecutive elements.
pub(super) fn clear_unsupported_reshape_axes(axes: &mut [Vec<Axis>], rule: &ShardingRule, types: &[&Type]) {
    for [from, to] in group_reshape_dims(&types[0].shape, &types[1].shape) {
        let sides = [(0, from), (1, to)].map(|(t, dims)| (&rule.tensors[t][dims.clone()], &types[t].shape[dims]));
        let rows = sides.map(|(dims, shape)| {
            let join = |dim: &Vec<usize>| {
                let mut all = vec![];
                dim.iter().flat_map(|&f| &axes[f]).for_each(|&axis| push_merged(&mut all, axis));
                all
            };
            (!shape.is_empty())
                .then(|| FlattenedDim::from_dims(shape, &dims.iter().map(join).collect::<Vec<_>>()))
                .flatten()
        });
        if matches!(&rows, [Some(from), Some(to)] if from.axes == to.axes) {
            continue;
        }
        for &f in sides.into_iter().flat_map(|(dims, _)| dims).flatten() {
            let factor = &rule.factors[f];
            if factor.role == FactorRole::Permute || !factor.size.is_multiple_of(product_of_sizes(&axes[f])) {
                axes[f].clear();
            }
        }
    }
}

/// Appends a reshape on blocks, with the transfers between devices that it needs; returns the block of the result.
pub(super) fn emit_reshape_on_blocks(graph: &mut Graph, work: &ShardedOperation<'_>) -> Var {
    let sides = [(work.operands[0].0, &work.operands[0].1), (work.result.0, &work.result.1)];
    let groups = group_reshape_dims(&sides[0].0.shape, &sides[1].0.shape);
    let block = graph.ty(work.args[0]).shape.clone();
    let mut counts: Vec<usize> = groups.iter().map(|[from, _]| block[from.clone()].iter().product()).collect();
    let mut x = work.args[0];
    for (dim, group) in groups.into_iter().enumerate() {
        if group.iter().any(Range::is_empty) {
            continue;
        }
        let [from, to] = [0, 1].map(|side| {
            let ((ty, sharding), dims) = (sides[side], group[side].clone());
            FlattenedDim::from_dims(&ty.shape[dims.clone()], &sharding.axes()[dims])
        });
        if let (Some(from), Some(to)) = (from, to)
            && from.axes == to.axes
        {
            let reads = from.find_reads(&to);
            if from.block != to.block || reads.iter().any(|read| read.offset != 0) {
                x = graph.reshape(x, &counts);
                x = shifted_rows::read_rows(
                    graph,
                    DeviceGroup { mesh: work.mesh, axes: &from.axes },
                    x,
                    dim,
                    to.block,
                    reads,
                );
                counts[dim] = to.block;
            }
        }
    }
    graph.reshape(x, &work.gives.shape)
}

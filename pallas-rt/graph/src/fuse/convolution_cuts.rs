//! Cuts and blocks of convolutions and windowed folds: axes along which a window moves are whole in each program.
use super::device_limits::DeviceLimits;
use super::operand_cuts::AxisTiling::{self, Full, Grid};
use crate::graph::{Equation, Graph, Op};
use pallas_ir::StructuralOp;
use pallas_ir::structural::{Conv, ReduceWindow, WindowDim};

/// Fewest examples of a batch that are enough to split among programs; with fewer, output features are split too.
const MIN_SPLIT_BATCH: usize = 16;
/// Longest feature axis that each program has whole.
const MAX_WHOLE_FEATURES: usize = 512;
/// Rows of the matrix products of a convolution that are enough to make good use of a program's caches.
const TARGET_CONV_ROWS: usize = 256;

/// Returns by axis of the result of a windowed operation true if each program has it whole; `None` for other
/// operations, or if `shape` has another rank than the result.
pub(super) fn whole_axes(op: &Op, shape: &[usize]) -> Option<Vec<bool>> {
    if let Op::Structural(StructuralOp::Conv(conv)) = op
        && conv.out.len() == shape.len()
    {
        let mut whole = vec![true; shape.len()];
        let [batch, feature] = [conv.out[0], conv.out[1]];
        whole[batch] = conv.batch_groups > 1;
        whole[feature] = conv.groups.max(conv.batch_groups) > 1;
        whole[feature] |= !whole[batch] && shape[batch] >= MIN_SPLIT_BATCH && shape[feature] <= MAX_WHOLE_FEATURES;
        return Some(whole);
    }
    let Op::Structural(StructuralOp::ReduceWindow(ReduceWindow { size, windows, .. })) = op else { return None };
    Some(size.iter().zip(windows).map(|(&n, window)| n != 1 || *window != WindowDim::PLAIN).collect())
}

/// Returns the cuts of a convolution's operands from those of its result; `None` if blocks of the result do not follow
/// from blocks of the operands.
pub(super) fn conv_operand_tilings(conv: &Conv, cuts: &[AxisTiling]) -> Option<Vec<Vec<AxisTiling>>> {
    let [mut lhs, mut rhs] = [0; 2].map(|_| vec![Full; cuts.len()]);
    let is_whole = |axis: usize| cuts[axis] == Full;
    let fits = conv.out[2..].iter().all(|&axis| is_whole(axis))
        && (conv.batch_groups == 1 || is_whole(conv.out[0]))
        && (conv.groups.max(conv.batch_groups) == 1 || is_whole(conv.out[1]));
    lhs[conv.lhs[0]] = cuts[conv.out[0]];
    rhs[conv.rhs[0]] = cuts[conv.out[1]];
    fits.then(|| vec![lhs, rhs])
}

/// Returns the sizes of blocks of a convolution whose result has these cuts: as few examples as fill the caches, then
/// as many features as leave a part for every program.
pub(super) fn choose_conv_blocks(
    graph: &Graph,
    e: &Equation,
    conv: &Conv,
    cuts: &[AxisTiling],
    extents: &[usize],
    sizes: &DeviceLimits,
) -> Vec<usize> {
    let shape = &graph.ty(e.result()).shape;
    let window: usize = conv.rhs[1..].iter().map(|&axis| graph.ty(e.args[1]).shape[axis]).product();
    let is_small = shape.iter().product::<usize>() * window < sizes.small;
    let mut blocks = vec![1; extents.len()];
    let mut programs = 1;
    let rows: usize = conv.out[2..].iter().map(|&axis| shape[axis]).product();
    for (i, axis) in conv.out[..2].iter().enumerate() {
        let Grid(k) = cuts[*axis] else { continue };
        let extent = extents[k as usize].max(1);
        let parts = sizes.programs.div_ceil(programs).max(1);
        let block = match i {
            _ if is_small => extent,
            0 => TARGET_CONV_ROWS.div_ceil(rows.max(1)).next_multiple_of(8).min(extent.div_ceil(parts)),
            _ => extent.div_ceil(parts).next_multiple_of(16),
        };
        blocks[k as usize] = if i == 0 && rows >= TARGET_CONV_ROWS && !is_small { 1 } else { block.clamp(1, extent) };
        programs *= extent.div_ceil(blocks[k as usize]);
    }
    blocks
}

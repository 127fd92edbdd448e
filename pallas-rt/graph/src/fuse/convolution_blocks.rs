//! Blocks of convolutions and windowed folds: axes along which a window moves are whole in each program.
use super::axis_tiling::{self, AxisTiling, AxisTiling::Grid};
use super::device_limits::DeviceLimits;
use crate::graph::{Equation, Graph, Op};
use pallas_ir::StructuralOp;
use pallas_ir::structural::{AccessForm, Conv};

/// Fewest examples of a batch that are enough to split among programs; with fewer, output features are split too.
const MIN_SPLIT_BATCH_EXAMPLES: usize = 16;
/// Most output features of a convolution for which programs that split the batch have all features of their examples.
const MAX_WHOLE_FEATURES: usize = 512;
/// Rows of the matrix products of a convolution that are enough to make good use of a program's caches.
const TARGET_CONV_ROWS: usize = 256;

/// Returns by axis of the result of a windowed operation true if each program has it whole; `None` for other
/// operations. A convolution of many examples has all of its features whole.
pub(super) fn windowed_whole_axes(graph: &Graph, e: &Equation) -> Option<Vec<bool>> {
    let Op::Structural(op) = &e.op else { return None };
    let AccessForm::Nest(nest) = axis_tiling::access_form(graph, e, op) else { return None };
    let shapes = axis_tiling::operand_shapes(graph, e);
    let mut whole: Vec<bool> =
        (0..nest.result.len()).map(|dim| !axis_tiling::is_dim_separable(&nest, &shapes, dim)).collect();
    if let StructuralOp::Conv(conv) = op {
        let shape = &graph.ty(e.result()).shape;
        let [batch, feature] = [conv.out[0], conv.out[1]];
        conv.out[2..].iter().for_each(|&axis| whole[axis] = true);
        whole[feature] |=
            !whole[batch] && shape[batch] >= MIN_SPLIT_BATCH_EXAMPLES && shape[feature] <= MAX_WHOLE_FEATURES;
    }
    Some(whole)
}

/// Returns the sizes of blocks of a convolution whose result has this tiling: as few examples as fill the caches, then
/// as many features as leave a part for every program.
pub(super) fn choose_conv_blocks(
    graph: &Graph,
    e: &Equation,
    conv: &Conv,
    tiling: &[AxisTiling],
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
        let Grid(k) = tiling[*axis] else { continue };
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

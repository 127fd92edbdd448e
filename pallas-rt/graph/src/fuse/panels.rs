//! Products in panels: a program multiplies one part of the contracted axes, a panel, at a time.
//!
//! ```text
//! tanh (dot (exp x) w)
//!   -> for each block of the result
//!        for each panel of the contracted axis
//!          if it is the first one { sum = 0 }
//!          sum += dot (exp x) w
//!          if it is the last one { store (tanh sum) }
//! ```
//!
//! This is for devices whose programs have little memory: the operands' blocks are small however long the contracted
//! axes are, and a shader fetches the next panel while it multiplies one. The contracted axes are the last axes of the
//! grid.
//!
//! **Products.** A cluster grows around at most one product (`dot`), and its blocks suit that one. On a CPU a program
//! reads all that it sums for its block of the result; so `merge` lets it multiply its block of a product's result at
//! once (the weights of attention), if that is the largest array of the next product. On a GPU, where a program has
//! registers and a little workgroup memory, the contracted axes are sequential axes of the grid (`fuse/panels`): a
//! program computes its operands' panels, adds their product to a sum, and does what follows the product after the last
//! panel. A fold of a contracted axis is another kernel then. Columns are split among programs too, unless rows are
//! folded (softmax of scores). On the CPU a program handles several positions of other axes where its matrices are
//! small. Unit tests give the interpreter a GPU's plans, with panels of three elements.
use super::axis_tiling::AxisTiling::{self, Grid};
use super::device_limits::DeviceLimits;
use crate::graph::{Equation, Graph, Op};
use pallas_ir::StructuralOp;
use pallas_ir::structural::Dot;

/// Returns the contracted axes of a product with more than one element, as pairs of axes of both operands.
fn nonunit_contracted_axes(graph: &Graph, e: &Equation, dot: &Dot) -> Vec<(usize, usize)> {
    let shape = &graph.ty(e.args[0]).shape;
    dot.contract.iter().copied().filter(|pair| shape[pair.0] > 1).collect()
}

/// Returns the extents of the axes along which a product is split into panels; none if a program multiplies all
/// elements at once.
pub(super) fn panel_extents(graph: &Graph, e: &Equation, sizes: &DeviceLimits) -> Vec<usize> {
    let (Op::Structural(StructuralOp::Dot(dot)), Some(panel)) = (&e.op, sizes.panel) else { return vec![] };
    let shape = &graph.ty(e.args[0]).shape;
    let extents: Vec<usize> = nonunit_contracted_axes(graph, e, dot).into_iter().map(|pair| shape[pair.0]).collect();
    if extents.iter().product::<usize>() > panel { extents } else { vec![] }
}

/// Splits the contracted axes of a product along the axes of the grid from `first_grid_axis` on, in the tilings
/// `operands` of the product's operands.
pub(super) fn split_contracted_axes(
    graph: &Graph,
    e: &Equation,
    first_grid_axis: usize,
    operands: &mut [Vec<AxisTiling>],
) {
    let Op::Structural(StructuralOp::Dot(dot)) = &e.op else { return };
    for (j, (a, b)) in nonunit_contracted_axes(graph, e, dot).into_iter().enumerate() {
        let axis_tiling = Grid((first_grid_axis + j) as u8);
        (operands[0][a], operands[1][b]) = (axis_tiling, axis_tiling);
    }
}

/// Returns the sizes of blocks along the axes that are split into panels, so that a panel has at most
/// [`DeviceLimits::panel`] elements.
pub(super) fn panel_block_sizes(extents: &[usize], sizes: &DeviceLimits) -> Vec<usize> {
    let mut left = sizes.panel.unwrap_or(usize::MAX);
    let mut blocks: Vec<usize> = vec![];
    for &extent in extents.iter().rev() {
        let block = extent.min(left);
        left /= block;
        blocks.insert(0, block);
        left = left.max(1);
    }
    blocks
}

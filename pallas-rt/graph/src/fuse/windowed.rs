//! Convolutions and windowed reductions: the axes along which a window moves are whole in each program.
use super::blocks::Sizes;
use super::cluster::Cluster;
use super::cut::Cut::Grid;
use crate::graph::Graph;
use pallas_ir::structural::{Conv, Loop, Nest, Position, Role};

/// Fewest batches that programs divide among them alone; with fewer they divide the output features too.
const BATCHES: usize = 16;
/// Longest feature axis that a program has whole.
const FEATURES: usize = 512;
/// Rows of a convolution's products that fill a program's caches well enough.
const ROWS: usize = 256;

/// For each axis of the result of a nest, true if a program has it whole: it is not one axis of each operand that depends on it.
pub(super) fn whole(nest: &Nest, operands: &[&[usize]]) -> Vec<bool> {
    let followed = followed(nest, operands);
    let depends = |position: &Position, axis: usize| position.terms.iter().any(|term| term.0 == axis);
    let is_broken = |&(axis, _): &(usize, i64)| {
        let all = nest.operands.iter().flatten().zip(followed.iter().flatten());
        nest.axes[axis].extent != 1 && all.into_iter().any(|(own, to)| to.is_none() && depends(own, axis))
    };
    nest.result.iter().map(|position| position.terms.iter().any(is_broken)).collect()
}

/// By axis of each operand of a nest, the axis of the result that has the same positions.
pub(super) fn followed(nest: &Nest, operands: &[&[usize]]) -> Vec<Vec<Option<usize>>> {
    // A window of one element moves nothing. Products have the axes of their windows whole, whatever these are.
    let is_one = |axis: usize| {
        let Loop { extent, role } = nest.axes[axis];
        extent == 1 && (role != Role::Windowed || nest.operands.len() == 1)
    };
    // Groups, whose terms stand in front, are among the attributes: blocks have all of them.
    let single = |position: &Position| {
        let last = position.terms.iter().rposition(|term| nest.axes[term.0].role == Role::Parallel)?;
        let is_alone = (0..position.terms.len()).all(|i| i == last || is_one(position.terms[i].0));
        is_alone.then(|| position.terms[last])
    };
    let of = |position: &Position, n: usize| {
        let (axis, stride) = single(position)?;
        let is_same = stride == 1 && position.offset == 0 && position.dilation == 1;
        let to = nest.result.iter().position(|to| single(to).is_some_and(|term| term.0 == axis));
        to.filter(|_| is_same && nest.axes[axis].extent == n as i64)
    };
    let all = nest.operands.iter().zip(operands);
    all.map(|(own, shape)| own.iter().zip(*shape).map(|(position, &n)| of(position, n)).collect()).collect()
}

/// Returns true if programs have the output features of a convolution whole because its batches are enough for them.
pub(super) fn has_features_whole(conv: &Conv, shape: &[usize]) -> bool {
    let [batch, feature] = [conv.out[0], conv.out[1]];
    conv.batch_groups == 1 && shape[batch] >= BATCHES && shape[feature] <= FEATURES
}

/// Block sizes: as few batches as fill the caches, then as many features as leave a part for every program.
pub(super) fn blocks(
    graph: &Graph,
    cluster: &Cluster,
    product: usize,
    conv: &Conv,
    extents: &[usize],
    sizes: &Sizes,
) -> Vec<usize> {
    let e = &graph.equations[product];
    let (shape, cuts) = (&graph.ty(e.result()).shape, &cluster.cuts[&e.result()]);
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
            0 => ROWS.div_ceil(rows.max(1)).next_multiple_of(8).min(extent.div_ceil(parts)),
            _ => extent.div_ceil(parts).next_multiple_of(16),
        };
        blocks[k as usize] = if i == 0 && rows >= ROWS && !is_small { 1 } else { block.clamp(1, extent) };
        programs *= extent.div_ceil(blocks[k as usize]);
    }
    blocks
}

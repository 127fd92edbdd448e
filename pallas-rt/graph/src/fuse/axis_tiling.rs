//! The tilings of an operation's operands, from that of its result.
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op};
use pallas_ir::structural::{AccessForm, AffinePosition, IndexedWindows, LoopNest, MapPiece, NestAxisRole, WindowAxis};
use pallas_ir::{Dim, StructuralOp};

/// The division of one axis of a value among the programs of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AxisTiling {
    /// The axis is split into blocks along this axis of the grid.
    Grid(u8),
    /// The axis is split into parts of this many adjacent elements, and the parts into blocks along this axis of the
    /// grid.
    GridParts(u8, usize),
    /// Each program has the whole axis.
    Full,
}
use AxisTiling::{Full, Grid, GridParts};

/// Fewest elements of a part into which a reshape splits a last axis, for programs to have one part each; with shorter
/// parts, programs do not split the axis.
const MIN_LAST_AXIS_PART_ELEMENTS: usize = 256;

impl AxisTiling {
    /// Returns the axis of the grid along which the value is split; `None` if each program has it whole.
    pub fn grid_axis(self) -> Option<u8> {
        match self {
            Grid(k) | GridParts(k, _) => Some(k),
            Full => None,
        }
    }

    /// Returns the extent along an axis, which has `extent` elements, of the smallest block: one element or one part of
    /// a split axis, or all of a whole one.
    pub(super) fn min_block_extent(self, extent: usize) -> usize {
        match self {
            Grid(_) => 1,
            GridParts(_, part) => part,
            Full => extent,
        }
    }
}

/// Returns the number of elements of the smallest block of a value with this tiling: one element or one part along each
/// split axis.
pub(crate) fn min_block_elements(shape: &[usize], tiling: &[AxisTiling]) -> usize {
    shape.iter().zip(tiling).map(|(&n, axis_tiling)| axis_tiling.min_block_extent(n)).product()
}

/// Returns true if no two programs of a grid with `grid_axes` axes have the same block of a value with this tiling.
pub(crate) fn has_distinct_blocks(grid_axes: usize, tiling: &[AxisTiling]) -> bool {
    (0..grid_axes).all(|k| tiling.iter().any(|axis_tiling| axis_tiling.grid_axis() == Some(k as u8)))
}

/// Returns the shapes of an equation's operands.
pub(super) fn operand_shapes<'g>(graph: &'g Graph, e: &Equation) -> Vec<&'g [usize]> {
    e.args.iter().map(|&v| &graph.ty(v).shape[..]).collect()
}

/// Returns the description of the operand elements that a structural operation reads for each element of its result,
/// for the shapes of this equation's operands.
pub(super) fn access_form(graph: &Graph, e: &Equation, op: &StructuralOp) -> AccessForm {
    let shapes: Vec<Vec<Dim>> = operand_shapes(graph, e).into_iter().map(constant_dims).collect();
    op.access(&shapes.iter().map(|shape| &shape[..]).collect::<Vec<_>>())
}

/// Returns the tiling of each operand of an equation whose result has this tiling, read from the operation's access
/// form; `None` if blocks of the result do not follow from blocks of the operands.
pub(crate) fn operand_tilings(graph: &Graph, e: &Equation, tiling: &[AxisTiling]) -> Option<Vec<Vec<AxisTiling>>> {
    let shapes = operand_shapes(graph, e);
    let result = &graph.ty(e.result()).shape[..];
    let same = || vec![tiling.to_vec(); e.args.len()];
    // Axes along which an operation moves or combines elements have to be whole.
    let if_full = |axes: &[usize]| axes.iter().all(|&axis| tiling[axis] == Full).then(same);
    let fold = |axes: &[usize]| match tiling.len() == shapes[0].len() {
        true => if_full(axes),
        false => Some(vec![insert_full_axes(tiling, axes)]),
    };
    let op = match &e.op {
        Op::Literal(_) => return Some(vec![]),
        Op::Identity(_) | Op::Scalar(_) => return Some(same()),
        Op::Structural(StructuralOp::Pad(pad)) if padded_parts_axis(&pad.low, &pad.high, tiling).is_some() => {
            return Some(vec![tiling.to_vec(), vec![]]);
        }
        Op::Structural(op) => op,
        Op::Dynamic(_) | Op::Collective(_) | Op::Call(_) => return None,
    };
    match access_form(graph, e, op) {
        AccessForm::Cast | AccessForm::Bitcast | AccessForm::Powi(_) => Some(same()),
        AccessForm::Iota { .. } => Some(vec![]),
        AccessForm::Map(pieces) => map_operand_tilings(&pieces, &shapes, result, tiling),
        AccessForm::Flat => Some(vec![reshape_operand_tiling(shapes[0], result, tiling)?]),
        AccessForm::Contract { batch, contract } => Some(product_operand_tilings(&batch, &contract, &shapes, tiling)),
        AccessForm::Fold { axes, .. } => fold(&axes),
        AccessForm::Arg { axis, .. } => fold(&[axis]),
        AccessForm::Scan { axis, .. } | AccessForm::Sort { axis, .. } => if_full(&[axis]),
        AccessForm::Gather { windows, .. } => gather_operand_tilings(&windows, &shapes, result, tiling),
        // A scatter is a step of its own.
        AccessForm::Scatter { .. } => None,
        AccessForm::Nest(nest) => nest_operand_tilings(&nest, &shapes, tiling),
    }
}

/// Returns the tilings of the operands of an operation each of whose result elements is one operand element; `None` if
/// it moves elements along an axis that is split.
fn map_operand_tilings(
    pieces: &[MapPiece],
    shapes: &[&[usize]],
    result: &[usize],
    tiling: &[AxisTiling],
) -> Option<Vec<Vec<AxisTiling>>> {
    let moved = find_moved_axes(pieces, shapes, result);
    if moved.iter().any(|&axis| tiling[axis] != Full) {
        return None;
    }
    let mut own: Vec<Vec<AxisTiling>> = shapes.iter().map(|shape| vec![Full; shape.len()]).collect();
    for piece in pieces {
        for (dim, index) in piece.index.iter().enumerate() {
            own[piece.operand][dim] = index.axis.map_or(Full, |axis| tiling[axis]);
        }
    }
    Some(own)
}

/// Returns the axes of the result along which one of the `pieces` that an operation copies from its operands covers
/// only some positions, or takes elements from other positions than their own.
pub(super) fn find_moved_axes(pieces: &[MapPiece], shapes: &[&[usize]], result: &[usize]) -> Vec<usize> {
    let is = |n: &Dim, m: usize| n.as_number() == Some(m as i64);
    // Of pieces side by side, as in a concatenation, none is the whole result of every block. Where another piece is
    // all around, as in a pad, bounds that leave nothing to it are none.
    let has_surroundings = pieces.iter().any(|piece| piece.bounds.is_empty());
    let is_moved = |axis: &usize| {
        let n = result[*axis];
        let is_all = |lo: &Dim, hi: &Dim| has_surroundings && is(lo, 0) && is(hi, n);
        pieces.iter().any(|piece| {
            let is_bounded = piece.bounds.iter().any(|(of, lo, hi)| of == axis && !is_all(lo, hi));
            let of_axis = piece.index.iter().zip(shapes[piece.operand]).filter(|(index, _)| index.axis == Some(*axis));
            is_bounded
                || of_axis.into_iter().any(|(index, &m)| !is(&index.offset, 0) || !is(&index.stride, 1) || m != n)
        })
    };
    (0..result.len()).filter(is_moved).collect()
}

/// Returns the tilings of both operands of a product, from that of its result, which has first the batch axes, then the
/// free axes of each operand.
fn product_operand_tilings(
    batch: &[(usize, usize)],
    contract: &[(usize, usize)],
    shapes: &[&[usize]],
    tiling: &[AxisTiling],
) -> Vec<Vec<AxisTiling>> {
    let mut own = [vec![Full; shapes[0].len()], vec![Full; shapes[1].len()]];
    let (of_batch, mut free) = tiling.split_at(batch.len());
    for (&(a, b), &axis_tiling) in batch.iter().zip(of_batch) {
        (own[0][a], own[1][b]) = (axis_tiling, axis_tiling);
    }
    for (side, own) in own.iter_mut().enumerate() {
        let axis_in = |&(a, b): &(usize, usize)| [a, b][side];
        for (axis, own) in own.iter_mut().enumerate() {
            if batch.iter().chain(contract).all(|pair| axis_in(pair) != axis) {
                let (&axis_tiling, rest) = free.split_first().expect("the result has all free axes");
                (*own, free) = (axis_tiling, rest);
            }
        }
    }
    own.into()
}

/// Returns the axis of a nest whose index is the position, if it is one; `None` for sums of several axes, strides, and
/// positions that are always 0.
fn single_nest_axis(nest: &LoopNest, position: &AffinePosition) -> Option<usize> {
    let mut terms = position.terms.iter().filter(|term| nest.axes[term.0].extent != 1);
    let &(axis, stride) = terms.next()?;
    (terms.next().is_none() && (stride, position.offset, position.dilation) == (1, 0, 1)).then_some(axis)
}

/// Returns true if blocks of the result of a loop nest along dimension `dim` follow from blocks of its operands:
/// wherever the loop over `dim` occurs in an operand's position, it alone runs over a whole dimension.
pub(super) fn is_dim_separable(nest: &LoopNest, shapes: &[&[usize]], dim: usize) -> bool {
    let Some(axis) = single_nest_axis(nest, &nest.result[dim]) else {
        return nest.result[dim].terms.iter().all(|term| nest.axes[term.0].extent == 1);
    };
    nest.operands.iter().zip(shapes).all(|(positions, shape)| {
        positions.iter().zip(*shape).all(|(position, &n)| {
            let occurs = position.terms.iter().any(|term| term.0 == axis);
            !occurs || single_nest_axis(nest, position) == Some(axis) && n as i64 == nest.axes[axis].extent
        })
    })
}

/// Returns the tilings of the operands of a convolution or a fold of windows; `None` if an axis is split along which a
/// window moves, or which groups share.
fn nest_operand_tilings(nest: &LoopNest, shapes: &[&[usize]], tiling: &[AxisTiling]) -> Option<Vec<Vec<AxisTiling>>> {
    if (0..tiling.len()).any(|dim| tiling[dim] != Full && !is_dim_separable(nest, shapes, dim)) {
        return None;
    }
    let tiling_along = |axis: usize| {
        let dim = nest.result.iter().position(|position| single_nest_axis(nest, position) == Some(axis));
        dim.filter(|_| nest.axes[axis].role == NestAxisRole::Parallel).map_or(Full, |dim| tiling[dim])
    };
    let of = |position: &AffinePosition| single_nest_axis(nest, position).map_or(Full, tiling_along);
    Some(nest.operands.iter().map(|positions| positions.iter().map(of).collect()).collect())
}

/// Returns the axis that is split into parts, if a pad only fills up the last part of it; `None` for other pads.
pub(super) fn padded_parts_axis(low: &[Dim], high: &[Dim], tiling: &[AxisTiling]) -> Option<usize> {
    let is_none = |n: &Dim| n.as_number() == Some(0);
    let mut all = (0..tiling.len()).filter(|&i| !is_none(&low[i]) || !is_none(&high[i]));
    let axis = all.next().filter(|&axis| is_none(&low[axis]) && matches!(tiling[axis], GridParts(..)))?;
    all.next().is_none().then_some(axis)
}

/// Returns the tilings of a gather's operand and of its indices: axes that indices address are whole, and so is the
/// axis of the components of an index; `None` if windows along an addressed axis are split.
fn gather_operand_tilings(
    windows: &IndexedWindows,
    shapes: &[&[usize]],
    result: &[usize],
    tiling: &[AxisTiling],
) -> Option<Vec<Vec<AxisTiling>>> {
    let mut own = [vec![Full; shapes[0].len()], vec![Full; shapes[1].len()]];
    // Nothing can be looked up along an axis without elements, not even by the block of an empty result.
    let is_empty = |(window, &n): (&WindowAxis, &usize)| window.start.is_some() && n == 0;
    if windows.axes.iter().zip(shapes[0]).any(is_empty) && tiling.iter().any(|&axis_tiling| axis_tiling != Full) {
        return None;
    }
    for (axis, window) in windows.axes.iter().enumerate() {
        let Some(from) = window.axis else { continue };
        if window.start.is_none() && result[from] == shapes[0][axis] {
            own[0][axis] = tiling[from];
        } else if !windows.index.contains(&from) && tiling[from] != Full {
            return None;
        }
    }
    let positions = (0..shapes[1].len()).filter(|&axis| Some(axis) != windows.vector);
    positions.zip(&windows.index).for_each(|(axis, &from)| own[1][axis] = tiling[from]);
    Some(own.into())
}

/// Returns the tiling of a result with [`AxisTiling::Full`] inserted for the axes `axes` of the operand, which the
/// result lacks.
fn insert_full_axes(tiling: &[AxisTiling], axes: &[usize]) -> Vec<AxisTiling> {
    let mut rest = tiling.iter().copied();
    let next = |axis| if axes.contains(&axis) { Full } else { rest.next().expect("the result has all other axes") };
    (0..tiling.len() + axes.len()).map(next).collect()
}

/// Returns the tiling of an array from that of its reshaped form: unchanged axes keep theirs, an axis that becomes two
/// is split into parts if the first of these is split, and all other axes are whole; `None` if the reshaped form splits
/// others.
fn reshape_operand_tiling(from: &[usize], to: &[usize], tiling: &[AxisTiling]) -> Option<Vec<AxisTiling>> {
    if from.contains(&0) {
        // Without elements, no groups of axes correspond to each other.
        return tiling.iter().all(|&axis_tiling| axis_tiling == Full).then(|| vec![Full; from.len()]);
    }
    let (mut i, mut j, mut own) = (0, 0, vec![Full; from.len()]);
    while i < from.len() || j < to.len() {
        if i < from.len() && j < to.len() && from[i] == to[j] {
            own[i] = tiling[j];
            (i, j) = (i + 1, j + 1);
            continue;
        }
        // Axes of one element are added and dropped; none of them is split.
        if from.get(i) == Some(&1) {
            i += 1;
            continue;
        }
        if to.get(j) == Some(&1) {
            j += 1;
            continue;
        }
        // A group of axes on each side with the same number of elements, the shortest one.
        let (mut a, mut b) = (1, 1);
        let (first_i, first_j) = (i, j);
        loop {
            if a <= b && i < from.len() && (a < b || i == first_i || from[i] == 1) {
                a *= from[i];
                i += 1;
            } else if j < to.len() && (b < a || j == first_j || to[j] == 1) {
                b *= to[j];
                j += 1;
            } else {
                break;
            }
        }
        if a != b || (i, j) == (first_i, first_j) {
            return None;
        }
        match tiling[first_j..j] {
            // Heads of a few features are no parts: products compute all of them.
            [Grid(k), Full] if i == first_i + 1 && (i < from.len() || to[j - 1] >= MIN_LAST_AXIS_PART_ELEMENTS) => {
                own[first_i] = GridParts(k, to[j - 1]);
            }
            ref tiling if tiling.iter().any(|&axis_tiling| axis_tiling != Full) => return None,
            _ => {}
        }
    }
    Some(own)
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceLimits, plan};
    use crate::graph::Graph;
    use pallas_ir::structural::TakeAlong;
    use pallas_ir::{DType, StructuralOp, Type};

    /// Blocks of an empty result have elements, and there is nothing in the operand to look up for them.
    #[test]
    fn lookups_along_an_axis_without_elements_are_not_split() {
        let mut graph = Graph::default();
        let x = graph.param(Type::new(DType::F32, [0, 3]));
        let index = graph.param(Type::new(DType::I32, [0, 3]));
        let found = graph.push(StructuralOp::from(TakeAlong { axis: 0 }), &[x, index]).expect("it fits");
        graph.results.push(found);
        assert_eq!(plan(&graph, &[], &DeviceLimits::TEST).steps.len(), 1);
    }
}

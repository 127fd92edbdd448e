//! The cuts of an operation's operands, from those of its result.
use crate::build::dims;
use crate::graph::{Equation, Graph, Op};
use pallas_ir::structural::{Access, MapPiece, Nest, NestAxisRole, Position, WindowAxis, Windows};
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

    /// Returns the number of elements along an axis of this extent that a program has if blocks have one position along
    /// the grid's axis.
    pub(super) fn unit_block_extent(self, extent: usize) -> usize {
        match self {
            Grid(_) => 1,
            GridParts(_, part) => part,
            Full => extent,
        }
    }
}

/// Returns the number of elements of a value that a program has if blocks have one position along each axis of the
/// grid.
pub(crate) fn unit_block_elements(shape: &[usize], cuts: &[AxisTiling]) -> usize {
    shape.iter().zip(cuts).map(|(&n, cut)| cut.unit_block_extent(n)).product()
}

/// Returns true if no two programs of a grid with `grid_axes` axes have the same block of a value with these cuts.
pub(crate) fn has_distinct_blocks(grid_axes: usize, cuts: &[AxisTiling]) -> bool {
    (0..grid_axes).all(|k| cuts.iter().any(|cut| cut.grid_axis() == Some(k as u8)))
}

/// Returns the shapes of an equation's operands.
pub(super) fn operand_shapes<'g>(graph: &'g Graph, e: &Equation) -> Vec<&'g [usize]> {
    e.args.iter().map(|&v| &graph.ty(v).shape[..]).collect()
}

/// Returns the access form of the structural operation of an equation.
pub(super) fn access_form(graph: &Graph, e: &Equation, op: &StructuralOp) -> Access {
    let shapes: Vec<Vec<Dim>> = operand_shapes(graph, e).into_iter().map(dims).collect();
    op.access(&shapes.iter().map(|shape| &shape[..]).collect::<Vec<_>>())
}

/// Returns the cuts of each operand of an equation whose result has these cuts, read from the operation's access form;
/// `None` if blocks of the result do not follow from blocks of the operands.
pub(crate) fn operand_tilings(graph: &Graph, e: &Equation, cuts: &[AxisTiling]) -> Option<Vec<Vec<AxisTiling>>> {
    let shapes = operand_shapes(graph, e);
    let result = &graph.ty(e.result()).shape[..];
    let same = || vec![cuts.to_vec(); e.args.len()];
    // Axes along which an operation moves or combines elements have to be whole.
    let if_full = |axes: &[usize]| axes.iter().all(|&axis| cuts[axis] == Full).then(same);
    let fold = |axes: &[usize]| match cuts.len() == shapes[0].len() {
        true => if_full(axes),
        false => Some(vec![insert_full_axes(cuts, axes)]),
    };
    let op = match &e.op {
        Op::Literal(_) => return Some(vec![]),
        Op::Identity(_) | Op::Scalar(_) => return Some(same()),
        Op::Structural(StructuralOp::Pad(pad)) if padded_parts_axis(&pad.low, &pad.high, cuts).is_some() => {
            return Some(vec![cuts.to_vec(), vec![]]);
        }
        Op::Structural(op) => op,
        Op::Dynamic(_) | Op::Collective(_) | Op::Call(_) => return None,
    };
    match access_form(graph, e, op) {
        Access::Cast | Access::Bitcast | Access::Powi(_) => Some(same()),
        Access::Iota { .. } => Some(vec![]),
        Access::Map(pieces) => map_operand_tilings(&pieces, &shapes, result, cuts),
        Access::Flat => Some(vec![reshape_operand_tiling(shapes[0], result, cuts)?]),
        Access::Contract { batch, contract } => Some(product_operand_tilings(&batch, &contract, &shapes, cuts)),
        Access::Fold { axes, .. } => fold(&axes),
        Access::Arg { axis, .. } => fold(&[axis]),
        Access::Scan { axis, .. } | Access::Sort { axis, .. } => if_full(&[axis]),
        Access::Gather { windows, .. } => gather_operand_tilings(&windows, &shapes, result, cuts),
        // A scatter is a step of its own.
        Access::Scatter { .. } => None,
        Access::Nest(nest) => nest_operand_tilings(&nest, &shapes, cuts),
    }
}

/// Returns the cuts of the operands of an operation each of whose result elements is one operand element; `None` if it
/// moves elements along an axis that is split.
fn map_operand_tilings(
    pieces: &[MapPiece],
    shapes: &[&[usize]],
    result: &[usize],
    cuts: &[AxisTiling],
) -> Option<Vec<Vec<AxisTiling>>> {
    let moved = find_moved_axes(pieces, shapes, result);
    if moved.iter().any(|&axis| cuts[axis] != Full) {
        return None;
    }
    let mut own: Vec<Vec<AxisTiling>> = shapes.iter().map(|shape| vec![Full; shape.len()]).collect();
    for piece in pieces {
        for (dim, index) in piece.index.iter().enumerate() {
            own[piece.operand][dim] = index.axis.map_or(Full, |axis| cuts[axis]);
        }
    }
    Some(own)
}

/// Returns the axes of the result along which these pieces have bounds, or take elements from other positions than
/// their own.
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

/// Returns the cuts of both operands of a product, from those of its result: first the batch axes, then the free axes
/// of each operand.
fn product_operand_tilings(
    batch: &[(usize, usize)],
    contract: &[(usize, usize)],
    shapes: &[&[usize]],
    cuts: &[AxisTiling],
) -> Vec<Vec<AxisTiling>> {
    let mut own = [vec![Full; shapes[0].len()], vec![Full; shapes[1].len()]];
    let (of_batch, mut free) = cuts.split_at(batch.len());
    for (&(a, b), &cut) in batch.iter().zip(of_batch) {
        (own[0][a], own[1][b]) = (cut, cut);
    }
    for (side, own) in own.iter_mut().enumerate() {
        let axis_in = |&(a, b): &(usize, usize)| [a, b][side];
        for (axis, own) in own.iter_mut().enumerate() {
            if batch.iter().chain(contract).all(|pair| axis_in(pair) != axis) {
                let (&cut, rest) = free.split_first().expect("the result has all free axes");
                (*own, free) = (cut, rest);
            }
        }
    }
    own.into()
}

/// Returns the axis of a nest whose index is the position, if it is one; `None` for sums of several axes, strides, and
/// positions that are always 0.
fn single_nest_axis(nest: &Nest, position: &Position) -> Option<usize> {
    let mut terms = position.terms.iter().filter(|term| nest.axes[term.0].extent != 1);
    let &(axis, stride) = terms.next()?;
    (terms.next().is_none() && (stride, position.offset, position.dilation) == (1, 0, 1)).then_some(axis)
}

/// Returns true if blocks of a nest's result along this dimension follow from blocks of its operands: where the
/// dimension's loop occurs in an operand's position, it is a whole dimension of it.
pub(super) fn is_dim_separable(nest: &Nest, shapes: &[&[usize]], dim: usize) -> bool {
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

/// Returns the cuts of the operands of a convolution or a fold of windows; `None` if an axis is split along which a
/// window moves, or which groups share.
fn nest_operand_tilings(nest: &Nest, shapes: &[&[usize]], cuts: &[AxisTiling]) -> Option<Vec<Vec<AxisTiling>>> {
    if (0..cuts.len()).any(|dim| cuts[dim] != Full && !is_dim_separable(nest, shapes, dim)) {
        return None;
    }
    let cut = |axis: usize| {
        let dim = nest.result.iter().position(|position| single_nest_axis(nest, position) == Some(axis));
        dim.filter(|_| nest.axes[axis].role == NestAxisRole::Parallel).map_or(Full, |dim| cuts[dim])
    };
    let of = |position: &Position| single_nest_axis(nest, position).map_or(Full, cut);
    Some(nest.operands.iter().map(|positions| positions.iter().map(of).collect()).collect())
}

/// Returns the axis that is split into parts, if a pad only fills up the last part of it; `None` for other pads.
pub(super) fn padded_parts_axis(low: &[Dim], high: &[Dim], cuts: &[AxisTiling]) -> Option<usize> {
    let is_none = |n: &Dim| n.as_number() == Some(0);
    let mut all = (0..cuts.len()).filter(|&i| !is_none(&low[i]) || !is_none(&high[i]));
    let axis = all.next().filter(|&axis| is_none(&low[axis]) && matches!(cuts[axis], GridParts(..)))?;
    all.next().is_none().then_some(axis)
}

/// Returns the cuts of a gather's operand and of its indices: axes that indices address are whole, and so is the axis
/// of the components of an index; `None` if windows along an addressed axis are split.
fn gather_operand_tilings(
    windows: &Windows,
    shapes: &[&[usize]],
    result: &[usize],
    cuts: &[AxisTiling],
) -> Option<Vec<Vec<AxisTiling>>> {
    let mut own = [vec![Full; shapes[0].len()], vec![Full; shapes[1].len()]];
    // Nothing can be looked up along an axis without elements, not even by the block of an empty result.
    let is_empty = |(window, &n): (&WindowAxis, &usize)| window.start.is_some() && n == 0;
    if windows.axes.iter().zip(shapes[0]).any(is_empty) && cuts.iter().any(|&cut| cut != Full) {
        return None;
    }
    for (axis, window) in windows.axes.iter().enumerate() {
        let Some(from) = window.axis else { continue };
        if window.start.is_none() && result[from] == shapes[0][axis] {
            own[0][axis] = cuts[from];
        } else if !windows.index.contains(&from) && cuts[from] != Full {
            return None;
        }
    }
    let positions = (0..shapes[1].len()).filter(|&axis| Some(axis) != windows.vector);
    positions.zip(&windows.index).for_each(|(axis, &from)| own[1][axis] = cuts[from]);
    Some(own.into())
}

/// Returns the cuts of a result with [`AxisTiling::Full`] inserted for the axes `axes` of the operand, which the result
/// lacks.
fn insert_full_axes(cuts: &[AxisTiling], axes: &[usize]) -> Vec<AxisTiling> {
    let mut rest = cuts.iter().copied();
    let next = |axis| if axes.contains(&axis) { Full } else { rest.next().expect("the result has all other axes") };
    (0..cuts.len() + axes.len()).map(next).collect()
}

/// Returns the cuts of an array from those of its reshaped form: unchanged axes keep theirs, an axis that becomes two
/// is split into parts if the first of these is split, and all other axes are whole; `None` if the reshaped form splits
/// others.
fn reshape_operand_tiling(from: &[usize], to: &[usize], cuts: &[AxisTiling]) -> Option<Vec<AxisTiling>> {
    if from.contains(&0) {
        // Without elements, no groups of axes correspond to each other.
        return cuts.iter().all(|&cut| cut == Full).then(|| vec![Full; from.len()]);
    }
    let (mut i, mut j, mut own) = (0, 0, vec![Full; from.len()]);
    while i < from.len() || j < to.len() {
        if i < from.len() && j < to.len() && from[i] == to[j] {
            own[i] = cuts[j];
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
        match cuts[first_j..j] {
            // Heads of a few features are no parts: products compute all of them.
            [Grid(k), Full] if i == first_i + 1 && (i < from.len() || to[j - 1] >= MIN_LAST_AXIS_PART_ELEMENTS) => {
                own[first_i] = GridParts(k, to[j - 1]);
            }
            ref cuts if cuts.iter().any(|&cut| cut != Full) => return None,
            _ => {}
        }
    }
    Some(own)
}

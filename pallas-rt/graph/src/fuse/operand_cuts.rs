//! The cuts of an operation's operands, from those of its result.
use crate::graph::{Equation, Graph, Op};
use pallas_ir::structural::{
    ArgReduce, ArgSort, ArgTopK, Broadcast, Concat, Cumulative, Gather, Pad, Reduce, Reverse, Roll, Slice, Sort,
    TakeAlong, Transpose,
};
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

/// Fewest elements of a part of a last axis.
const MIN_LAST_PART_ELEMENTS: usize = 256;

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

/// Returns true if no two programs of a grid with `axes` axes have the same block of a value with these cuts.
pub(crate) fn has_distinct_blocks(axes: usize, cuts: &[AxisTiling]) -> bool {
    (0..axes).all(|k| cuts.iter().any(|cut| cut.grid_axis() == Some(k as u8)))
}

/// Returns the cuts of each operand of an equation whose result has these cuts; `None` if blocks of the result do not
/// follow from blocks of the operands.
pub(crate) fn operand_tilings(graph: &Graph, e: &Equation, cuts: &[AxisTiling]) -> Option<Vec<Vec<AxisTiling>>> {
    let shape = |i: usize| &graph.ty(e.args[i]).shape[..];
    let result = &graph.ty(e.result()).shape[..];
    let same = || vec![cuts.to_vec(); e.args.len()];
    // Axes along which an operation moves or combines elements have to be whole.
    let if_full = |axes: &[usize]| axes.iter().all(|&axis| cuts[axis] == Full).then(same);
    let op = match &e.op {
        Op::Literal(_) => return Some(vec![]),
        Op::Identity(_) | Op::Scalar(_) => return Some(same()),
        Op::Structural(op) => op,
        Op::Dynamic(_) | Op::Collective(_) | Op::Call(_) => return None,
    };
    match op {
        StructuralOp::Cast(_) | StructuralOp::Bitcast(_) | StructuralOp::Powi(_) => Some(same()),
        StructuralOp::Iota(_) => Some(vec![]),
        StructuralOp::Broadcast(Broadcast { dims, .. }) => {
            let own = |(&n, &axis): (&usize, &usize)| if n == result[axis] { cuts[axis] } else { Full };
            Some(vec![shape(0).iter().zip(dims).map(own).collect()])
        }
        StructuralOp::Reduce(Reduce { axes, keep: false, .. }) => Some(vec![insert_full_axes(cuts, axes)]),
        StructuralOp::ArgReduce(ArgReduce { axis, keep: false, .. }) => Some(vec![insert_full_axes(cuts, &[*axis])]),
        StructuralOp::Reduce(Reduce { axes, .. }) | StructuralOp::Reverse(Reverse { axes }) => if_full(axes),
        StructuralOp::ArgReduce(ArgReduce { axis, .. })
        | StructuralOp::Cumulative(Cumulative { axis, .. })
        | StructuralOp::Concat(Concat { axis })
        | StructuralOp::ArgSort(ArgSort { axis, .. })
        | StructuralOp::ArgTopK(ArgTopK { axis, .. })
        | StructuralOp::Sort(Sort { axis })
        | StructuralOp::TakeAlong(TakeAlong { axis })
        | StructuralOp::Roll(Roll { axis, .. }) => if_full(&[*axis]),
        StructuralOp::Gather(op) => gather_tilings(op, [shape(0), shape(1)], result, cuts),
        // A scatter is a step of its own.
        StructuralOp::Scatter(_) => None,
        StructuralOp::Transpose(Transpose { axes }) => {
            let mut own = vec![Full; axes.len()];
            axes.iter().zip(cuts).for_each(|(&axis, &cut)| own[axis] = cut);
            Some(vec![own])
        }
        StructuralOp::Dot(dot) => {
            let mut own = [vec![Full; shape(0).len()], vec![Full; shape(1).len()]];
            let mut rest = cuts.iter().copied();
            let mut next = || rest.next().expect("the result has batch and free axes");
            for &(a, b) in &dot.batch {
                let cut = next();
                (own[0][a], own[1][b]) = (cut, cut);
            }
            for side in [0, 1] {
                dot.free_axes(side, shape(side).len()).into_iter().for_each(|axis| own[side][axis] = next());
            }
            Some(own.into())
        }
        StructuralOp::Conv(conv) => super::convolution_cuts::conv_operand_tilings(conv, cuts),
        StructuralOp::ReduceWindow(_) => {
            let whole = super::convolution_cuts::whole_axes(&e.op, result).expect("it has windows");
            if_full(&(0..cuts.len()).filter(|&axis| whole[axis]).collect::<Vec<_>>())
        }
        StructuralOp::Reshape(_) => Some(vec![reshape_tiling(shape(0), result, cuts)?]),
        StructuralOp::Slice(Slice { start, .. }) => {
            let moved = |&i: &usize| start[i] != 0 || result[i] != shape(0)[i];
            if_full(&(0..cuts.len()).filter(moved).collect::<Vec<_>>())
        }
        StructuralOp::Pad(Pad { low, high }) => {
            let none = |i: usize| low[i].as_number() == Some(0) && high[i].as_number() == Some(0);
            let is_full = || (0..cuts.len()).all(|i| none(i) || cuts[i] == Full);
            (padded_parts_axis(low, high, cuts).is_some() || is_full()).then(|| vec![cuts.to_vec(), vec![]])
        }
    }
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
fn gather_tilings(
    op: &Gather,
    [x, index]: [&[usize]; 2],
    result: &[usize],
    cuts: &[AxisTiling],
) -> Option<Vec<Vec<AxisTiling>>> {
    let windows = op.windows(index.len());
    let mut own = [vec![Full; x.len()], vec![Full; index.len()]];
    for (axis, window) in windows.axes.iter().enumerate() {
        let Some(from) = window.axis else { continue };
        if window.start.is_none() && result[from] == x[axis] {
            own[0][axis] = cuts[from];
        } else if !windows.index.contains(&from) && cuts[from] != Full {
            return None;
        }
    }
    let positions = (0..index.len()).filter(|&axis| Some(axis) != windows.vector);
    positions.zip(&windows.index).for_each(|(axis, &from)| own[1][axis] = cuts[from]);
    Some(own.into())
}

/// Returns the cuts of a result with [`AxisTiling::Full`] inserted for the axes `axes` of the operand, which the result lacks.
fn insert_full_axes(cuts: &[AxisTiling], axes: &[usize]) -> Vec<AxisTiling> {
    let mut rest = cuts.iter().copied();
    let next = |axis| if axes.contains(&axis) { Full } else { rest.next().expect("the result has all other axes") };
    (0..cuts.len() + axes.len()).map(next).collect()
}

/// Returns the cuts of an array from those of its reshaped form: unchanged axes keep theirs, an axis that becomes two
/// is split into parts if the first of these is split, and all other axes are whole; `None` if the reshaped form splits
/// others.
fn reshape_tiling(from: &[usize], to: &[usize], cuts: &[AxisTiling]) -> Option<Vec<AxisTiling>> {
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
            [Grid(k), Full] if i == first_i + 1 && (i < from.len() || to[j - 1] >= MIN_LAST_PART_ELEMENTS) => {
                own[first_i] = GridParts(k, to[j - 1]);
            }
            ref cuts if cuts.iter().any(|&cut| cut != Full) => return None,
            _ => {}
        }
    }
    Some(own)
}

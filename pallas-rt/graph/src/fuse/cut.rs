//! The cuts of an operation's operands, from those of its result.
use crate::graph::{Equation, Graph, Op};
use pallas_ir::structural::{
    ArgReduce, ArgSort, ArgTopK, Broadcast, Concat, Cumulative, Gather, Pad, Reduce, Reverse, Roll, Slice, Sort,
    TakeAlong, Transpose,
};
use pallas_ir::{Dim, StructuralOp};

/// The division of one axis of a value among the programs of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cut {
    /// The axis is split into blocks along this axis of the grid.
    Grid(u8),
    /// The axis is split into parts of this many adjacent elements, and the parts into blocks along this axis of the
    /// grid.
    Parts(u8, usize),
    /// Each program has the whole axis.
    Full,
}
use Cut::{Full, Grid, Parts};

/// Fewest elements of a part of a last axis.
const LAST: usize = 256;

impl Cut {
    /// Returns the axis of the grid along which the value is split; `None` if each program has it whole.
    pub fn axis(self) -> Option<u8> {
        match self {
            Grid(k) | Parts(k, _) => Some(k),
            Full => None,
        }
    }

    /// Returns the number of elements along an axis of this extent that a program has if blocks have one position along
    /// the grid's axis.
    pub(super) fn least(self, extent: usize) -> usize {
        match self {
            Grid(_) => 1,
            Parts(_, part) => part,
            Full => extent,
        }
    }
}

/// Returns the number of elements of a value that a program has if blocks have one position along each axis of the
/// grid.
pub(crate) fn whole(shape: &[usize], cuts: &[Cut]) -> usize {
    shape.iter().zip(cuts).map(|(&n, cut)| cut.least(n)).product()
}

/// Returns true if no two programs of a grid with `axes` axes have the same block of a value with these cuts.
pub(crate) fn covers(axes: usize, cuts: &[Cut]) -> bool {
    (0..axes).all(|k| cuts.iter().any(|cut| cut.axis() == Some(k as u8)))
}

/// Returns the cuts of each operand of an equation whose result has these cuts; `None` if blocks of the result do not
/// follow from blocks of the operands.
pub(crate) fn operands(graph: &Graph, e: &Equation, cuts: &[Cut]) -> Option<Vec<Vec<Cut>>> {
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
        StructuralOp::Reduce(Reduce { axes, keep: false, .. }) => Some(vec![with_full(cuts, axes)]),
        StructuralOp::ArgReduce(ArgReduce { axis, keep: false, .. }) => Some(vec![with_full(cuts, &[*axis])]),
        StructuralOp::Reduce(Reduce { axes, .. }) | StructuralOp::Reverse(Reverse { axes }) => if_full(axes),
        StructuralOp::ArgReduce(ArgReduce { axis, .. })
        | StructuralOp::Cumulative(Cumulative { axis, .. })
        | StructuralOp::Concat(Concat { axis })
        | StructuralOp::ArgSort(ArgSort { axis, .. })
        | StructuralOp::ArgTopK(ArgTopK { axis, .. })
        | StructuralOp::Sort(Sort { axis })
        | StructuralOp::TakeAlong(TakeAlong { axis })
        | StructuralOp::Roll(Roll { axis, .. }) => if_full(&[*axis]),
        StructuralOp::Gather(op) => gathered(op, [shape(0), shape(1)], result, cuts),
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
                dot.free(side, shape(side).len()).into_iter().for_each(|axis| own[side][axis] = next());
            }
            Some(own.into())
        }
        StructuralOp::Conv(conv) => super::windowed::operands(conv, cuts),
        StructuralOp::ReduceWindow(_) => {
            let whole = super::windowed::whole(&e.op, result).expect("it has windows");
            if_full(&(0..cuts.len()).filter(|&axis| whole[axis]).collect::<Vec<_>>())
        }
        StructuralOp::Reshape(_) => Some(vec![reshaped(shape(0), result, cuts)?]),
        StructuralOp::Slice(Slice { start, .. }) => {
            let moved = |&i: &usize| start[i] != 0 || result[i] != shape(0)[i];
            if_full(&(0..cuts.len()).filter(moved).collect::<Vec<_>>())
        }
        StructuralOp::Pad(Pad { low, high }) => {
            let none = |i: usize| low[i].as_number() == Some(0) && high[i].as_number() == Some(0);
            let is_full = || (0..cuts.len()).all(|i| none(i) || cuts[i] == Full);
            (padded(low, high, cuts).is_some() || is_full()).then(|| vec![cuts.to_vec(), vec![]])
        }
    }
}

/// Returns the axis that is split into parts, if a pad only fills up the last part of it; `None` for other pads.
pub(super) fn padded(low: &[Dim], high: &[Dim], cuts: &[Cut]) -> Option<usize> {
    let is_none = |n: &Dim| n.as_number() == Some(0);
    let mut all = (0..cuts.len()).filter(|&i| !is_none(&low[i]) || !is_none(&high[i]));
    let axis = all.next().filter(|&axis| is_none(&low[axis]) && matches!(cuts[axis], Parts(..)))?;
    all.next().is_none().then_some(axis)
}

/// Returns the cuts of a gather's operand and of its indices: axes that indices address are whole, and so is the axis
/// of the components of an index; `None` if windows along an addressed axis are split.
fn gathered(op: &Gather, [x, index]: [&[usize]; 2], result: &[usize], cuts: &[Cut]) -> Option<Vec<Vec<Cut>>> {
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

/// Returns the cuts of a result with [`Cut::Full`] inserted for the axes `axes` of the operand, which the result lacks.
fn with_full(cuts: &[Cut], axes: &[usize]) -> Vec<Cut> {
    let mut rest = cuts.iter().copied();
    let next = |axis| if axes.contains(&axis) { Full } else { rest.next().expect("the result has all other axes") };
    (0..cuts.len() + axes.len()).map(next).collect()
}

/// Returns the cuts of an array from those of its reshaped form: unchanged axes keep theirs, an axis that becomes two
/// is split into parts if the first of these is split, and all other axes are whole; `None` if the reshaped form splits
/// others.
fn reshaped(from: &[usize], to: &[usize], cuts: &[Cut]) -> Option<Vec<Cut>> {
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
            [Grid(k), Full] if i == first_i + 1 && (i < from.len() || to[j - 1] >= LAST) => {
                own[first_i] = Parts(k, to[j - 1]);
            }
            ref cuts if cuts.iter().any(|&cut| cut != Full) => return None,
            _ => {}
        }
    }
    Some(own)
}

//! How an operation's result is made from its operands: the one interface that the interpreter and every backend lower.
use super::Nest;
use crate::{Dim, ScalarOp};

/// The form of a structural operation, for given operand shapes.
#[derive(Clone, Debug, PartialEq)]
pub enum Access {
    /// Each result element is one operand element: that of the first piece whose bounds hold. Backends may copy a piece
    /// wherever its bounds hold, so it has an element of its operand there, also where an earlier piece is the result.
    Map(Vec<Piece>),
    /// The same row-major position of operand 0.
    Flat,
    /// Sum of products over pairs of axes; the result has batch axes, free axes of `a`, free axes of `b`.
    Contract {
        /// (axis of a, axis of b) that both keep.
        batch: Vec<(usize, usize)>,
        /// (axis of a, axis of b) summed over.
        contract: Vec<(usize, usize)>,
    },
    /// A monoid folded over axes, which stay with extent 1; in the traced form the result may be without them.
    Fold {
        /// The monoid.
        op: ScalarOp,
        /// Axes folded.
        axes: Vec<usize>,
    },
    /// A monoid folded over products of elements, or over elements, at affine positions.
    Nest(Nest),
    /// Inclusive running fold along an axis.
    Scan {
        /// The monoid.
        op: ScalarOp,
        /// The axis.
        axis: usize,
        /// From the end.
        reverse: bool,
    },
    /// i32 position of the extreme element along an axis, which stays with extent 1; in the traced form the result may be
    /// without it. The first of ties; a NaN wins.
    Arg {
        /// Largest, else smallest.
        max: bool,
        /// The axis.
        axis: usize,
    },
    /// Windows of operand 0 at starts that operand 1 gives. A window that would leave the operand is moved inside.
    Gather {
        /// The windows; their elements are the result's.
        windows: Windows,
        /// True if a start outside of the operand is a mistake, which the interpreter reports.
        checked: bool,
    },
    /// Operand 0 with windows of it combined with the elements of operand 2, at starts that operand 1 gives, in the order
    /// of the starts. A window that would leave the operand is skipped.
    Scatter {
        /// The windows; their elements are those of operand 2.
        windows: Windows,
        /// Combines an element with that of a window; `None`: the latter replaces it.
        op: Option<ScalarOp>,
    },
    /// Elements of operand 0 in order along an axis: the first ones, as many as the result has there. Equal elements keep
    /// their order.
    Sort {
        /// The axis.
        axis: usize,
        /// The order.
        order: Order,
        /// The result is their i32 positions along the axis.
        positions: bool,
    },
    /// The coordinate along an axis.
    Iota {
        /// The axis.
        axis: usize,
    },
    /// Conversion to the result's type, element by element.
    Cast,
    /// The same bits as the result's type.
    Bitcast,
    /// Elementwise integer power.
    Powi(i32),
}

/// Windows of an operand, whose elements another array has: the result of a gather, the updates of a scatter.
#[derive(Clone, Debug, PartialEq)]
pub struct Windows {
    /// One per axis of the operand.
    pub axes: Vec<WindowAxis>,
    /// For each axis of the indices but that of their start vectors: the same axis of the windows' array.
    pub index: Vec<usize>,
    /// The axis of the indices along which start vectors lie; `None`: each index is a vector of one start.
    pub vector: Option<usize>,
}

/// The coordinate along an axis of the operand: `start + coordinate` in the windows' array, each 0 where there is none.
/// Without a start the axis and that of the windows' array are parallel.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowAxis {
    /// Position of the start in its vector.
    pub start: Option<usize>,
    /// Axis of the windows' array.
    pub axis: Option<usize>,
    /// Extent of a window; 1 for an axis that both arrays' index positions share.
    pub size: Dim,
}

impl Windows {
    /// The number of starts in a vector.
    pub fn starts(&self) -> usize {
        self.axes.iter().filter(|w| w.start.is_some()).count()
    }
    /// The highest start along each addressed axis of an operand of this shape, in the order of a start vector.
    pub fn last(&self, operand: &[Dim]) -> Vec<i64> {
        let number = |d: &Dim| d.as_number().expect("an access form has sizes of numbers");
        let mut last = vec![0; self.starts()];
        for (window, n) in self.axes.iter().zip(operand) {
            if let Some(k) = window.start {
                last[k] = number(n) - number(&window.size);
            }
        }
        last
    }
    /// Returns true if each window is one row of an operand of this shape: its last axis is whole, and of all others, which
    /// have starts or are parallel with index positions, it has one element.
    pub fn are_rows(&self, operand: &[usize]) -> bool {
        let (Some((last, others)), Some(&n)) = (self.axes.split_last(), operand.last()) else { return false };
        let is = |window: &WindowAxis, n: usize| window.size.as_number() == Some(n as i64);
        let is_position = |window: &WindowAxis| window.axis.is_some_and(|axis| self.index.contains(&axis));
        let is_one = |window: &WindowAxis| (window.start.is_some() || is_position(window)) && is(window, 1);
        let is_whole = last.start.is_none() && last.axis.is_some() && !is_position(last) && is(last, n);
        is_whole && !others.is_empty() && others.iter().all(is_one)
    }
    /// The axes of the windows' array that are axes inside of a window.
    pub fn inner(&self) -> Vec<usize> {
        self.axes.iter().filter_map(|w| w.axis).filter(|axis| !self.index.contains(axis)).collect()
    }
}

/// The order of elements in a [`Access::Sort`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// From the smallest: -0 equals +0; NaNs are equal to each other, and last.
    Ascending,
    /// From the largest: -0 equals +0; NaNs are equal to each other, and first.
    Descending,
    /// From the largest by the total order of IEEE 754: +0 is above -0, a NaN is above all numbers, or below all if its
    /// sign is negative.
    Largest,
}

/// A part of a [`Access::Map`].
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The operand read.
    pub operand: usize,
    /// One per axis of that operand.
    pub index: Vec<Index>,
    /// `lo <= coordinate < hi` of a result axis; no bounds: everywhere.
    pub bounds: Vec<(usize, Dim, Dim)>,
}

/// `offset + stride * coordinate` of a result axis; without an axis always `offset`.
#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    /// The result axis.
    pub axis: Option<usize>,
    /// Factor.
    pub stride: Dim,
    /// Constant.
    pub offset: Dim,
}

impl Piece {
    /// Returns true if the piece has an element of its operand wherever its bounds hold in a result. All sizes are numbers.
    pub fn is_inside(&self, operand: &[Dim], result: &[Dim]) -> bool {
        let number = |d: &Dim| d.as_number().expect("an access form has sizes of numbers");
        let mut within: Vec<(i64, i64)> = result.iter().map(|d| (0, number(d))).collect();
        for (axis, lo, hi) in &self.bounds {
            let (first, end) = within[*axis];
            within[*axis] = (number(lo).max(first), number(hi).min(end));
        }
        let fits = |(index, n): (&Index, &Dim)| {
            let at = |coordinate: i64| {
                number(&index.stride).saturating_mul(coordinate).saturating_add(number(&index.offset))
            };
            let (first, last) = index.axis.map_or((0, 0), |axis| (within[axis].0, within[axis].1 - 1));
            [first, last].into_iter().all(|i| (0..number(n)).contains(&at(i)))
        };
        within.iter().any(|(first, end)| first >= end)
            || (self.index.len() == operand.len() && self.index.iter().zip(operand).all(fits))
    }
}

impl Index {
    /// The result's own coordinate.
    pub fn of(axis: usize) -> Index {
        Index { axis: Some(axis), stride: 1i64.into(), offset: 0i64.into() }
    }
    /// The coordinate shifted by `offset`.
    pub fn shifted(axis: usize, offset: Dim) -> Index {
        Index { offset, ..Index::of(axis) }
    }
    /// Always the first element.
    pub fn first() -> Index {
        Index { axis: None, stride: 0i64.into(), offset: 0i64.into() }
    }
}

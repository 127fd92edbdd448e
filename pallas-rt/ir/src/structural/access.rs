//! Access forms: how an operation's result is made from its operands. Interpreter and backends lower these alone.
use super::LoopNest;
use crate::{Dim, ScalarOp};

/// Access form of a structural operation for given operand shapes: the rule by which each element of the result is made
/// from elements of the operands.
#[derive(Clone, Debug, PartialEq)]
pub enum AccessForm {
    /// Each result element is one operand element: that of the first piece whose bounds hold. Pieces must be readable
    /// wherever their bounds hold, even where an earlier piece gives the result, since backends may copy any of them
    /// there.
    Map(Vec<MapPiece>),
    /// Each result element is the element of operand 0 at the same row-major position.
    Flat,
    /// Sum of products over pairs of axes; the result has the batch axes, then the free axes of `a`, then those of `b`.
    Contract {
        /// Pairs (axis of a, axis of b) that both operands share and the result keeps.
        batch: Vec<(usize, usize)>,
        /// Pairs (axis of a, axis of b) that are summed over.
        contract: Vec<(usize, usize)>,
    },
    /// Fold of a monoid over axes, which stay with extent 1; in the traced form the result may drop them.
    Fold {
        /// The monoid that folds.
        op: ScalarOp,
        /// The axes to fold.
        axes: Vec<usize>,
    },
    /// Fold of a monoid over elements, or products of elements, at affine positions.
    Nest(LoopNest),
    /// Inclusive running fold of a monoid along an axis.
    Scan {
        /// The monoid that folds.
        op: ScalarOp,
        /// The axis to scan.
        axis: usize,
        /// True if the scan runs from the end to the start.
        reverse: bool,
    },
    /// i32 position of the extreme element along an axis, which stays with extent 1; in the traced form the result may
    /// drop it. Of equal elements the first wins; a NaN wins over numbers.
    Arg {
        /// True if the largest element is sought, else the smallest.
        max: bool,
        /// The axis to search.
        axis: usize,
    },
    /// Windows of operand 0 at starts that operand 1 gives. A window that would leave the operand is moved inside.
    Gather {
        /// The windows, whose elements are those of the result.
        windows: IndexedWindows,
        /// True if a start outside of the operand is an error, which the interpreter reports.
        checked: bool,
    },
    /// Operand 0, with windows of it combined with the elements of operand 2, at starts that operand 1 gives, in the
    /// order of the starts. A window that would leave the operand is skipped.
    Scatter {
        /// The windows, whose elements are combined with those of operand 2.
        windows: IndexedWindows,
        /// Combines an element of operand 0 with one of operand 2; `None`: the latter replaces it.
        op: Option<ScalarOp>,
    },
    /// Operand 0 sorted along an axis; the result has the first elements, as many as its extent there. Equal elements
    /// keep their order.
    Sort {
        /// The axis to sort along.
        axis: usize,
        /// The order of elements.
        order: SortOrder,
        /// True if the result is the elements' i32 positions along the axis instead of the elements.
        positions: bool,
    },
    /// The coordinate of each element along an axis.
    Iota {
        /// The axis that is counted along.
        axis: usize,
    },
    /// Conversion of each element to the result's type.
    Cast,
    /// Each element's bits as a value of the result's type.
    Bitcast,
    /// Each element to this integer power.
    Powi(i32),
}

/// Windows of an operand, addressed by start vectors. Their elements are those of a second array, the *windows' array*:
/// the result of a gather, the updates of a scatter.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexedWindows {
    /// Each axis of the operand.
    pub axes: Vec<WindowAxis>,
    /// For each axis of the array of starts, without that along which a start vector lies: the axis of the windows'
    /// array.
    pub index: Vec<usize>,
    /// The axis of the array of starts along which start vectors lie; `None`: each element is a vector of one start.
    pub vector: Option<usize>,
}

/// Rule for the coordinate along one axis of the operand of a gather or scatter: a start from the indices plus a
/// coordinate in the windows' array (the result or the updates), where an absent term is 0. Without a start the axis is
/// parallel with one of the windows' array.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowAxis {
    /// Index of the start in its vector.
    pub start: Option<usize>,
    /// Axis of the windows' array that counts inside of the window.
    pub axis: Option<usize>,
    /// Extent of a window; 1 for an axis that is parallel with an axis of the starts.
    pub size: Dim,
}

impl IndexedWindows {
    /// Number of starts in a start vector: one for each axis of the operand that the indices address.
    pub fn start_vector_length(&self) -> usize {
        self.axes.iter().filter(|w| w.start.is_some()).count()
    }
    /// Highest valid start along each addressed axis of an operand of this shape, in the order of a start vector.
    pub fn max_starts(&self, operand: &[Dim]) -> Vec<i64> {
        let number = |d: &Dim| d.as_number().expect("an access form has sizes of numbers");
        let mut last = vec![0; self.start_vector_length()];
        for (window, n) in self.axes.iter().zip(operand) {
            if let Some(k) = window.start {
                last[k] = number(n) - number(&window.size);
            }
        }
        last
    }
    /// Returns true if each window is one row of an operand of this shape: it has the whole last axis, and one element
    /// along all others, which have starts or are parallel with an axis of the starts.
    pub fn are_operand_rows(&self, operand: &[usize]) -> bool {
        let (Some((last, others)), Some(&n)) = (self.axes.split_last(), operand.last()) else { return false };
        let is = |window: &WindowAxis, n: usize| window.size.as_number() == Some(n as i64);
        let is_position = |window: &WindowAxis| window.axis.is_some_and(|axis| self.index.contains(&axis));
        let is_one = |window: &WindowAxis| (window.start.is_some() || is_position(window)) && is(window, 1);
        let is_whole = last.start.is_none() && last.axis.is_some() && !is_position(last) && is(last, n);
        is_whole && !others.is_empty() && others.iter().all(is_one)
    }
    /// Axes of the windows' array (the result of a gather, the updates of a scatter) that count inside of a window.
    pub fn window_axes(&self) -> Vec<usize> {
        self.axes.iter().filter_map(|w| w.axis).filter(|axis| !self.index.contains(axis)).collect()
    }
}

/// The order of elements in a [`AccessForm::Sort`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SortOrder {
    /// Ascending; -0 equals +0; NaNs are equal to each other, and last.
    Ascending,
    /// Descending; -0 equals +0; NaNs are equal to each other, and first.
    Descending,
    /// Descending by the total order of IEEE 754: +0 is above -0; a NaN is above all numbers, or below all if its sign
    /// is negative.
    Largest,
}

/// A part of the result of an [`AccessForm::Map`], which is read from one operand.
#[derive(Clone, Debug, PartialEq)]
pub struct MapPiece {
    /// Index of the operand that is read.
    pub operand: usize,
    /// Position along each axis of that operand.
    pub index: Vec<AffineIndex>,
    /// Part of the result: axes with bounds `lo <= coordinate < hi`; none: the whole result.
    pub bounds: Vec<(usize, Dim, Dim)>,
}

/// Affine position `offset + stride * coordinate of a result axis`; without an axis always `offset`.
#[derive(Clone, Debug, PartialEq)]
pub struct AffineIndex {
    /// The result axis whose coordinate counts; `None`: the position is always `offset`.
    pub axis: Option<usize>,
    /// Factor of the coordinate.
    pub stride: Dim,
    /// Constant term.
    pub offset: Dim,
}

impl MapPiece {
    /// Returns true if the piece reads only existing elements wherever its bounds hold. All sizes must be constants.
    pub fn is_inside_operand(&self, operand: &[Dim], result: &[Dim]) -> bool {
        let number = |d: &Dim| d.as_number().expect("an access form has sizes of numbers");
        let mut within: Vec<(i64, i64)> = result.iter().map(|d| (0, number(d))).collect();
        for (axis, lo, hi) in &self.bounds {
            let (first, end) = within[*axis];
            within[*axis] = (number(lo).max(first), number(hi).min(end));
        }
        let fits = |(index, n): (&AffineIndex, &Dim)| {
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

impl AffineIndex {
    /// The coordinate along a result axis.
    pub fn from_axis(axis: usize) -> AffineIndex {
        AffineIndex { axis: Some(axis), stride: 1i64.into(), offset: 0i64.into() }
    }
    /// The coordinate along a result axis plus `offset`.
    pub fn from_axis_with_offset(axis: usize, offset: Dim) -> AffineIndex {
        AffineIndex { offset, ..AffineIndex::from_axis(axis) }
    }
    /// The position 0 for every element of the result.
    pub fn zero() -> AffineIndex {
        AffineIndex { axis: None, stride: 0i64.into(), offset: 0i64.into() }
    }
}

//! Affine nests (convolutions, windowed reductions) over memory, and the boxes of their positions at which every
//! operand has an element.
//!
//! ```text
//! positions of the axes    an operand's checks fail at some of them: beyond the edges of an image
//! boxes                    ranges of the axes at which all checks hold: the inside, and strips along edges
//! loops                    a box in memory: extents and strides in each array, neighbouring axes merged
//! ```
#![warn(clippy::wildcard_enum_match_arm)]
use super::gemm::Number;
use super::rows::copy_row;
use super::strips::compiled;
use super::tile::Tile;
use pallas_ir::structural::{Nest, Position, Role};
use std::cmp::Reverse;
use std::ops::Range;

/// Index of the result among the arrays of a nest; the operands are 0 and 1.
pub(super) const RESULT: usize = 2;

/// A condition under which an array has an element at a position: `0 <= Σ stride · axis + offset < extent`.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) array: usize,
    strides: Vec<isize>,
    offset: isize,
    extent: isize,
}

impl Check {
    /// Returns the smallest and the greatest value of the checked sum in a box of positions.
    fn reach(&self, ranges: &Ranges) -> (isize, isize) {
        let [mut least, mut most] = [self.offset; 2];
        for (by, range) in self.strides.iter().zip(ranges).filter(|(by, _)| **by != 0) {
            least += by * range.start as isize;
            most += by * (range.end as isize - 1);
        }
        (least, most)
    }
    /// Returns the share of positions at which the check holds; 1 if more than two axes have strides.
    fn share(&self, extents: &[usize]) -> f64 {
        let mut moving: Vec<usize> = (0..extents.len()).filter(|&axis| self.strides[axis] != 0).collect();
        moving.sort_by_key(|&axis| extents[axis]);
        let (first, second) = match moving[..] {
            [one] => ((0, 1), (self.strides[one], extents[one])),
            [one, two] => ((self.strides[one], extents[one]), (self.strides[two], extents[two])),
            _ => return 1.0,
        };
        let inside = |i: usize| {
            let (base, by, n) = (self.offset + first.0 * i as isize, second.0, second.1 as isize);
            (up(self.extent - base, by).clamp(0, n) - up(-base, by).clamp(0, n)).max(0)
        };
        (0..first.1).map(inside).sum::<isize>() as f64 / (first.1 * second.1) as f64
    }
}

/// An affine nest whose positions are offsets in memory, of two operands (a reduction has no second one) and the
/// result.
#[derive(Debug)]
pub(super) struct Linear {
    pub(super) extents: Vec<usize>,
    pub(super) is_parallel: Vec<bool>,
    /// For each array, true for each axis along which its position moves.
    pub(super) moves: [Vec<bool>; 3],
    pub(super) strides: [Vec<isize>; 3],
    offsets: [isize; 3],
    pub(super) checks: Vec<Check>,
}

/// A range of positions for each axis of a nest: a box.
pub(super) type Ranges = [Range<usize>];

impl Linear {
    /// Creates the nest for arrays with these strides and shapes; it has no dilations and no empty loops.
    pub(super) fn new(nest: &Nest, arrays: [(&Tile, &[usize]); 3]) -> Linear {
        let rank = nest.axes.len();
        let mut linear = Linear {
            extents: nest.axes.iter().map(|axis| axis.extent as usize).collect(),
            is_parallel: nest.axes.iter().map(|axis| axis.role == Role::Parallel).collect(),
            moves: [0; 3].map(|_| vec![false; rank]),
            strides: [0; 3].map(|_| vec![0; rank]),
            offsets: [0; 3],
            checks: vec![],
        };
        let none: &[Position] = &[];
        let second = nest.operands.get(1).map_or(none, |place| place);
        for (array, place) in [&nest.operands[0][..], second, &nest.result].into_iter().enumerate() {
            let (tile, shape) = arrays[array];
            for ((position, &stride), &n) in place.iter().zip(&tile.strides).zip(shape) {
                linear.offsets[array] += position.offset as isize * stride;
                let mut check =
                    Check { array, strides: vec![0; rank], offset: position.offset as isize, extent: n as isize };
                for &(axis, by) in position.terms.iter().filter(|t| nest.axes[t.0].extent > 1) {
                    linear.strides[array][axis] += by as isize * stride;
                    linear.moves[array][axis] = true;
                    check.strides[axis] += by as isize;
                }
                if !position.is_inside(&nest.axes, n as i64) {
                    linear.checks.push(check);
                }
            }
        }
        linear
    }
    /// Returns the axes that have more than one position.
    pub(super) fn axes(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        (0..self.extents.len()).filter(|&axis| self.extents[axis] > 1)
    }
    /// Returns the box of all positions.
    pub(super) fn all(&self) -> Vec<Range<usize>> {
        self.extents.iter().map(|&n| 0..n).collect()
    }
    /// Returns true if an operand has no element at some positions.
    pub(super) fn is_checked(&self, array: usize) -> bool {
        self.checks.iter().any(|check| check.array == array)
    }
    /// Returns true if an operand has an element at all positions of a box.
    pub(super) fn is_inside(&self, array: usize, ranges: &Ranges) -> bool {
        self.checks.iter().filter(|check| check.array == array).all(|check| {
            let (least, most) = check.reach(ranges);
            least >= 0 && most < check.extent
        })
    }
    /// Estimates the share of positions at which all operands have an element.
    pub(super) fn share_inside(&self) -> f64 {
        self.checks.iter().map(|check| check.share(&self.extents)).product()
    }
    /// Sorts axes by their stride in an array, greatest first.
    pub(super) fn sorted(&self, array: usize, axes: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut axes: Vec<usize> = axes.collect();
        axes.sort_by_key(|&axis| Reverse(self.strides[array][axis].unsigned_abs()));
        axes
    }
    /// Returns the offset of a box's first element in an array, in elements.
    pub(super) fn first(&self, array: usize, ranges: &Ranges) -> isize {
        let moved: isize = self.strides[array].iter().zip(ranges).map(|(by, range)| by * range.start as isize).sum();
        self.offsets[array] + moved
    }
    /// Divides `ranges` into boxes of the positions at which the checks hold (of one array, or of all if `None`), and
    /// calls `f` with each. Axes are divided in the given order, which has all axes with checks.
    pub(super) fn boxes(&self, array: Option<usize>, order: &[usize], ranges: &mut Ranges, f: &mut dyn FnMut(&Ranges)) {
        let mut is_inside = true;
        let mut inner: Option<Range<isize>> = None;
        for check in self.checks.iter().filter(|check| array.is_none_or(|array| check.array == array)) {
            let (least, most) = check.reach(ranges);
            if most < 0 || least >= check.extent {
                return;
            }
            if least >= 0 && most < check.extent {
                continue;
            }
            is_inside = false;
            let Some(&axis) = order.first().filter(|&&axis| check.strides[axis] != 0) else { continue };
            let (by, range) = (check.strides[axis], &ranges[axis]);
            // At these positions of the axis, the check holds at every position of the other axes.
            let from = up(by * range.start as isize - least, by);
            let to = up(check.extent - most + by * (range.end as isize - 1), by);
            inner = Some(inner.map_or(from..to, |inner| inner.start.max(from)..inner.end.min(to)));
        }
        if is_inside {
            return f(ranges);
        }
        let (&axis, rest) = order.split_first().expect("a check holds at a position, or does not");
        let Some(inner) = inner else { return self.boxes(array, rest, ranges, f) };
        let range = ranges[axis].clone();
        let start = (inner.start.max(0) as usize).clamp(range.start, range.end);
        let end = (inner.end.max(0) as usize).clamp(start, range.end);
        let mut part = |part: Range<usize>| {
            ranges[axis] = part;
            self.boxes(array, rest, ranges, f);
        };
        (range.start..start).for_each(|i| part(i..i + 1));
        if start < end {
            part(start..end);
        }
        (end..range.end).for_each(|i| part(i..i + 1));
        ranges[axis] = range;
    }
    /// Returns the loops over a box, along axes in the given order from the outermost on; `by` gives the strides of an
    /// axis.
    pub(super) fn loops<const N: usize>(
        &self,
        ranges: &Ranges,
        order: &[usize],
        by: impl Fn(usize) -> [isize; N],
    ) -> Loops<N> {
        let mut loops: Vec<Along<N>> = vec![];
        for &axis in order.iter().filter(|&&axis| ranges[axis].len() != 1) {
            let (n, by) = (ranges[axis].len(), by(axis));
            match loops.last_mut() {
                Some(last) if (0..N).all(|t| last.by[t] == by[t] * n as isize) => *last = Along { n: last.n * n, by },
                _ => loops.push(Along { n, by }),
            }
        }
        Loops(loops)
    }
    /// Returns the order of loops for a fold into the result: rows of the result are innermost, all that is folded
    /// into them is around these.
    pub(super) fn folding(&self) -> Vec<usize> {
        let mut parallel = self.sorted(RESULT, self.axes().filter(|&axis| self.is_parallel[axis]));
        let mut inside = vec![];
        while inside.len() < 2 && inside.iter().map(|&axis: &usize| self.extents[axis]).product::<usize>() < ROW {
            let Some(axis) = parallel.pop() else { break };
            inside.insert(0, axis);
        }
        let folded = self.sorted(0, self.axes().filter(|&axis| !self.is_parallel[axis]));
        [parallel, folded, inside].concat()
    }
    /// Returns the order in which axes are divided into boxes: axes of windows first, so that there are few boxes.
    pub(super) fn dividing(&self) -> Vec<usize> {
        let mut order: Vec<usize> = self.axes().collect();
        order.sort_by_key(|&axis| self.is_parallel[axis]);
        order
    }
}

/// Minimum elements of an inner row for which the loops around it cost little.
const ROW: usize = 64;

/// Returns `a / b` rounded up; `b` is positive.
fn up(a: isize, b: isize) -> isize {
    -(-a).div_euclid(b)
}

/// A loop over elements of `N` arrays: its number of iterations, and the stride in each array.
#[derive(Clone, Copy, Debug)]
pub(super) struct Along<const N: usize> {
    pub n: usize,
    pub by: [isize; N],
}

/// The three innermost loops, which one call of a compiled function executes.
pub(super) type Inner<const N: usize> = [Along<N>; 3];

/// A nest of loops over elements of `N` arrays, the outermost first.
#[derive(Debug)]
pub(super) struct Loops<const N: usize>(Vec<Along<N>>);

impl<const N: usize> Loops<N> {
    /// Calls `f` for each iteration of the outer loops, with the offsets at which the three innermost loops begin, and
    /// these loops.
    pub(super) fn each(&self, first: [isize; N], f: &mut impl FnMut([isize; N], &Inner<N>)) {
        let once = Along { n: 1, by: [0; N] };
        let (outer, inside) = self.0.split_at(self.0.len().saturating_sub(3));
        let mut inner = [once; 3];
        inner[3 - inside.len()..].copy_from_slice(inside);
        Self::around(outer, &inner, first, f);
    }
    fn around(outer: &[Along<N>], inner: &Inner<N>, at: [isize; N], f: &mut impl FnMut([isize; N], &Inner<N>)) {
        let Some((along, rest)) = outer.split_first() else { return f(at, inner) };
        let mut at = at;
        for _ in 0..along.n {
            Self::around(rest, inner, at, f);
            (0..N).for_each(|t| at[t] += along.by[t]);
        }
    }
}

/// Calls `f` with the offsets at which each run of the innermost loop begins.
#[inline(always)]
pub(super) fn each_row<const N: usize>(inner: &Inner<N>, mut f: impl FnMut([isize; N])) {
    let mut outer = [0; N];
    for _ in 0..inner[0].n {
        let mut at = outer;
        for _ in 0..inner[1].n {
            f(at);
            (0..N).for_each(|t| at[t] += inner[1].by[t]);
        }
        (0..N).for_each(|t| outer[t] += inner[0].by[t]);
    }
}

/// Copies the elements of three nested loops.
///
/// # Safety
/// Both have elements at all of their positions, and do not overlap.
#[inline(always)]
unsafe fn copy<T: Copy>(from: *const T, to: *mut T, inner: &Inner<2>) {
    let Along { n, by } = inner[2];
    each_row(inner, |[x, y]| {
        // SAFETY: the caller's.
        unsafe {
            let (from, to) = (from.offset(x), to.offset(y));
            if by == [1; 2] {
                copy_run(from, to, n);
            } else if by == [2, 1] {
                copy_row(from.cast(), by[0], to.cast(), by[1], n, size_of::<T>());
            } else {
                (0..n as isize).for_each(|i| *to.offset(i * by[1]) = *from.offset(i * by[0]));
            }
        }
    });
}

/// Copies adjacent elements; a few of them in fewer instructions than a call takes.
///
/// # Safety
/// Both have `n` elements and do not overlap.
#[inline(always)]
unsafe fn copy_run<T: Copy>(from: *const T, to: *mut T, n: usize) {
    // SAFETY: the caller's: blocks lie inside of both.
    unsafe {
        if n >= 128 {
            return std::ptr::copy_nonoverlapping(from, to, n);
        }
        let mut at = 0;
        macro_rules! block {
            ($n:literal) => {
                to.add(at).cast::<[T; $n]>().write(from.add(at).cast::<[T; $n]>().read());
                at += $n;
            };
        }
        while at + 16 <= n {
            block!(16);
        }
        if n & 8 != 0 {
            block!(8);
        }
        if n & 4 != 0 {
            block!(4);
        }
        if n & 2 != 0 {
            block!(2);
        }
        if n & 1 != 0 {
            *to.add(at) = *from.add(at);
        }
    }
}
compiled! { fastest_copy<T: Copy>() = copy(from: *const T, to: *mut T, inner: &Inner<2>) }

/// Copies the elements of nested loops; `first` are the offsets at which the loops begin.
///
/// # Safety
/// Both have elements at all of their positions, and do not overlap.
pub(super) unsafe fn copy_loops<T: Copy>(loops: &Loops<2>, from: *const T, to: *mut T, first: [isize; 2]) {
    let run = fastest_copy::<T>();
    // SAFETY: the caller's.
    loops.each(first, &mut |[x, y], inner| unsafe { run(from.offset(x), to.offset(y), inner) });
}

/// Adds elements in three nested loops: `to[..] += from[..]`.
///
/// # Safety
/// Both have elements at all of their positions, and do not overlap.
#[inline(always)]
unsafe fn add<T: Number>(from: *const T, to: *mut T, inner: &Inner<2>) {
    let Along { n, by } = inner[2];
    each_row(inner, |[x, y]| {
        for i in 0..n as isize {
            // SAFETY: the caller's.
            unsafe {
                let to = to.offset(y + i * by[1]);
                *to = T::add(*to, *from.offset(x + i * by[0]));
            }
        }
    });
}
compiled! { fastest_add<T: Number>() = add(from: *const T, to: *mut T, inner: &Inner<2>) }

/// Adds the elements of nested loops to others; `first` are the offsets at which the loops begin.
///
/// # Safety
/// As [`copy_loops`].
pub(super) unsafe fn add_loops<T: Number>(loops: &Loops<2>, from: *const T, to: *mut T, first: [isize; 2]) {
    let run = fastest_add::<T>();
    // SAFETY: the caller's.
    loops.each(first, &mut |[x, y], inner| unsafe { run(from.offset(x), to.offset(y), inner) });
}

/// Adds products in three nested loops: `c[..] += a[..] · b[..]`.
///
/// # Safety
/// All have elements at all of their positions; `c` overlaps neither other.
#[inline(always)]
unsafe fn steps<T: Number>(a: *const T, b: *const T, c: *mut T, inner: &Inner<3>) {
    let Along { n, by } = inner[2];
    each_row(inner, |[x, y, z]| {
        // SAFETY: the caller's.
        unsafe {
            let (a, b, c) = (a.offset(x), b.offset(y), c.offset(z));
            match by {
                [1, 1, 1] => (0..n).for_each(|i| *c.add(i) = T::step(*c.add(i), *a.add(i), *b.add(i))),
                [1, 0, 1] => {
                    let b = *b;
                    (0..n).for_each(|i| *c.add(i) = T::step(*c.add(i), *a.add(i), b));
                }
                [from, with, to] => {
                    for i in 0..n as isize {
                        let c = c.offset(i * to);
                        *c = T::step(*c, *a.offset(i * from), *b.offset(i * with));
                    }
                }
            }
        }
    });
}
compiled! { fastest_steps<T: Number>() = steps(a: *const T, b: *const T, c: *mut T, inner: &Inner<3>) }

/// Adds the products of the operands' elements in nested loops to the result; `first` are the offsets at which the
/// loops begin.
///
/// # Safety
/// All have elements at all of their positions; the result overlaps no operand.
pub(super) unsafe fn step_loops<T: Number>(loops: &Loops<3>, operands: [*const T; 2], to: *mut T, first: [isize; 3]) {
    let (run, [a, b]) = (fastest_steps::<T>(), operands);
    // SAFETY: the caller's.
    loops.each(first, &mut |[x, y, z], inner| unsafe { run(a.offset(x), b.offset(y), to.offset(z), inner) });
}

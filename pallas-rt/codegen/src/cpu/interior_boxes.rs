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
use super::row_copies::copy_row;
use super::strips::compiled;
use super::tile::StridedTile;
use pallas_ir::structural::{AffinePosition, LoopNest, NestAxisRole};
use std::cmp::Reverse;
use std::ops::Range;

/// Index of the result among the arrays of a nest; the operands are 0 and 1.
pub(super) const RESULT_INDEX: usize = 2;

/// A condition under which an array has an element at a position: `0 <= Σ stride · axis + offset < extent`.
#[derive(Debug)]
pub(super) struct BoundsCheck {
    pub(super) array: usize,
    strides: Vec<isize>,
    offset: isize,
    extent: isize,
}

impl BoundsCheck {
    /// Returns the smallest and the greatest value of the checked sum in a box of positions.
    fn value_range(&self, ranges: &AxisRanges) -> (isize, isize) {
        let [mut least, mut most] = [self.offset; 2];
        for (by, range) in self.strides.iter().zip(ranges).filter(|(by, _)| **by != 0) {
            least += by * range.start as isize;
            most += by * (range.end as isize - 1);
        }
        (least, most)
    }
    /// Returns the share of positions at which the check holds; 1 if more than two axes have strides.
    fn fraction_inside(&self, extents: &[usize]) -> f64 {
        let mut moving: Vec<usize> = (0..extents.len()).filter(|&axis| self.strides[axis] != 0).collect();
        moving.sort_by_key(|&axis| extents[axis]);
        let (first, second) = match moving[..] {
            [one] => ((0, 1), (self.strides[one], extents[one])),
            [one, two] => ((self.strides[one], extents[one]), (self.strides[two], extents[two])),
            _ => return 1.0,
        };
        let inside = |i: usize| {
            let (base, by, n) = (self.offset + first.0 * i as isize, second.0, second.1 as isize);
            (div_ceil(self.extent - base, by).clamp(0, n) - div_ceil(-base, by).clamp(0, n)).max(0)
        };
        (0..first.1).map(inside).sum::<isize>() as f64 / (first.1 * second.1) as f64
    }
}

/// A loop nest over two operands (a reduction has only one) and a result, in whose memory the offsets are affine
/// functions of the loop indices.
#[derive(Debug)]
pub(super) struct AffineLoopNest {
    pub(super) extents: Vec<usize>,
    pub(super) is_parallel: Vec<bool>,
    /// For each array, true for each axis along which its position moves.
    pub(super) moves: [Vec<bool>; 3],
    pub(super) strides: [Vec<isize>; 3],
    offsets: [isize; 3],
    pub(super) checks: Vec<BoundsCheck>,
}

/// A range of positions for each axis of a nest: a box.
pub(super) type AxisRanges = [Range<usize>];

impl AffineLoopNest {
    /// Creates the nest for arrays with these strides and shapes; it has no dilations and no empty loops.
    pub(super) fn new(nest: &LoopNest, arrays: [(&StridedTile, &[usize]); 3]) -> AffineLoopNest {
        let rank = nest.axes.len();
        let mut linear = AffineLoopNest {
            extents: nest.axes.iter().map(|axis| axis.extent as usize).collect(),
            is_parallel: nest.axes.iter().map(|axis| axis.role == NestAxisRole::Parallel).collect(),
            moves: [0; 3].map(|_| vec![false; rank]),
            strides: [0; 3].map(|_| vec![0; rank]),
            offsets: [0; 3],
            checks: vec![],
        };
        let none: &[AffinePosition] = &[];
        let second = nest.operands.get(1).map_or(none, |place| place);
        for (array, place) in [&nest.operands[0][..], second, &nest.result].into_iter().enumerate() {
            let (tile, shape) = arrays[array];
            for ((position, &stride), &n) in place.iter().zip(&tile.strides).zip(shape) {
                linear.offsets[array] += position.offset as isize * stride;
                let mut check =
                    BoundsCheck { array, strides: vec![0; rank], offset: position.offset as isize, extent: n as isize };
                for &(axis, by) in position.terms.iter().filter(|t| nest.axes[t.0].extent > 1) {
                    linear.strides[array][axis] += by as isize * stride;
                    linear.moves[array][axis] = true;
                    check.strides[axis] += by as isize;
                }
                if !position.is_always_inside(&nest.axes, n as i64) {
                    linear.checks.push(check);
                }
            }
        }
        linear
    }
    /// Returns the axes that have more than one position.
    pub(super) fn non_unit_axes(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        (0..self.extents.len()).filter(|&axis| self.extents[axis] > 1)
    }
    /// Returns the box of all positions.
    pub(super) fn full_ranges(&self) -> Vec<Range<usize>> {
        self.extents.iter().map(|&n| 0..n).collect()
    }
    /// Returns true if an operand has no element at some positions.
    pub(super) fn has_bounds_checks(&self, array: usize) -> bool {
        self.checks.iter().any(|check| check.array == array)
    }
    /// Returns true if an operand has an element at all positions of a box.
    pub(super) fn is_box_inside(&self, array: usize, ranges: &AxisRanges) -> bool {
        self.checks.iter().filter(|check| check.array == array).all(|check| {
            let (least, most) = check.value_range(ranges);
            least >= 0 && most < check.extent
        })
    }
    /// Estimates the share of positions at which all operands have an element.
    pub(super) fn fraction_inside(&self) -> f64 {
        self.checks.iter().map(|check| check.fraction_inside(&self.extents)).product()
    }
    /// Sorts axes by their stride in an array, greatest first.
    pub(super) fn sort_axes_by_stride(&self, array: usize, axes: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut axes: Vec<usize> = axes.collect();
        axes.sort_by_key(|&axis| Reverse(self.strides[array][axis].unsigned_abs()));
        axes
    }
    /// Returns the offset of a box's first element in an array, in elements.
    pub(super) fn first_element_offset(&self, array: usize, ranges: &AxisRanges) -> isize {
        let moved: isize = self.strides[array].iter().zip(ranges).map(|(by, range)| by * range.start as isize).sum();
        self.offsets[array] + moved
    }
    /// Divides `ranges` into boxes of the positions at which the checks hold (of one array, or of all if `None`), and
    /// calls `f` with each. Axes are divided in the given order, which has all axes with checks.
    pub(super) fn for_each_inside_box(
        &self,
        array: Option<usize>,
        axis_order: &[usize],
        ranges: &mut AxisRanges,
        f: &mut dyn FnMut(&AxisRanges),
    ) {
        let mut is_inside = true;
        let mut inner: Option<Range<isize>> = None;
        for check in self.checks.iter().filter(|check| array.is_none_or(|array| check.array == array)) {
            let (least, most) = check.value_range(ranges);
            if most < 0 || least >= check.extent {
                return;
            }
            if least >= 0 && most < check.extent {
                continue;
            }
            is_inside = false;
            let Some(&axis) = axis_order.first().filter(|&&axis| check.strides[axis] != 0) else { continue };
            let (by, range) = (check.strides[axis], &ranges[axis]);
            // At these positions of the axis, the check holds at every position of the other axes.
            let from = div_ceil(by * range.start as isize - least, by);
            let to = div_ceil(check.extent - most + by * (range.end as isize - 1), by);
            inner = Some(inner.map_or(from..to, |inner| inner.start.max(from)..inner.end.min(to)));
        }
        if is_inside {
            return f(ranges);
        }
        let (&axis, rest) = axis_order.split_first().expect("a check holds at a position, or does not");
        let Some(inner) = inner else { return self.for_each_inside_box(array, rest, ranges, f) };
        let range = ranges[axis].clone();
        let start = (inner.start.max(0) as usize).clamp(range.start, range.end);
        let end = (inner.end.max(0) as usize).clamp(start, range.end);
        let mut part = |part: Range<usize>| {
            ranges[axis] = part;
            self.for_each_inside_box(array, rest, ranges, f);
        };
        (range.start..start).for_each(|i| part(i..i + 1));
        if start < end {
            part(start..end);
        }
        (end..range.end).for_each(|i| part(i..i + 1));
        ranges[axis] = range;
    }
    /// Returns the loops over a box, along axes in the given order from the outermost on; the function gives the
    /// strides of an axis in the `N` arrays.
    pub(super) fn loops_over_box<const N: usize>(
        &self,
        ranges: &AxisRanges,
        axis_order: &[usize],
        axis_strides: impl Fn(usize) -> [isize; N],
    ) -> StridedLoopNest<N> {
        let mut loops: Vec<StridedLoop<N>> = vec![];
        for &axis in axis_order.iter().filter(|&&axis| ranges[axis].len() != 1) {
            let (n, by) = (ranges[axis].len(), axis_strides(axis));
            match loops.last_mut() {
                Some(last) if (0..N).all(|t| last.by[t] == by[t] * n as isize) => {
                    *last = StridedLoop { n: last.n * n, by }
                }
                _ => loops.push(StridedLoop { n, by }),
            }
        }
        StridedLoopNest(loops)
    }
    /// Returns the order of loops for a fold into the result: rows of the result are innermost, all that is folded
    /// into them is around these.
    pub(super) fn fold_loop_order(&self) -> Vec<usize> {
        let mut parallel =
            self.sort_axes_by_stride(RESULT_INDEX, self.non_unit_axes().filter(|&axis| self.is_parallel[axis]));
        let mut inside = vec![];
        while inside.len() < 2
            && inside.iter().map(|&axis: &usize| self.extents[axis]).product::<usize>() < MIN_INNER_ROW_ELEMENTS
        {
            let Some(axis) = parallel.pop() else { break };
            inside.insert(0, axis);
        }
        let folded = self.sort_axes_by_stride(0, self.non_unit_axes().filter(|&axis| !self.is_parallel[axis]));
        [parallel, folded, inside].concat()
    }
    /// Returns the order in which axes are divided into boxes: axes that are folded, such as those of a window, come
    /// first, so that there are few boxes.
    pub(super) fn box_division_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = self.non_unit_axes().collect();
        order.sort_by_key(|&axis| self.is_parallel[axis]);
        order
    }
}

/// Elements of the innermost loop over the result from which on the loops around it cost little; if it has fewer, the
/// next axis of the result is moved inside too.
const MIN_INNER_ROW_ELEMENTS: usize = 64;

/// Returns `a / b` rounded up; `b` is positive.
fn div_ceil(a: isize, b: isize) -> isize {
    -(-a).div_euclid(b)
}

/// A loop over elements of `N` arrays: its number of iterations, and the stride in each array.
#[derive(Clone, Copy, Debug)]
pub(super) struct StridedLoop<const N: usize> {
    pub n: usize,
    pub by: [isize; N],
}

/// The three innermost loops, which one call of a compiled function executes.
pub(super) type InnerLoops<const N: usize> = [StridedLoop<N>; 3];

/// A nest of loops over elements of `N` arrays, the outermost first.
#[derive(Debug)]
pub(super) struct StridedLoopNest<const N: usize>(Vec<StridedLoop<N>>);

impl<const N: usize> StridedLoopNest<N> {
    /// Calls `f` for each iteration of the outer loops, with the offsets at which the three innermost loops begin, and
    /// these loops.
    pub(super) fn for_each_outer_iteration(
        &self,
        first_offsets: [isize; N],
        f: &mut impl FnMut([isize; N], &InnerLoops<N>),
    ) {
        let once = StridedLoop { n: 1, by: [0; N] };
        let (outer, inside) = self.0.split_at(self.0.len().saturating_sub(3));
        let mut inner = [once; 3];
        inner[3 - inside.len()..].copy_from_slice(inside);
        Self::run_outer_loops(outer, &inner, first_offsets, f);
    }
    fn run_outer_loops(
        outer: &[StridedLoop<N>],
        inner: &InnerLoops<N>,
        offsets: [isize; N],
        f: &mut impl FnMut([isize; N], &InnerLoops<N>),
    ) {
        let Some((along, rest)) = outer.split_first() else { return f(offsets, inner) };
        let mut at = offsets;
        for _ in 0..along.n {
            Self::run_outer_loops(rest, inner, at, f);
            (0..N).for_each(|t| at[t] += along.by[t]);
        }
    }
}

/// Calls `f` with the offsets at which each run of the innermost loop begins.
#[inline(always)]
pub(super) fn for_each_row<const N: usize>(inner: &InnerLoops<N>, mut f: impl FnMut([isize; N])) {
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
unsafe fn copy<T: Copy>(from: *const T, to: *mut T, inner: &InnerLoops<2>) {
    let StridedLoop { n, by } = inner[2];
    for_each_row(inner, |[x, y]| {
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
compiled! { fastest_copy<T: Copy>() = copy(from: *const T, to: *mut T, inner: &InnerLoops<2>) }

/// Copies the elements of nested loops, which begin at a given offset in each of the two arrays.
///
/// # Safety
/// Both have elements at all of their positions, and do not overlap.
pub(super) unsafe fn copy_in_loops<T: Copy>(
    loops: &StridedLoopNest<2>,
    from: *const T,
    to: *mut T,
    first_offsets: [isize; 2],
) {
    let run = fastest_copy::<T>();
    // SAFETY: the caller's.
    loops.for_each_outer_iteration(first_offsets, &mut |[x, y], inner| unsafe {
        run(from.offset(x), to.offset(y), inner)
    });
}

/// Adds elements in three nested loops: `to[..] += from[..]`.
///
/// # Safety
/// Both have elements at all of their positions, and do not overlap.
#[inline(always)]
unsafe fn add<T: Number>(from: *const T, to: *mut T, inner: &InnerLoops<2>) {
    let StridedLoop { n, by } = inner[2];
    for_each_row(inner, |[x, y]| {
        for i in 0..n as isize {
            // SAFETY: the caller's.
            unsafe {
                let to = to.offset(y + i * by[1]);
                *to = T::add(*to, *from.offset(x + i * by[0]));
            }
        }
    });
}
compiled! { fastest_add<T: Number>() = add(from: *const T, to: *mut T, inner: &InnerLoops<2>) }

/// Adds the elements of nested loops to others: `to[..] += from[..]`. The loops begin at a given offset in each array.
///
/// # Safety
/// As [`copy_in_loops`].
pub(super) unsafe fn add_in_loops<T: Number>(
    loops: &StridedLoopNest<2>,
    from: *const T,
    to: *mut T,
    first_offsets: [isize; 2],
) {
    let run = fastest_add::<T>();
    // SAFETY: the caller's.
    loops.for_each_outer_iteration(first_offsets, &mut |[x, y], inner| unsafe {
        run(from.offset(x), to.offset(y), inner)
    });
}

/// Adds products in three nested loops: `c[..] += a[..] · b[..]`.
///
/// # Safety
/// All have elements at all of their positions; `c` overlaps neither other.
#[inline(always)]
unsafe fn add_products<T: Number>(a: *const T, b: *const T, c: *mut T, inner: &InnerLoops<3>) {
    let StridedLoop { n, by } = inner[2];
    for_each_row(inner, |[x, y, z]| {
        // SAFETY: the caller's.
        unsafe {
            let (a, b, c) = (a.offset(x), b.offset(y), c.offset(z));
            match by {
                [1, 1, 1] => (0..n).for_each(|i| *c.add(i) = T::multiply_add(*c.add(i), *a.add(i), *b.add(i))),
                [1, 0, 1] => {
                    let b = *b;
                    (0..n).for_each(|i| *c.add(i) = T::multiply_add(*c.add(i), *a.add(i), b));
                }
                [from, with, to] => {
                    for i in 0..n as isize {
                        let c = c.offset(i * to);
                        *c = T::multiply_add(*c, *a.offset(i * from), *b.offset(i * with));
                    }
                }
            }
        }
    });
}
compiled! { fastest_add_products<T: Number>() = add_products(a: *const T, b: *const T, c: *mut T, inner: &InnerLoops<3>) }

/// Adds the products of the operands' elements in nested loops to the result; the loops begin at a given offset in
/// each array.
///
/// # Safety
/// All have elements at all of their positions; the result overlaps no operand.
pub(super) unsafe fn add_products_in_loops<T: Number>(
    loops: &StridedLoopNest<3>,
    operands: [*const T; 2],
    to: *mut T,
    first_offsets: [isize; 3],
) {
    let (run, [a, b]) = (fastest_add_products::<T>(), operands);
    // SAFETY: the caller's.
    loops.for_each_outer_iteration(first_offsets, &mut |[x, y, z], inner| unsafe {
        run(a.offset(x), b.offset(y), to.offset(z), inner)
    });
}

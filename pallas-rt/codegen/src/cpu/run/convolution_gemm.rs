//! Computes an affine nest (a convolution) as products of matrices C = A · B: its axes are divided into rows, columns,
//! summed axes, and axes around them.
//!
//! ```text
//! for each position around                            one group, one image where its features lie far apart
//!     for each part of the sum, of columns, of rows   copies of A and B that stay in the caches
//!         C[rows, columns] += A[rows, sum] · B[sum, columns]
//! ```
//!
//! A matrix is read in place if its rows and columns have constant strides and all its elements exist; else the
//! elements of a part are copied to a buffer, with zeros for elements outside of the operand. Windows overlap, so such
//! a copy is larger than the operand, but it costs little beside the product if the other matrix is large.
use super::super::Thresholds;
use super::super::gemm::{Extents, Matrix, Number, OutputMatrix};
use super::super::interior_boxes::{self, AffineLoopNest, AxisRanges, RESULT_INDEX};
use std::ops::Range;

/// Elements of a vector of `f32`.
const F32_VECTOR_LANES: usize = 16;
/// Buffers that products reuse: copied parts of both operands, and the result if it is computed elsewhere.
#[derive(Debug)]
pub(super) struct ProductBuffers<T> {
    parts: [Vec<T>; 2],
    sums: Vec<T>,
}

impl<T> Default for ProductBuffers<T> {
    fn default() -> Self {
        ProductBuffers { parts: [vec![], vec![]], sums: vec![] }
    }
}

/// An affine nest, seen as a product of matrices.
pub(super) struct MatrixProduct<'a> {
    nest: &'a AffineLoopNest,
    sizes: &'a Thresholds,
    /// The ranges of the nest's axes that are computed.
    whole: &'a AxisRanges,
    /// Index of the operand that A is, and of the one that B is.
    sides: [usize; 2],
    /// Parallel axes that loop around the products, then the axes of rows, of columns, and of the sum.
    around: Vec<usize>,
    rows: Vec<usize>,
    columns: Vec<usize>,
    inner: Vec<usize>,
    /// For A and for B, true if the matrix is read in place instead of being copied.
    in_place: [bool; 2],
    /// True if the result's columns are not adjacent, so that it is computed in a buffer and copied.
    is_apart: bool,
    /// Number of row axes, the first ones, that loop around the products since their rows are not equally spaced.
    outer_rows: usize,
    /// Maximum number of terms that are summed in one product.
    depth: usize,
    /// True if A is copied only for its padding: products over boxes of positions whose elements all exist could read
    /// it in place.
    pub(super) fits_in_boxes: bool,
}

impl<'a> MatrixProduct<'a> {
    /// Returns the nest over `ranges` as a product of matrices. Returns `None` where loops are as fast: if the result's
    /// adjacent elements move in both operands (depthwise convolutions), or if there are no rows and B is read in
    /// order, each element once.
    pub(super) fn from_nest(
        nest: &'a AffineLoopNest,
        ranges: &'a AxisRanges,
        thresholds: &'a Thresholds,
    ) -> Option<MatrixProduct<'a>> {
        let axes = || nest.non_unit_axes().filter(|&axis| ranges[axis].len() > 1);
        let extents: Vec<usize> = ranges.iter().map(|range| range.len()).collect();
        let pads = |array: usize| !nest.is_box_inside(array, ranges);
        if pads(RESULT_INDEX) {
            return None;
        }
        let is_own = |side: usize, axis: usize| nest.is_parallel[axis] && nest.moves[side][axis];
        let only = |side: usize, axis: usize| is_own(side, axis) && !nest.moves[1 - side][axis];
        let parallel = || axes().filter(|&axis| nest.is_parallel[axis]);
        let last = parallel().min_by_key(|&axis| nest.strides[RESULT_INDEX][axis].unsigned_abs());
        let b = match last {
            Some(axis) if only(0, axis) => 0,
            Some(axis) if !only(1, axis) => return None,
            _ => 1,
        };
        let a = 1 - b;
        let of = |side: usize| nest.sort_axes_by_stride(RESULT_INDEX, parallel().filter(|&axis| only(side, axis)));
        let (rows, mut columns) = (of(a), of(b));
        if rows.is_empty() && last.is_some_and(|axis| nest.strides[b][axis] == 1) {
            return None;
        }
        let mut around: Vec<usize> = parallel().filter(|&axis| only(0, axis) == only(1, axis)).collect();
        // The axes of columns that are adjacent in the result; the others loop around the products.
        let is_adjacent = last.is_none_or(|axis| nest.strides[RESULT_INDEX][axis] == 1);
        let adjacent = if is_adjacent {
            count_merged_axes(&columns, |axis| nest.strides[RESULT_INDEX][axis], &extents)
        } else {
            0
        };
        let count: usize = columns[columns.len() - adjacent..].iter().map(|&axis| extents[axis]).product();
        let is_apart = adjacent < columns.len() && count < thresholds.few;
        if !is_apart {
            around.extend(columns.drain(..columns.len() - adjacent));
        }
        let folded = || axes().filter(|&axis| !nest.is_parallel[axis]);
        // The summed axes in the order of the operand over which no windows move, so that it may be read in place.
        let positions =
            |array: usize| axes().filter(|&axis| nest.moves[array][axis]).map(|axis| extents[axis]).product::<usize>();
        let is_image = pads(b) || !pads(a) && positions(b) > positions(a);
        let inner = nest.sort_axes_by_stride(if is_image { a } else { b }, folded());
        let collapse =
            |array: usize, axes: &[usize]| count_merged_axes(axes, |axis| nest.strides[array][axis], &extents);
        let is_whole = |array: usize, axes: &[usize]| collapse(array, axes) == axes.len();
        let size = |axes: &[usize]| axes.iter().map(|&axis| extents[axis]).product::<usize>();
        let of_result = if is_apart { rows.len() } else { collapse(RESULT_INDEX, &rows) };
        let both = of_result.min(collapse(a, &rows));
        let near_rows = &rows[rows.len() - both..];
        let near_inner = &inner[inner.len() - collapse(a, &inner)..];
        let is_deep = near_inner.len() == inner.len() || size(near_inner) >= thresholds.deep;
        let a_could_stay = is_deep && (both == rows.len() || size(near_rows) >= thresholds.few);
        let is_long_row = rows.last().is_some_and(|&axis| extents[axis] >= thresholds.few);
        let fits_in_boxes = pads(a) && !pads(b) && a_could_stay && is_long_row && !is_apart;
        let a_stays = !pads(a) && a_could_stay;
        let depth = if a_stays { size(near_inner) } else { usize::MAX };
        let b_stays = !pads(b) && is_whole(b, &inner) && is_whole(b, &columns);
        let outer_rows = rows.len() - if a_stays { both } else { of_result };
        Some(MatrixProduct {
            nest,
            sizes: thresholds,
            whole: ranges,
            sides: [a, b],
            around,
            rows,
            columns,
            inner,
            in_place: [a_stays, b_stays],
            is_apart,
            outer_rows,
            depth,
            fits_in_boxes,
        })
    }

    /// Returns true if the product reads both matrices and writes its result where they lie; at most the padded edges
    /// of the left one may be copied.
    pub(super) fn runs_in_place(&self) -> bool {
        self.in_place[1] && (self.in_place[0] || self.fits_in_boxes) && !self.is_apart
    }

    /// Computes the product: adds it to the result at `to` if `accumulate`, else overwrites that. Elements that an
    /// operand does not have count as zeros.
    ///
    /// # Safety
    /// The nest's positions are elements of the arrays wherever its checks hold, and the result overlaps no operand.
    pub(super) unsafe fn run<T: Number>(
        &self,
        operands: [*const T; 2],
        to: *mut T,
        accumulate: bool,
        buffers: &mut ProductBuffers<T>,
        multiply: &mut dyn FnMut(Extents, Matrix<T>, Matrix<T>, OutputMatrix<T>),
    ) {
        let (nest, whole, sizes) = (self.nest, self.whole, self.sizes);
        let size = |axes: &[usize]| axes.iter().map(|&axis| whole[axis].len()).product::<usize>();
        let (m, n, k) = (size(&self.rows), size(&self.columns), size(&self.inner));
        let mut depth = if k <= sizes.terms * 3 / 2 { k } else { sizes.terms }.min(self.depth);
        // Deep enough to take all columns at once: rows that lie apart would be packed again for each part of the
        // columns.
        if self.in_place == [true, false] && n * depth > 4 * sizes.part && 4 * sizes.part / n >= sizes.least_terms {
            depth = 4 * sizes.part / n;
        }
        let rows_at_once = if self.in_place[0] { m } else { (sizes.part / depth).max(sizes.least_rows) };
        let columns_at_once =
            if self.in_place[1] { n } else { (4 * sizes.part / depth).clamp(sizes.few, sizes.most_columns) };
        if self.is_apart && buffers.sums.len() < m * n {
            buffers.sums.resize(m * n, T::default());
        }
        let mut ranges = whole.to_vec();
        // The ranges whose elements each buffer holds at present.
        let mut held: [Option<Vec<Range<usize>>>; 2] = [None, None];
        for_each_range_part(&self.around, 1, &mut ranges, &mut |ranges| {
            let mut is_first = true;
            for_each_range_part(&self.inner, depth, ranges, &mut |ranges| {
                for_each_range_part(&self.columns, columns_at_once, ranges, &mut |ranges| {
                    for_each_range_part(&self.rows, rows_at_once, ranges, &mut |ranges| {
                        // SAFETY: the caller's.
                        let [a, b] = [0, 1].map(|side| unsafe {
                            self.operand_matrix(side, operands, &mut buffers.parts[side], &mut held[side], ranges)
                        });
                        let (first_row, first_column) = (
                            row_major_position(whole, &self.rows, ranges),
                            row_major_position(whole, &self.columns, ranges),
                        );
                        let mut group = 0;
                        let (outer, near) = self.rows.split_at(self.outer_rows);
                        let count = |axes: &[usize]| axes.iter().map(|&axis| ranges[axis].len()).product::<usize>();
                        let extents = Extents { m: count(near), n: count(&self.columns), k: count(&self.inner) };
                        for_each_range_part(outer, 1, ranges, &mut |ranges| {
                            // SAFETY: as above: the rows lie in the operand, or in the part.
                            unsafe {
                                let a_start = match self.in_place[0] {
                                    true => {
                                        operands[self.sides[0]].offset(nest.first_element_offset(self.sides[0], ranges))
                                    }
                                    false => a.start.offset(group * extents.m as isize * a.row),
                                };
                                let target = if self.is_apart {
                                    let at = (first_row + group as usize * extents.m) * n + first_column;
                                    let start = buffers.sums.as_mut_ptr().add(at);
                                    OutputMatrix { start, row: n as isize, add: !is_first }
                                } else {
                                    let row = near.last().map_or(0, |&axis| nest.strides[RESULT_INDEX][axis]);
                                    let start = to.offset(nest.first_element_offset(RESULT_INDEX, ranges));
                                    OutputMatrix { start, row, add: accumulate || !is_first }
                                };
                                multiply(extents, Matrix { start: a_start, ..a }, b, target);
                            }
                            group += 1;
                        });
                    });
                });
                is_first = false;
            });
            if self.is_apart {
                let order = [&self.rows[..], &self.columns].concat();
                let near = contiguous_strides(nest, ranges, &order);
                let loops = nest.loops_over_box(ranges, &order, |axis| [near[axis], nest.strides[RESULT_INDEX][axis]]);
                let (from, first) = (buffers.sums.as_ptr(), [0, nest.first_element_offset(RESULT_INDEX, ranges)]);
                // SAFETY: the result has every position of the parallel axes.
                unsafe {
                    match accumulate {
                        true => interior_boxes::add_in_loops(&loops, from, to, first),
                        false => interior_boxes::copy_in_loops(&loops, from, to, first),
                    }
                }
            }
        });
    }

    /// Returns the matrix A (`side` 0) or B (1) over these ranges: in place, or as a copy in `buffer`;
    /// `buffered_ranges` has the ranges that the buffer holds, `None` before the first copy.
    ///
    /// # Safety
    /// As [`MatrixProduct::run`].
    unsafe fn operand_matrix<T: Number>(
        &self,
        side: usize,
        operands: [*const T; 2],
        buffer: &mut Vec<T>,
        buffered_ranges: &mut Option<Vec<Range<usize>>>,
        ranges: &AxisRanges,
    ) -> Matrix<T> {
        let (nest, array) = (self.nest, self.sides[side]);
        let own = [&self.rows, &self.columns][side];
        let strides = &nest.strides[array];
        let (free, sum);
        let start;
        if self.in_place[side] {
            let by = |axes: &[usize]| axes.last().map_or(1, |&axis| strides[axis]);
            (free, sum) = (by(own), by(&self.inner));
            // SAFETY: the caller's.
            start = unsafe { operands[array].offset(nest.first_element_offset(array, ranges)) };
        } else {
            // Elements that lie near each other in the operand are adjacent in its copy.
            let near = |axis: &&usize| estimate_element_copy_cost(strides[**axis], nest.extents[**axis]);
            let moved = own.iter().chain(&self.inner).filter(|&&axis| strides[axis] != 0);
            let is_deep = moved.min_by_key(near).is_some_and(|axis| self.inner.contains(axis));
            let order = if is_deep { [&own[..], &self.inner].concat() } else { [&self.inner[..], own].concat() };
            let count = |axes: &[usize]| axes.iter().map(|&axis| ranges[axis].len()).product::<usize>();
            let (m, k) = (count(own), count(&self.inner));
            (free, sum) = if is_deep { (k as isize, 1) } else { (1, m as isize) };
            let here = |axis: usize| if nest.moves[array][axis] { ranges[axis].clone() } else { 0..1 };
            let is_held =
                buffered_ranges.as_ref().is_some_and(|held| nest.non_unit_axes().all(|axis| held[axis] == here(axis)));
            if !is_held {
                // SAFETY: the caller's.
                unsafe { self.copy_operand_box(array, operands[array], buffer, &order, ranges) };
                *buffered_ranges = Some((0..ranges.len()).map(here).collect());
            }
            start = buffer.as_ptr();
        }
        match side {
            0 => Matrix { start, row: free, col: sum },
            _ => Matrix { start, row: sum, col: free },
        }
    }

    /// Copies the elements of an operand in these ranges to a buffer, contiguously, with axes in the given order and
    /// zeros for elements that do not exist.
    ///
    /// # Safety
    /// As [`MatrixProduct::run`].
    unsafe fn copy_operand_box<T: Number>(
        &self,
        operand_index: usize,
        operand: *const T,
        buffer: &mut Vec<T>,
        order: &[usize],
        ranges: &AxisRanges,
    ) {
        let nest = self.nest;
        let total: usize = order.iter().map(|&axis| ranges[axis].len()).product();
        if buffer.len() < total {
            buffer.resize(total, T::default());
        }
        let near = contiguous_strides(nest, ranges, order);
        let to = buffer.as_mut_ptr();
        if !nest.is_box_inside(operand_index, ranges) {
            buffer[..total].fill(T::default());
        }
        nest.for_each_inside_box(Some(operand_index), order, &mut ranges.to_vec(), &mut |part| {
            let moved = |&axis: &usize| near[axis] * (part[axis].start - ranges[axis].start) as isize;
            let first = [nest.first_element_offset(operand_index, part), order.iter().map(moved).sum()];
            let loops = nest.loops_over_box(part, order, |axis| [nest.strides[operand_index][axis], near[axis]]);
            // SAFETY: the caller's, and the buffer has every position of the ranges.
            unsafe { interior_boxes::copy_in_loops(&loops, operand, to, first) };
        });
    }
}

/// Estimates the time to copy one element of a run of `n` elements at distance `stride`: runs of adjacent elements are
/// copied as vectors, and each run has a fixed cost.
fn estimate_element_copy_cost(stride: isize, n: usize) -> usize {
    let each = match stride.unsigned_abs() {
        1 => 4,
        2 => 8,
        3..=8 => 64,
        _ => 256,
    };
    each + 256 / n.max(1)
}

/// Returns the number of axes, counted from the last, that form one axis in memory.
fn count_merged_axes(axes: &[usize], stride: impl Fn(usize) -> isize, extents: &[usize]) -> usize {
    let continues = |pair: &&[usize]| stride(pair[0]) == stride(pair[1]) * extents[pair[1]] as isize;
    match axes.len() {
        0 => 0,
        _ => 1 + axes.windows(2).rev().take_while(continues).count(),
    }
}

/// Returns the row-major position of the first element of `ranges` among all positions that `all_ranges` has along
/// these axes.
fn row_major_position(all_ranges: &AxisRanges, axes: &[usize], ranges: &AxisRanges) -> usize {
    axes.iter().fold(0, |at, &axis| at * all_ranges[axis].len() + ranges[axis].start - all_ranges[axis].start)
}

/// Returns the stride of each axis if the positions in these ranges are stored contiguously in this order of axes.
fn contiguous_strides(nest: &AffineLoopNest, ranges: &AxisRanges, order: &[usize]) -> Vec<isize> {
    let (mut near, mut step) = (vec![0; nest.extents.len()], 1);
    for &axis in order.iter().rev() {
        near[axis] = step;
        step *= ranges[axis].len() as isize;
    }
    near
}

/// Calls `f` with parts of the ranges that have at most `max_positions` positions of these axes each (at least one), in
/// row-major order. Of the lengths that need the fewest parts, takes the one whose parts fill vectors best.
fn for_each_range_part(
    axes: &[usize],
    max_positions: usize,
    ranges: &mut Vec<Range<usize>>,
    f: &mut dyn FnMut(&mut Vec<Range<usize>>),
) {
    let Some((&axis, rest)) = axes.split_first() else { return f(ranges) };
    let range = ranges[axis].clone();
    let inside: usize = rest.iter().map(|&axis| ranges[axis].len()).product();
    let (longest, n) = ((max_positions / inside.max(1)).max(1), range.len());
    let shortest = n.div_ceil(n.div_ceil(longest).max(1)).max(1);
    let filled = |length: usize| (length * inside).next_multiple_of(F32_VECTOR_LANES);
    let step = (shortest..=longest.min(n))
        .take(F32_VECTOR_LANES)
        .min_by_key(|&length| n / length * filled(length) + filled(n % length));
    for start in range.clone().step_by(step.unwrap_or(1)) {
        ranges[axis] = start..range.end.min(start + step.unwrap_or(1));
        for_each_range_part(rest, max_positions, ranges, f);
    }
    ranges[axis] = range;
}

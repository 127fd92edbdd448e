//! Loops over lines of elements, or of rows, at positions given by data: gathers and scatters along one axis.
use super::strips::{compiled, sized};
use crate::raw;

/// Number of rows between the one that is processed and the one that is prefetched: their positions are in no order,
/// so that the processor cannot foresee them.
pub(super) const PREFETCH_DISTANCE_ROWS: isize = 12;
/// Maximum bytes of each row that are prefetched.
pub(super) const MAX_PREFETCHED_ROW_BYTES: usize = 512;
/// Maximum bytes of an operand that stays in the cache, so that its rows need not be prefetched.
pub(super) const MAX_CACHED_OPERAND_BYTES: usize = 1 << 18;

/// Prefetches bytes into the cache.
pub(super) fn prefetch_cache_lines(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: any address may be fetched, and every processor of this kind has SSE.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}

/// Positions, given by data, at which a gather reads (or a scatter writes) a line of elements along an axis of an
/// operand: element `i` of row `r` is at the offset `row · r + along · i + stride · index[r · n + i]`. Gathers clamp
/// the positions `index[..]` to the range from 0 to `last`; scatters skip elements whose positions are outside of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexedLine {
    /// Number of positions in a row.
    pub(super) n: usize,
    /// Number of rows, which are adjacent except in the operand; more than one only if the line [is
    /// dense](IndexedLine::can_vectorize_offsets).
    pub(super) rows: usize,
    /// Stride of rows in the operand, in elements.
    pub(super) row: isize,
    /// Address of the first position.
    pub(super) index: *const i32,
    /// Stride of the positions, in elements; so are all strides.
    pub(super) index_stride: isize,
    /// The greatest valid position.
    pub(super) last: i32,
    /// Distance in the operand from one position to the next.
    pub(super) stride: isize,
    /// Distance in the operand that an element's own number adds; 0 unless an axis is batched.
    pub(super) along: isize,
    /// Stride of the elements in the other array, which they are moved to or from.
    pub(super) moved: isize,
}

impl IndexedLine {
    /// Returns the position, valid or not, that the data has for element `i`.
    ///
    /// # Safety
    /// `i` is below `n`, and the line has `n` positions.
    #[inline(always)]
    pub(super) unsafe fn position(&self, i: isize) -> i32 {
        // SAFETY: the caller's.
        unsafe { *self.index.offset(i * self.index_stride) }
    }
    /// Returns the offset of element `i` in the operand, for a valid position.
    #[inline(always)]
    pub(super) fn operand_offset(&self, i: isize, position: i32) -> isize {
        i * self.along + position as isize * self.stride
    }
    /// Returns true if a position is inside of the operand: from 0 to `last`.
    #[inline(always)]
    pub(super) fn is_valid_position(&self, position: i32) -> bool {
        (0..=self.last).contains(&position)
    }
    /// Returns true if the part of the operand that valid positions reach is too large to stay in the cache.
    #[inline(always)]
    pub(super) fn is_operand_larger_than_cache(&self, element_bytes: usize) -> bool {
        (self.last.max(0) as usize + 1).saturating_mul(self.stride.unsigned_abs() * element_bytes)
            > MAX_CACHED_OPERAND_BYTES
    }
    /// Calls `f` for each element whose position is valid, in order, with its number and its offset in the operand.
    ///
    /// # Safety
    /// The line has `n` positions.
    #[inline(always)]
    pub(super) unsafe fn for_each_valid_element(&self, mut f: impl FnMut(isize, isize)) {
        if !self.can_vectorize_offsets() {
            for i in 0..self.n as isize {
                // SAFETY: the caller's.
                let position = unsafe { self.position(i) };
                if self.is_valid_position(position) {
                    f(i, self.operand_offset(i, position));
                }
            }
            return;
        }
        let part = |first: isize, start: isize, places: &[i32], exist: bool| {
            for (i, &place) in (first..).zip(places) {
                // SAFETY: the caller's.
                if exist || self.is_valid_position(unsafe { self.position(i) }) {
                    f(i, start + place as isize);
                }
            }
        };
        // SAFETY: the caller's.
        unsafe { self.for_each_offset_chunk(part) }
    }
}

/// Maximum elements of a line whose offsets are computed together, in vectors.
pub(super) const MAX_OFFSETS_AT_ONCE: usize = 64;
/// Minimum elements of a line whose offsets are computed together, in vectors; of shorter lines, each offset is
/// computed by itself.
const MIN_VECTORIZED_ELEMENTS: usize = 24;

impl IndexedLine {
    /// Returns true if the line is long enough to compute offsets in vectors, its positions are adjacent, and the
    /// offsets of a part of it, relative to its first element at position 0, fit an i32.
    #[inline(always)]
    pub(super) fn can_vectorize_offsets(&self) -> bool {
        let farthest = (self.last.max(0) as u64).saturating_mul(self.stride.unsigned_abs() as u64);
        let step = self.along.unsigned_abs().max(self.row.unsigned_abs()) as u64;
        let is_long =
            self.n * self.rows >= MIN_VECTORIZED_ELEMENTS && (self.rows == 1 || self.n <= MAX_OFFSETS_AT_ONCE);
        let reach = farthest.saturating_add(step.saturating_mul(MAX_OFFSETS_AT_ONCE as u64));
        is_long && self.index_stride == 1 && reach <= i32::MAX as u64
    }
    /// Calls `f` for each part of up to [`MAX_OFFSETS_AT_ONCE`] elements of a line with adjacent positions, with: the
    /// number of its first element; the offset of that element if its position were 0; the offsets of all elements
    /// relative to that, with invalid positions clamped; and true if all positions are valid.
    ///
    /// # Safety
    /// The line has its positions.
    #[inline(always)]
    unsafe fn for_each_offset_chunk(&self, mut f: impl FnMut(isize, isize, &[i32], bool)) {
        let (last, stride) = (self.last.max(0), self.stride as i32);
        // A part consists of several short rows.
        let (rows, all) = (MAX_OFFSETS_AT_ONCE / self.n, self.n * self.rows);
        let (part, step) = match self.rows {
            1 => (MAX_OFFSETS_AT_ONCE, MAX_OFFSETS_AT_ONCE as isize * self.along),
            _ => (rows * self.n, rows as isize * self.row),
        };
        let (mut steps, mut places) = ([0i32; MAX_OFFSETS_AT_ONCE], [0i32; MAX_OFFSETS_AT_ONCE]);
        for (i, to) in steps.iter_mut().enumerate() {
            let (r, i) = if self.rows == 1 { (0, i) } else { (i / self.n, i % self.n) };
            *to = (r as isize * self.row + i as isize * self.along) as i32;
        }
        let mut start = 0;
        for first in (0..all).step_by(part) {
            let n = part.min(all - first);
            // SAFETY: the caller's.
            let positions = unsafe { raw::slice(self.index.add(first), n) };
            let mut outside = 0;
            for ((place, &position), &step) in places.iter_mut().zip(positions).zip(&steps) {
                let held = position.clamp(0, last);
                outside |= held ^ position;
                *place = held * stride + step;
            }
            f(first as isize, start, &places[..n], outside == 0 && self.last >= 0);
            start += step;
        }
    }
}

/// Copies the operand's elements at the positions of a line to `to`; a position outside of the operand is clamped to
/// the nearest valid one.
#[inline(always)]
unsafe fn gather_elements<T: Copy>(line: IndexedLine, from: *const T, to: *mut T) {
    let last = line.last.max(0);
    // Adjacent positions of adjacent elements: nothing has to be multiplied.
    if (line.rows, line.index_stride, line.moved, line.along, line.stride) == (1, 1, 1, 0, 1) {
        for i in 0..line.n {
            // SAFETY: the caller's; positions are held inside of the operand.
            unsafe { to.add(i).write(from.add((*line.index.add(i)).clamp(0, last) as usize).read()) };
        }
        return;
    }
    if line.can_vectorize_offsets() {
        let part = |first: isize, start: isize, places: &[i32], _: bool| {
            // SAFETY: as above.
            unsafe {
                let (from, to) = (from.wrapping_offset(start), to.offset(first * line.moved));
                let element = |place: i32| from.wrapping_offset(place as isize).read();
                if line.moved == 1 {
                    (0..).zip(places).for_each(|(i, &place)| to.add(i).write(element(place)));
                } else {
                    (0..).zip(places).for_each(|(i, &place)| to.offset(i * line.moved).write(element(place)));
                }
            }
        };
        // SAFETY: the caller's.
        return unsafe { line.for_each_offset_chunk(part) };
    }
    // Addresses are advanced by their strides: one multiplication for each element.
    let (mut index, mut at, mut to) = (line.index, from, to);
    for _ in 0..line.n {
        // SAFETY: as above.
        unsafe { to.write(at.wrapping_offset((*index).clamp(0, last) as isize * line.stride).read()) };
        index = index.wrapping_offset(line.index_stride);
        at = at.wrapping_offset(line.along);
        to = to.wrapping_offset(line.moved);
    }
}

/// Copies elements to the positions of a line in the operand `to`; those with invalid positions are skipped.
#[inline(always)]
unsafe fn scatter_elements<T: Copy>(line: IndexedLine, from: *const T, to: *mut T) {
    // SAFETY: the caller's; positions outside of the operand are skipped.
    unsafe { line.for_each_valid_element(|i, place| to.offset(place).write(from.offset(i * line.moved).read())) }
}

compiled! { fastest_gather_elements<T: Copy>() = gather_elements(line: IndexedLine, from: *const T, to: *mut T) }
compiled! { fastest_scatter_elements<T: Copy>() = scatter_elements(line: IndexedLine, from: *const T, to: *mut T) }

/// Copies a row of `bytes` bytes; a short one without a call.
///
/// # Safety
/// Both hold these bytes and do not overlap.
#[inline(always)]
unsafe fn copy_row(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's.
    unsafe {
        match bytes {
            4..8 => copy_in_pieces::<u32>(from, to, bytes),
            8..16 => copy_in_pieces::<u64>(from, to, bytes),
            16..32 => copy_in_pieces::<[u64; 2]>(from, to, bytes),
            32..=256 => copy_in_pieces::<[u64; 4]>(from, to, bytes),
            _ => std::ptr::copy_nonoverlapping(from, to, bytes),
        }
    }
}

/// Copies `bytes` bytes, at least the size of a piece `P`, piece by piece.
///
/// # Safety
/// As [`copy_row`].
#[inline(always)]
unsafe fn copy_in_pieces<P: Copy>(from: *const u8, to: *mut u8, bytes: usize) {
    // The last piece may overlap the one before.
    let last = bytes - size_of::<P>();
    for at in (0..last).step_by(size_of::<P>()).chain([last]) {
        // SAFETY: a piece lies inside of the row.
        unsafe { to.add(at).cast::<P>().write_unaligned(from.add(at).cast::<P>().read_unaligned()) };
    }
}

/// Copies rows of adjacent elements, as bytes, from the positions of a line, and prefetches those that follow if the
/// operand is larger than the cache.
#[inline(always)]
unsafe fn gather_row_bytes(line: IndexedLine, from: *const u8, to: *mut u8, element_bytes: usize, row_bytes: usize) {
    // SAFETY: the caller's, for rows of the line.
    let row = |i: isize| unsafe {
        let place = line.operand_offset(i, line.position(i).clamp(0, line.last.max(0)));
        from.wrapping_offset(place * element_bytes as isize)
    };
    let n = line.n as isize;
    let is_far = line.is_operand_larger_than_cache(element_bytes);
    for i in 0..n {
        if is_far && i + PREFETCH_DISTANCE_ROWS < n {
            prefetch_cache_lines(row(i + PREFETCH_DISTANCE_ROWS), row_bytes.min(MAX_PREFETCHED_ROW_BYTES));
        }
        // SAFETY: the caller's; positions are held inside of the operand.
        unsafe { copy_row(row(i), to.offset(i * line.moved * element_bytes as isize), row_bytes) };
    }
}
compiled! { fastest_gather_row_bytes<>() = gather_row_bytes(line: IndexedLine, from: *const u8, to: *mut u8, element: usize, bytes: usize) }

/// Reads the elements of a line from an operand; an invalid position is clamped to the nearest valid one.
///
/// # Safety
/// The line has its positions; the operand `from` has an element at each of them, and `to` has room for the line's
/// elements, which have there the stride [`IndexedLine::moved`]. They do not overlap.
pub(super) unsafe fn gather(line: IndexedLine, from: *const u8, to: *mut u8, element_bytes: usize) {
    // SAFETY: the caller's.
    sized!(element_bytes, T => unsafe { fastest_gather_elements::<T>()(line, from.cast(), to.cast()) })
}

/// Reads rows of adjacent elements from an operand, one at each position of a line, otherwise as [`gather`].
///
/// # Safety
/// As [`gather`], for rows at each place.
pub(super) unsafe fn gather_rows(
    line: IndexedLine,
    from: *const u8,
    to: *mut u8,
    element_bytes: usize,
    row_elements: usize,
) {
    // SAFETY: the caller's.
    unsafe { fastest_gather_row_bytes()(line, from, to, element_bytes, row_elements * element_bytes) }
}

/// Writes the elements of a line to an operand, in order; those with invalid positions are skipped.
///
/// # Safety
/// As [`gather`], with the operand as `to`.
pub(super) unsafe fn scatter(line: IndexedLine, from: *const u8, to: *mut u8, element_bytes: usize) {
    // SAFETY: the caller's.
    sized!(element_bytes, T => unsafe { fastest_scatter_elements::<T>()(line, from.cast(), to.cast()) })
}

#[cfg(test)]
mod tests {
    use super::super::fold::fold_functions;
    use super::*;
    use pallas_ir::{DType, Literal, ScalarOp};

    /// Calls `check` with lines of drawn lengths and strides, and the lengths of the operand and of the other array.
    fn lines(check: impl Fn(IndexedLine, usize, usize)) {
        let mut state = 1u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % n) as usize
        };
        for _ in 0..300 {
            let (n, extent) = ([below(9), below(40), below(200)][below(3)], below(9));
            let [index_stride, stride, along, moved] = [1 + below(3), 1 + below(3), below(4), 1 + below(3)];
            let (rows, row) = (1 + below(9), below(5));
            let mut positions = vec![0i32; n * index_stride.max(rows) + 1];
            let outside = below(2) == 0;
            positions.iter_mut().for_each(|p| *p = [i32::MIN, -1, extent as i32, i32::MAX, 0][below(9).min(4)]);
            if !outside && extent > 0 {
                positions.fill(0);
            }
            positions.iter_mut().for_each(|p| *p = if *p == 0 { below(extent.max(1) as u64) as i32 } else { *p });
            let line = IndexedLine {
                n,
                rows: 1,
                row: 0,
                index: positions.as_ptr(),
                index_stride: index_stride as isize,
                last: extent as i32 - 1,
                stride: stride as isize,
                along: along as isize,
                moved: moved as isize,
            };
            let with_rows = IndexedLine { rows, row: row as isize, ..line };
            let line = if with_rows.can_vectorize_offsets() { with_rows } else { line };
            check(line, line.rows * row + n * along + (extent + 1) * stride, line.rows * n * moved + 1);
        }
    }

    /// Returns the offset of each element of a line in the operand and in the other array, and whether its position is
    /// valid.
    fn places(line: IndexedLine) -> Vec<(usize, usize, bool)> {
        let place = |i: isize| {
            // SAFETY: the line has its positions.
            let position = unsafe { *line.index.offset(i * line.index_stride) };
            let nearest = position.min(line.last).max(0);
            let (r, i_of_row) = (i / line.n as isize, i % line.n as isize);
            let place = r * line.row + i_of_row * line.along + nearest as isize * line.stride;
            (place as usize, (i * line.moved) as usize, nearest == position && position <= line.last)
        };
        (0..(line.rows * line.n) as isize).map(place).collect()
    }

    #[test]
    fn each_element_moves_to_its_place() {
        fn check<T: Copy + PartialEq + std::fmt::Debug>(number: impl Fn(usize) -> T + Copy) {
            lines(|line, operand, moved| {
                let bytes = size_of::<T>();
                let (from, mut to) = ((0..operand).map(number).collect::<Vec<T>>(), vec![number(99); moved]);
                let mut expected = to.clone();
                places(line).iter().for_each(|&(place, at, _)| expected[at] = from[place]);
                // SAFETY: the arrays hold the line's places.
                unsafe { gather(line, from.as_ptr().cast(), to.as_mut_ptr().cast(), bytes) };
                assert_eq!(to, expected, "{line:?}");
                let (from, mut to) = ((0..moved).map(number).collect::<Vec<T>>(), vec![number(99); operand]);
                let mut expected = to.clone();
                places(line).iter().filter(|p| p.2).for_each(|&(place, at, _)| expected[place] = from[at]);
                // SAFETY: as above.
                unsafe { scatter(line, from.as_ptr().cast(), to.as_mut_ptr().cast(), bytes) };
                assert_eq!(to, expected, "{line:?}");
            });
        }
        check(|i| i as u8);
        check(|i| i as u16);
        check(|i| i as u32);
        check(|i| i as u64);
    }

    #[test]
    fn each_row_moves_to_its_place() {
        for row in [0, 1, 3, 4, 5, 19, 63, 64, 65, 200] {
            lines(|line, operand, moved| {
                let line = IndexedLine { moved: line.moved + row as isize, rows: 1, ..line };
                let from: Vec<u32> = (0..operand + row).map(|i| i as u32).collect();
                let mut to = vec![u32::MAX; moved + line.n * row + row];
                let mut expected = to.clone();
                for (place, at, _) in places(line) {
                    expected[at..at + row].copy_from_slice(&from[place..place + row]);
                }
                // SAFETY: the arrays hold the line's rows.
                unsafe { gather_rows(line, from.as_ptr().cast(), to.as_mut_ptr().cast(), 4, row) };
                assert_eq!(to, expected, "{row} {line:?}");
            });
        }
    }

    #[test]
    fn each_element_is_folded_into_its_place() {
        use ScalarOp::{Add, BitAnd, BitOr, BitXor, Maximum, Minimum, Mul};
        let ops = [Add, Mul, Minimum, Maximum, BitAnd, BitOr, BitXor];
        let all = ops.into_iter().flat_map(|op| DType::ALL.iter().map(move |&dtype| (op, dtype)));
        let monoids: Vec<(ScalarOp, DType)> = all.filter(|(op, dtype)| op.is_monoid(*dtype)).collect();
        assert!(monoids.len() > 50, "{monoids:?}");
        for (op, dtype) in monoids {
            let (fold, bytes) = (fold_functions(op, dtype), dtype.bytes());
            let number = |i: usize| match i % 11 {
                10 if dtype.is_float() => f64::NAN,
                _ if dtype == DType::Bool => (i % 2) as f64,
                _ => (i * 7 % 5) as f64,
            };
            // Words are aligned for elements of every type.
            let elements = |n: usize, seed: usize| {
                let mut words = vec![0u64; (n * bytes).div_ceil(8)];
                for i in 0..n {
                    let element = Literal::new(dtype, number(i + seed)).bits.to_le_bytes();
                    // SAFETY: the words hold `n` elements.
                    unsafe { words.as_mut_ptr().cast::<u8>().add(i * bytes).copy_from(element.as_ptr(), bytes) };
                }
                words
            };
            lines(|line, operand, moved| {
                let (from, mut to) = (elements(moved, 3), elements(operand, 0));
                let mut expected = to.clone();
                for &(place, at, _) in places(line).iter().filter(|p| p.2) {
                    // SAFETY: the arrays hold the line's places.
                    unsafe {
                        let (from, to) = (from.as_ptr().cast::<u8>(), expected.as_mut_ptr().cast::<u8>());
                        (fold.into)(from.add(at * bytes), 1, to.add(place * bytes));
                    }
                }
                // SAFETY: as above.
                unsafe { (fold.at)(line, from.as_ptr().cast(), to.as_mut_ptr().cast()) };
                assert_eq!(to, expected, "{op} of {dtype}: {line:?}");
            });
            for row in [2, 5, 40] {
                lines(|line, operand, moved| {
                    let line = IndexedLine { moved: line.moved + row as isize, rows: 1, ..line };
                    let (from, mut to) = (elements(moved + line.n * row, 3), elements(operand + row, 0));
                    let mut expected = to.clone();
                    // SAFETY: the arrays hold the line's rows.
                    unsafe {
                        for &(place, at, _) in places(line).iter().filter(|p| p.2) {
                            let (from, to) = (from.as_ptr().cast::<u8>(), expected.as_mut_ptr().cast::<u8>());
                            (fold.into)(from.add(at * bytes), row, to.add(place * bytes));
                        }
                        (fold.rows_at)(line, row, from.as_ptr().cast(), to.as_mut_ptr().cast());
                    }
                    assert_eq!(to, expected, "{op} of rows of {row} {dtype}: {line:?}");
                });
            }
        }
    }
}

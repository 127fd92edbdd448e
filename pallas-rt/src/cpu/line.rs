//! Loops over lines of single elements, or of rows, at positions given by data.
use super::strips::compiled;

/// Rows ahead whose memory is fetched, and bytes of each: their places are not in order.
pub(super) const AHEAD: isize = 12;
pub(super) const FETCHED: usize = 512;
/// Bytes of an operand that are fetched anyway.
const NEAR: usize = 1 << 18;

/// Fetches bytes into the cache.
pub(super) fn fetch(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: any address may be fetched, and every processor of this kind has SSE.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}

/// Elements of a line and their places in an operand: element `i` is at `along · i + stride · index[i]`, where
/// `index[i]` is held between 0 and `last`, or skipped if it is outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// The number of elements.
    pub(super) n: usize,
    /// The positions, and their stride.
    pub(super) index: *const i32,
    /// Strides are in elements.
    pub(super) index_stride: isize,
    /// The highest position.
    pub(super) last: i32,
    /// The stride of positions in the operand.
    pub(super) stride: isize,
    /// The stride of the line in the operand.
    pub(super) along: isize,
    /// The stride of the elements in the array that they are moved to or from.
    pub(super) moved: isize,
}

impl Line {
    /// The position of element `i`.
    ///
    /// # Safety
    /// `i` is below `n`, and the line has `n` positions.
    #[inline(always)]
    pub(super) unsafe fn position(&self, i: isize) -> i32 {
        // SAFETY: the caller's.
        unsafe { *self.index.offset(i * self.index_stride) }
    }
    /// The place of element `i` in the operand, at a position that exists.
    #[inline(always)]
    pub(super) fn place(&self, i: isize, position: i32) -> isize {
        i * self.along + position as isize * self.stride
    }
    /// True for a position that exists.
    #[inline(always)]
    pub(super) fn has(&self, position: i32) -> bool {
        (0..=self.last).contains(&position)
    }
}

type Move<T> = unsafe fn(line: Line, from: *const T, to: *mut T);

#[inline(always)]
unsafe fn read<T: Copy>(line: Line, from: *const T, to: *mut T) {
    let last = line.last.max(0);
    // Elements of adjacent positions, side by side: nothing is multiplied.
    if (line.index_stride, line.moved, line.along, line.stride) == (1, 1, 0, 1) {
        for i in 0..line.n {
            // SAFETY: the caller's; positions are held inside of the operand.
            unsafe { to.add(i).write(from.add((*line.index.add(i)).clamp(0, last) as usize).read()) };
        }
        return;
    }
    // Addresses go on by their strides: one multiplication an element.
    let (mut index, mut at, mut to) = (line.index, from, to);
    for _ in 0..line.n {
        // SAFETY: as above.
        unsafe { to.write(at.wrapping_offset((*index).clamp(0, last) as isize * line.stride).read()) };
        index = index.wrapping_offset(line.index_stride);
        at = at.wrapping_offset(line.along);
        to = to.wrapping_offset(line.moved);
    }
}

#[inline(always)]
unsafe fn write<T: Copy>(line: Line, from: *const T, to: *mut T) {
    for i in 0..line.n as isize {
        // SAFETY: the caller's; positions outside of the operand are skipped.
        unsafe {
            let position = line.position(i);
            if line.has(position) {
                to.offset(line.place(i, position)).write(from.offset(i * line.moved).read());
            }
        }
    }
}

compiled! { fastest_read<T: Copy>() -> Move<T> = read(line: Line, from: *const T, to: *mut T) }
compiled! { fastest_write<T: Copy>() -> Move<T> = write(line: Line, from: *const T, to: *mut T) }

/// Copies a row; a short one without a call.
///
/// # Safety
/// Both hold as many bytes and do not overlap.
#[inline(always)]
unsafe fn copy_row(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's.
    unsafe {
        match bytes {
            16..32 => in_pieces::<[u64; 2]>(from, to, bytes),
            32..=256 => in_pieces::<[u64; 4]>(from, to, bytes),
            _ => std::ptr::copy_nonoverlapping(from, to, bytes),
        }
    }
}

/// Copies at least as many bytes as a piece has.
///
/// # Safety
/// As [`copy_row`].
#[inline(always)]
unsafe fn in_pieces<P: Copy>(from: *const u8, to: *mut u8, bytes: usize) {
    // The last piece may overlap the one before.
    let last = bytes - size_of::<P>();
    for at in (0..last).step_by(size_of::<P>()).chain([last]) {
        // SAFETY: a piece lies inside of the row.
        unsafe { to.add(at).cast::<P>().write_unaligned(from.add(at).cast::<P>().read_unaligned()) };
    }
}

/// Bytes of an element and of a row.
#[derive(Clone, Copy)]
struct Bytes {
    element: usize,
    row: usize,
}

#[inline(always)]
unsafe fn read_rows(line: Line, from: *const u8, to: *mut u8, bytes: Bytes) {
    // SAFETY: the caller's, for rows of the line.
    let row = |i: isize| unsafe {
        let place = line.place(i, line.position(i).clamp(0, line.last.max(0)));
        from.wrapping_offset(place * bytes.element as isize)
    };
    let n = line.n as isize;
    // What is small stays in the cache.
    let is_far = (line.last.max(0) as usize + 1).saturating_mul(line.stride.unsigned_abs() * bytes.element) > NEAR;
    for i in 0..n {
        if is_far && i + AHEAD < n {
            fetch(row(i + AHEAD), bytes.row.min(FETCHED));
        }
        // SAFETY: the caller's; positions are held inside of the operand.
        unsafe { copy_row(row(i), to.offset(i * line.moved * bytes.element as isize), bytes.row) };
    }
}
compiled! {
    fastest_rows<>() -> unsafe fn(Line, *const u8, *mut u8, Bytes)
        = read_rows(line: Line, from: *const u8, to: *mut u8, bytes: Bytes)
}

macro_rules! sized {
    ($bytes:expr, $T:ident => $body:expr) => {
        match $bytes {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}

/// Reads the elements of a line from an operand; a position outside of it is moved to the nearest one inside.
///
/// # Safety
/// The line has its positions; the operand has an element of `bytes` at each place, and `to` at each multiple of `moved`.
/// They do not overlap.
pub(super) unsafe fn gather(line: Line, from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's.
    sized!(bytes, T => unsafe { fastest_read::<T>()(line, from.cast(), to.cast()) })
}

/// As [`gather`], of rows of `row` adjacent elements instead of single ones.
///
/// # Safety
/// As [`gather`], for rows at each place.
pub(super) unsafe fn gather_rows(line: Line, from: *const u8, to: *mut u8, bytes: usize, row: usize) {
    // SAFETY: the caller's.
    unsafe { fastest_rows()(line, from, to, Bytes { element: bytes, row: row * bytes }) }
}

/// Writes the elements of a line to an operand in order; those whose position is outside of it are skipped.
///
/// # Safety
/// As [`gather`], with the operand as `to`.
pub(super) unsafe fn scatter(line: Line, from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's.
    sized!(bytes, T => unsafe { fastest_write::<T>()(line, from.cast(), to.cast()) })
}

#[cfg(test)]
mod tests {
    use super::super::fold::fold;
    use super::*;
    use pallas_ir::{DType, Literal, ScalarOp};

    /// Calls `check` with lines of drawn lengths and strides, their positions, and the lengths of the arrays that they touch.
    fn lines(check: impl Fn(Line, usize, usize)) {
        let mut state = 1u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % n) as usize
        };
        for _ in 0..300 {
            let (n, extent) = (below(40), below(9));
            let [index_stride, stride, along, moved] = [1 + below(3), 1 + below(3), below(4), 1 + below(3)];
            let mut positions = vec![0i32; n * index_stride + 1];
            positions.iter_mut().for_each(|p| *p = [i32::MIN, -1, extent as i32, i32::MAX, 0][below(9).min(4)]);
            positions.iter_mut().for_each(|p| *p = if *p == 0 { below(extent as u64 + 1) as i32 } else { *p });
            let line = Line {
                n,
                index: positions.as_ptr(),
                index_stride: index_stride as isize,
                last: extent as i32 - 1,
                stride: stride as isize,
                along: along as isize,
                moved: moved as isize,
            };
            check(line, n * along + (extent + 1) * stride, n * moved + 1);
        }
    }

    /// The place of each element of a line, in the operand and in the other array, and whether its position exists.
    fn places(line: Line) -> Vec<(usize, usize, bool)> {
        let place = |i: isize| {
            // SAFETY: the line has its positions.
            let position = unsafe { *line.index.offset(i * line.index_stride) };
            let nearest = position.min(line.last).max(0);
            let place = i * line.along + nearest as isize * line.stride;
            (place as usize, (i * line.moved) as usize, nearest == position && position <= line.last)
        };
        (0..line.n as isize).map(place).collect()
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
                let line = Line { moved: line.moved + row as isize, ..line };
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
            let (fold, bytes) = (fold(op, dtype), dtype.bytes());
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
        }
    }
}

//! Copies of rows: from one stride to another, with one element repeated, or with several elements repeated in turn.
use super::strips::{compiled, sized};

/// Copies `n` elements, from one stride (in elements) to another.
///
/// # Safety
/// Both hold `n` elements at their strides; they are the same elements, or do not overlap.
#[inline]
pub(super) unsafe fn copy_row(
    from: *const u8,
    from_stride: isize,
    to: *mut u8,
    to_stride: isize,
    n: usize,
    element_bytes: usize,
) {
    #[inline(always)]
    unsafe fn copy_elements<T: Copy>(from: *const u8, from_stride: isize, to: *mut u8, to_stride: isize, n: usize) {
        let (from, to) = (from.cast::<T>(), to.cast::<T>());
        // SAFETY: the caller's.
        unsafe {
            if from_stride == 0 && to_stride == 1 {
                fastest_repeat()(from.read(), to, n);
            } else if from_stride == -1 && to_stride == 1 {
                fastest_copy_reversed()(from, to, n);
            } else if from_stride == 2 && to_stride == 1 {
                fastest_copy_every_second()(from, to, n);
            } else {
                (0..n as isize).for_each(|i| to.offset(i * to_stride).write(from.offset(i * from_stride).read()));
            }
        }
    }
    // SAFETY: the caller's.
    unsafe {
        if from_stride == 1 && to_stride == 1 {
            return std::ptr::copy(from, to, n * element_bytes);
        }
        sized!(element_bytes, T => copy_elements::<T>(from, from_stride, to, to_stride, n))
    }
}

/// Maximum bytes of a short row, of which one call copies many; each longer row is copied by a call of its own.
pub(super) const MAX_SHORT_ROW_BYTES: usize = 128;

/// Copies `rows` rows of `n` elements. The strides, in elements, are given for both sides, first that of `from`.
///
/// # Safety
/// As [`copy_row`].
pub(super) unsafe fn copy_rows(
    [from, to]: [*mut u8; 2],
    element_strides: [isize; 2],
    row_strides: [isize; 2],
    [rows, n]: [usize; 2],
    element_bytes: usize,
) {
    let [from_row, to_row] = row_strides.map(|stride| stride * element_bytes as isize);
    // SAFETY: the caller's.
    unsafe {
        match element_bytes {
            _ if rows == 1 || n * element_bytes > MAX_SHORT_ROW_BYTES => (0..rows as isize).for_each(|i| {
                copy_row(
                    from.offset(i * from_row),
                    element_strides[0],
                    to.offset(i * to_row),
                    element_strides[1],
                    n,
                    element_bytes,
                );
            }),
            // Rows of 8 bytes in reverse order are 8-byte elements in reverse order.
            _ if element_strides == [1, 1] && from_row == -to_row && to_row == 8 && n * element_bytes == 8 => {
                fastest_copy_reversed::<[u8; 8]>()(from.cast(), to.cast(), rows);
            }
            _ if element_strides == [0, 1] && n > 0 && row_strides[1] == n as isize => {
                repeat_each_element(from, row_strides[0], to, rows, n, element_bytes)
            }
            _ if element_strides == [1, 1] => {
                fastest_copy_short_rows()(from, from_row, to, to_row, rows, n * element_bytes)
            }
            _ => {
                sized!(element_bytes, T => fastest_copy_strided_rows::<T>()(from.cast(), to.cast(), element_strides, row_strides, [rows, n]))
            }
        }
    }
}

/// Copies rows of at most [`MAX_SHORT_ROW_BYTES`] bytes, in pieces whose size is a power of two; the last pieces may
/// overlap.
///
/// # Safety
/// See [`copy_rows`].
#[inline(always)]
unsafe fn copy_short_rows(
    from: *const u8,
    from_row_stride: isize,
    to: *mut u8,
    to_row_stride: isize,
    rows: usize,
    row_bytes: usize,
) {
    macro_rules! of {
        ($N:literal: $($at:expr),*) => {
            for i in 0..rows as isize {
                let (from, to) = (from.offset(i * from_row_stride), to.offset(i * to_row_stride));
                $(to.add($at).cast::<[u8; $N]>().write(from.add($at).cast::<[u8; $N]>().read());)*
            }
        };
    }
    // SAFETY: the caller's; pieces lie inside of a row.
    unsafe {
        match row_bytes {
            0 => {}
            1 => of!(1: 0),
            2..4 => of!(2: 0, row_bytes - 2),
            4 => of!(4: 0),
            5..8 => of!(4: 0, row_bytes - 4),
            8 => of!(8: 0),
            9..16 => of!(8: 0, row_bytes - 8),
            16..32 => of!(16: 0, row_bytes - 16),
            32..64 => of!(32: 0, row_bytes - 32),
            _ => of!(32: 0, 32, row_bytes - 64, row_bytes - 32),
        }
    }
}
compiled! {
    fastest_copy_short_rows<>() = copy_short_rows(from: *const u8, from_row: isize, to: *mut u8, to_row: isize, rows: usize, bytes: usize)
}

/// Copies rows element by element; a row that repeats one element is written in vectors.
///
/// # Safety
/// See [`copy_rows`].
#[inline(always)]
unsafe fn copy_strided_rows<T: Copy>(
    from: *const T,
    to: *mut T,
    element_strides: [isize; 2],
    row_strides: [isize; 2],
    [rows, n]: [usize; 2],
) {
    for i in 0..rows as isize {
        // SAFETY: the caller's.
        unsafe {
            let (from, to) = (from.offset(i * row_strides[0]), to.offset(i * row_strides[1]));
            if element_strides == [0, 1] && n > 0 {
                write_copies(from.read(), to, n);
                continue;
            }
            for j in 0..n as isize {
                to.offset(j * element_strides[1]).write(from.offset(j * element_strides[0]).read());
            }
        }
    }
}
compiled! {
    fastest_copy_strided_rows<T: Copy>()
        = copy_strided_rows(from: *const T, to: *mut T, inner: [isize; 2], outer: [isize; 2], size: [usize; 2])
}

/// Writes `n` copies of `x`.
///
/// # Safety
/// There is room for them.
#[inline(always)]
unsafe fn write_copies<T: Copy>(x: T, to: *mut T, n: usize) {
    // SAFETY: the caller's.
    (0..n).for_each(|i| unsafe { to.add(i).write(x) });
}
compiled! { fastest_repeat<T: Copy>() = write_copies(x: T, to: *mut T, n: usize) }

/// Copies `n` elements in reverse: `from` is the last of them in memory.
///
/// # Safety
/// As [`copy_row`].
#[inline(always)]
unsafe fn copy_reversed<T: Copy>(from: *const T, to: *mut T, n: usize) {
    // SAFETY: the caller's.
    (0..n).for_each(|i| unsafe { to.add(i).write(from.sub(i).read()) });
}
compiled! { fastest_copy_reversed<T: Copy>() = copy_reversed(from: *const T, to: *mut T, n: usize) }

/// Copies `n` elements, taking every second one.
///
/// # Safety
/// As [`copy_row`].
#[inline(always)]
unsafe fn copy_every_second<T: Copy>(from: *const T, to: *mut T, n: usize) {
    // SAFETY: the caller's.
    (0..n).for_each(|i| unsafe { to.add(i).write(from.add(2 * i).read()) });
}
compiled! { fastest_copy_every_second<T: Copy>() = copy_every_second(from: *const T, to: *mut T, n: usize) }

/// Fills memory with copies of the bytes that it begins with, up to a total number of bytes; the last copy may be cut
/// off.
///
/// # Safety
/// There is room for all bytes, of which those to be repeated, at least one, are initialised.
pub(super) unsafe fn repeat_prefix(start: *mut u8, prefix_bytes: usize, total_bytes: usize) {
    let mut done = prefix_bytes;
    while done < total_bytes {
        let more = done.min(total_bytes - done);
        // SAFETY: the caller's; what is there lies before what comes.
        unsafe { std::ptr::copy_nonoverlapping(start, start.add(done), more) };
        done += more;
    }
}

/// Writes `times` adjacent copies of each of `count` elements, which are read at a stride (in elements).
///
/// # Safety
/// The elements exist, and there is room for the copies, apart from them.
pub(super) unsafe fn repeat_each_element(
    from: *const u8,
    stride: isize,
    to: *mut u8,
    count: usize,
    times: usize,
    element_bytes: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        sized!(element_bytes, T => fastest_repeat_each_element::<T>()(from.cast(), stride, to.cast(), count, times))
    }
}
compiled! {
    fastest_repeat_each_element<T: Copy>() = write_element_copies(from: *const T, stride: isize, to: *mut T, count: usize, times: usize)
}

/// Writes the copies of [`repeat_each_element`], with loops of constant length where possible.
///
/// # Safety
/// See [`repeat_each_element`].
#[inline(always)]
unsafe fn write_element_copies<T: Copy>(from: *const T, stride: isize, to: *mut T, count: usize, times: usize) {
    macro_rules! of {
        ($times:literal) => {
            for i in 0..count {
                to.add(i * $times)
                    .cast::<[T; $times]>()
                    .write_unaligned([from.offset(i as isize * stride).read(); $times])
            }
        };
    }
    // SAFETY: the caller's.
    unsafe {
        match times {
            2 => of!(2),
            3 => of!(3),
            4 => of!(4),
            8 => of!(8),
            16 => of!(16),
            _ => match size_of::<T>() {
                1 => write_copies_in_vectors::<T, 32>(from, stride, to, count, times),
                2 => write_copies_in_vectors::<T, 16>(from, stride, to, count, times),
                4 => write_copies_in_vectors::<T, 8>(from, stride, to, count, times),
                _ => write_copies_in_vectors::<T, 4>(from, stride, to, count, times),
            },
        }
    }
}

/// Writes the copies of [`repeat_each_element`] in vectors of `N`; what is written past the copies of one element is
/// overwritten by those of the next.
///
/// # Safety
/// See [`repeat_each_element`].
#[inline(always)]
unsafe fn write_copies_in_vectors<T: Copy, const N: usize>(
    from: *const T,
    stride: isize,
    to: *mut T,
    count: usize,
    times: usize,
) {
    let most = times.next_multiple_of(N);
    // After the copies of the last elements there is no room for whole vectors.
    let whole = if times <= 4 * N { ((count * times + times).saturating_sub(most) / times).min(count) } else { 0 };
    // SAFETY: the caller's; vectors of the first elements end before the copies of the last one do.
    unsafe {
        for i in 0..whole {
            let x = from.offset(i as isize * stride).read();
            for first in (0..times).step_by(N) {
                to.add(i * times + first).cast::<[T; N]>().write_unaligned([x; N]);
            }
        }
        (whole..count).for_each(|i| write_copies(from.offset(i as isize * stride).read(), to.add(i * times), times));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of every size of element go between strides in both directions, and nothing else is written.
    #[test]
    fn rows_are_copied_between_strides() {
        for (bytes, from_stride, to_stride) in [1usize, 2, 4, 8].into_iter().flat_map(|bytes| {
            [0, 1, -1, 2, -2, 3].into_iter().flat_map(move |f| [1, 2, -1].map(move |t| (bytes, f, t)))
        }) {
            for n in [0usize, 1, 2, 7, 31, 64, 131] {
                // Places for elements on both sides of the first one.
                let (middle, elements) = (3 * n, 6 * n + 1);
                let from: Vec<u64> =
                    (0..(elements * bytes).div_ceil(8) as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
                let from = bytemuck::cast_slice::<u64, u8>(&from);
                let mut found = vec![0xa5u64; (elements * bytes).div_ceil(8)];
                let mut want = bytemuck::cast_slice::<u64, u8>(&found).to_vec();
                let place = |stride: isize, i: usize| (middle as isize + i as isize * stride) as usize * bytes;
                for i in 0..n {
                    let element = &from[place(from_stride, i)..][..bytes];
                    want[place(to_stride, i)..][..bytes].copy_from_slice(element);
                }
                let to = bytemuck::cast_slice_mut::<u64, u8>(&mut found);
                // SAFETY: the elements lie within three times as many places of the middle.
                unsafe {
                    let (from, to) = (from.as_ptr().add(middle * bytes), to.as_mut_ptr().add(middle * bytes));
                    copy_row(from, from_stride, to, to_stride, n, bytes);
                }
                assert_eq!(
                    bytemuck::cast_slice::<u64, u8>(&found),
                    want,
                    "{n} of {bytes} bytes, {from_stride} to {to_stride}"
                );
            }
        }
    }

    /// Rows lie apart on both sides, also where an element or a row is repeated, and nothing between them is written.
    #[test]
    fn several_rows_are_copied_between_strides() {
        let from: Vec<u64> = (0..2000u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let from = bytemuck::cast_slice::<u64, u8>(&from);
        for bytes in [1usize, 2, 4, 8] {
            for (inner, [rows, n]) in [[0, 1], [1, 1], [2, 1], [1, 2], [0, 2]]
                .into_iter()
                .flat_map(|inner| [[1, 5], [3, 0], [3, 1], [5, 16], [2, 33], [7, 32 / bytes]].map(|size| (inner, size)))
            {
                // Rows apart, and side by side.
                let rows_of_to = [2 * n + 3, inner[1] * n];
                for (from_row, to_row) in [0, 1, 40].into_iter().flat_map(|row| rows_of_to.map(|to| (row, to))) {
                    let mut found = vec![u64::from_ne_bytes([0xa5; 8]); (rows * to_row * bytes).div_ceil(8)];
                    let mut want = bytemuck::cast_slice::<u64, u8>(&found).to_vec();
                    for (i, j) in (0..rows).flat_map(|i| (0..n).map(move |j| (i, j))) {
                        let place = |row: usize, stride: usize| (i * row + j * stride) * bytes;
                        let element = &from[place(from_row, inner[0])..][..bytes];
                        want[place(to_row, inner[1])..][..bytes].copy_from_slice(element);
                    }
                    let places = [from.as_ptr().cast_mut(), found.as_mut_ptr().cast()];
                    let outer = [from_row as isize, to_row as isize];
                    // SAFETY: rows lie inside of both.
                    unsafe { copy_rows(places, inner.map(|stride| stride as isize), outer, [rows, n], bytes) };
                    assert_eq!(
                        bytemuck::cast_slice::<u64, u8>(&found),
                        want,
                        "{rows} x {n} of {bytes} bytes, {inner:?}, rows {from_row} to {to_row}"
                    );
                }
            }
        }
    }
}

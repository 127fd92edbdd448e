//! Copies of rows: between strides, of one element, of several elements in turn.
use super::strips::compiled;

/// Copies `n` elements of `bytes` between strides (in elements).
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
    bytes: usize,
) {
    #[inline(always)]
    unsafe fn each<T: Copy>(from: *const u8, fs: isize, to: *mut u8, ts: isize, n: usize) {
        let (from, to) = (from.cast::<T>(), to.cast::<T>());
        // SAFETY: the caller's.
        unsafe {
            if fs == 0 && ts == 1 {
                fastest_repeat()(from.read(), to, n);
            } else if fs == -1 && ts == 1 {
                fastest_reversed()(from, to, n);
            } else {
                (0..n as isize).for_each(|i| to.offset(i * ts).write(from.offset(i * fs).read()));
            }
        }
    }
    // SAFETY: the caller's.
    unsafe {
        match bytes {
            _ if from_stride == 1 && to_stride == 1 => std::ptr::copy(from, to, n * bytes),
            1 => each::<u8>(from, from_stride, to, to_stride, n),
            2 => each::<u16>(from, from_stride, to, to_stride, n),
            4 => each::<u32>(from, from_stride, to, to_stride, n),
            _ => each::<u64>(from, from_stride, to, to_stride, n),
        }
    }
}

/// Writes `n` copies of `x`.
///
/// # Safety
/// There is room for them.
#[inline(always)]
unsafe fn repeat<T: Copy>(x: T, to: *mut T, n: usize) {
    // SAFETY: the caller's.
    (0..n).for_each(|i| unsafe { to.add(i).write(x) });
}
compiled! { fastest_repeat<T: Copy>() -> unsafe fn(T, *mut T, usize) = repeat(x: T, to: *mut T, n: usize) }

/// Copies `n` elements, of which the first one is the last one in memory.
///
/// # Safety
/// As [`copy_row`].
#[inline(always)]
unsafe fn reversed<T: Copy>(from: *const T, to: *mut T, n: usize) {
    // SAFETY: the caller's.
    (0..n).for_each(|i| unsafe { to.add(i).write(from.sub(i).read()) });
}
compiled! { fastest_reversed<T: Copy>() -> unsafe fn(*const T, *mut T, usize) = reversed(from: *const T, to: *mut T, n: usize) }

/// Fills memory with copies of the bytes that it begins with.
///
/// # Safety
/// There is room for `all` bytes, of which `first` are there; `first` is not 0.
pub(super) unsafe fn repeat_first(start: *mut u8, first: usize, all: usize) {
    let mut done = first;
    while done < all {
        let more = done.min(all - done);
        // SAFETY: the caller's; what is there lies before what comes.
        unsafe { std::ptr::copy_nonoverlapping(start, start.add(done), more) };
        done += more;
    }
}

/// Writes `times` copies of each of `count` elements of `bytes` at a stride (in elements).
///
/// # Safety
/// The elements exist, and there is room for the copies, apart from them.
pub(super) unsafe fn repeat_each(
    from: *const u8,
    stride: isize,
    to: *mut u8,
    count: usize,
    times: usize,
    bytes: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        match bytes {
            1 => fastest_repeat_each::<u8>()(from.cast(), stride, to.cast(), count, times),
            2 => fastest_repeat_each::<u16>()(from.cast(), stride, to.cast(), count, times),
            4 => fastest_repeat_each::<u32>()(from.cast(), stride, to.cast(), count, times),
            _ => fastest_repeat_each::<u64>()(from.cast(), stride, to.cast(), count, times),
        }
    }
}
compiled! { fastest_repeat_each<T: Copy>() -> unsafe fn(*const T, isize, *mut T, usize, usize) =
copies(from: *const T, stride: isize, to: *mut T, count: usize, times: usize) }

/// # Safety
/// See [`repeat_each`].
#[inline(always)]
unsafe fn copies<T: Copy>(from: *const T, stride: isize, to: *mut T, count: usize, times: usize) {
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
                1 => vectors::<T, 32>(from, stride, to, count, times),
                2 => vectors::<T, 16>(from, stride, to, count, times),
                4 => vectors::<T, 8>(from, stride, to, count, times),
                _ => vectors::<T, 4>(from, stride, to, count, times),
            },
        }
    }
}

/// .. in vectors of `N`: what is written behind the copies of one element, those of the next ones replace.
///
/// # Safety
/// See [`repeat_each`].
#[inline(always)]
unsafe fn vectors<T: Copy, const N: usize>(from: *const T, stride: isize, to: *mut T, count: usize, times: usize) {
    let most = times.next_multiple_of(N);
    // The last elements have no room for whole vectors.
    let whole = if times <= 4 * N { ((count * times + times).saturating_sub(most) / times).min(count) } else { 0 };
    // SAFETY: the caller's; vectors of the first elements end before the copies of the last one do.
    unsafe {
        for i in 0..whole {
            let x = from.offset(i as isize * stride).read();
            for first in (0..times).step_by(N) {
                to.add(i * times + first).cast::<[T; N]>().write_unaligned([x; N]);
            }
        }
        (whole..count).for_each(|i| repeat(from.offset(i as isize * stride).read(), to.add(i * times), times));
    }
}

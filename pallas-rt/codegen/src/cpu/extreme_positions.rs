//! Finds positions of extremes (argmax, argmin): of a line, of adjacent columns, or of short rows.
use super::gemm;
use super::strips::{compiled, typed};
use pallas_ir::DType;
use std::mem::MaybeUninit;

/// Returns the position of the extreme (the maximum if `MAX`, else the minimum) of one line of `n` elements at a
/// stride.
#[inline(always)]
unsafe fn find_line_extreme<T: Ordered, const MAX: bool>(x: *const T, stride: isize, n: usize) -> i32 {
    if stride == 1 && n > MAX_SHORT_ROW_ELEMENTS {
        // SAFETY: the caller's.
        return unsafe {
            match n {
                MIN_LONG_LINE_ELEMENTS.. => find_extreme_by_columns::<T, MAX, 32>(x, n),
                _ => find_extreme_by_columns::<T, MAX, 16>(x, n),
            }
        };
    }
    // SAFETY: the caller's.
    let at = |i: usize| unsafe { *x.offset(i as isize * stride) }.key();
    let (mut best, mut place) = (at(0), 0);
    for i in 0..n {
        let own = at(i);
        if T::is_nan(own) {
            return i as i32;
        }
        if if MAX { own > best } else { own < best } {
            (best, place) = (own, i as i32);
        }
    }
    place
}

/// Returns the position of the extreme of a line of adjacent elements: views it as rows of `C` elements, finds the
/// extreme of each column, and then the best of these.
#[inline(always)]
unsafe fn find_extreme_by_columns<T: Ordered, const MAX: bool, const C: usize>(x: *const T, n: usize) -> i32 {
    let rows = n / C;
    let mut places = [0; C];
    // SAFETY: the caller's.
    unsafe { find_column_extremes::<T, MAX, C>(x, C as isize, rows, places.as_mut_ptr()) };
    let found = places.iter().enumerate().map(|(column, &row)| row as usize * C + column);
    // SAFETY: the caller's.
    let at = |i: usize| unsafe { *x.add(i) }.key();
    let is_better = |i: usize, than: usize| {
        let (own, other) = (at(i), at(than));
        match (T::is_nan(own), T::is_nan(other)) {
            (true, true) => i < than,
            (false, false) if own == other => i < than,
            (false, false) => (own > other) == MAX,
            (is_nan, _) => is_nan,
        }
    };
    found.chain(rows * C..n).fold(0, |best, i| if is_better(i, best) { i } else { best }) as i32
}

/// An element type whose values a [`FindExtremesFn`] compares.
trait Ordered: Copy {
    /// A type with the same order, which is faster to compare.
    type Key: Copy + PartialOrd;
    fn key(self) -> Self::Key;
    fn is_nan(key: Self::Key) -> bool;
}

/// Implements [`Ordered`] for types that are compared directly, and for 16-bit floats by their bits.
macro_rules! ordered {
    ($($T:ty),*) => {$(
        impl Ordered for $T {
            type Key = $T;
            #[inline(always)]
            fn key(self) -> $T {
                self
            }
            #[inline(always)]
            #[allow(clippy::eq_op, reason = "only NaN differs from itself")]
            fn is_nan(key: $T) -> bool {
                key != key
            }
        }
    )*};
    (halves: $($T:ty),*) => {$(
        impl Ordered for $T {
            /// The bits as a signed integer, so that both zeros are 0. It is as wide as a position, since AVX2 has no
            /// masked stores of narrower elements.
            type Key = i32;
            #[inline(always)]
            fn key(self) -> i32 {
                let bits = i32::from(self.to_bits() as i16);
                let magnitude = bits & i32::from(i16::MAX);
                if bits < 0 { -magnitude } else { magnitude }
            }
            #[inline(always)]
            fn is_nan(key: i32) -> bool {
                const INFINITY: i32 = <$T>::INFINITY.to_bits() as i32;
                !(-INFINITY..=INFINITY).contains(&key)
            }
        }
    )*};
}
ordered!(f32, f64, i8, u8, i16, u16, i32, u32, i64, u64, bool);
ordered!(halves: half::f16, half::bf16);

/// Number of columns, or short rows, that are searched together.
const COLUMNS_PER_BLOCK: usize = 64;
/// Maximum elements of a row that is transposed, so that many rows are searched side by side, without unpredictable
/// branches; longer rows are searched one by one.
const MAX_SHORT_ROW_ELEMENTS: usize = 64;
/// Minimum elements of a line that is searched in 32 parts instead of 16.
const MIN_LONG_LINE_ELEMENTS: usize = 512;

/// A function that finds the positions of the extremes of columns, of `n` elements each; the two strides, in elements,
/// are those along a column and from one column to the next. The first of equal elements counts; the first NaN counts
/// as the extreme.
///
/// # Safety
/// `x` has the columns, of at least one element of the type each; there is room for the positions.
pub(super) type FindExtremesFn =
    unsafe fn(max: bool, x: *const u8, stride_apart: [isize; 2], n: usize, columns: usize, to: *mut i32);

/// Returns the function that finds extremes of elements of a type.
pub(super) fn find_extremes_fn(dtype: DType) -> FindExtremesFn {
    typed!(dtype, T => fastest_extremes::<T>())
}
compiled! {
    fastest_extremes<T: Ordered>()
        = find_extremes(max: bool, x: *const u8, by: [isize; 2], n: usize, columns: usize, to: *mut i32)
}

/// Implements [`FindExtremesFn`] for an element type.
#[inline(always)]
unsafe fn find_extremes<T: Ordered>(
    max: bool,
    x: *const u8,
    element_column_strides: [isize; 2],
    n: usize,
    columns: usize,
    to: *mut i32,
) {
    let x = x.cast::<T>();
    // SAFETY: the caller's.
    unsafe {
        match max {
            true => find_extremes_in_blocks::<T, true>(x, element_column_strides, n, columns, to),
            false => find_extremes_in_blocks::<T, false>(x, element_column_strides, n, columns, to),
        }
    }
}

/// Finds the extremes of columns block by block; short rows are transposed to columns first.
#[inline(always)]
unsafe fn find_extremes_in_blocks<T: Ordered, const MAX: bool>(
    x: *const T,
    [stride, column_stride]: [isize; 2],
    n: usize,
    columns: usize,
    to: *mut i32,
) {
    let mut turned = MaybeUninit::<[T; MAX_SHORT_ROW_ELEMENTS * COLUMNS_PER_BLOCK]>::uninit();
    let turned: *mut T = turned.as_mut_ptr().cast();
    for first in (0..columns).step_by(COLUMNS_PER_BLOCK) {
        let count = COLUMNS_PER_BLOCK.min(columns - first);
        // SAFETY: the caller's; the buffer has room for short rows as columns.
        unsafe {
            let (own, to) = (x.offset(first as isize * column_stride), to.add(first));
            let (x, stride) = match column_stride {
                1 if columns > 1 => (own, stride),
                _ if stride == 1 && n <= MAX_SHORT_ROW_ELEMENTS => {
                    transpose_short_rows(own, column_stride, n, count, turned);
                    (turned.cast_const(), COLUMNS_PER_BLOCK as isize)
                }
                _ => {
                    // A loop's closure would be compiled for any machine.
                    for c in 0..count {
                        to.add(c).write(find_line_extreme::<T, MAX>(own.offset(c as isize * column_stride), stride, n));
                    }
                    continue;
                }
            };
            find_block_extremes::<T, MAX>(x, stride, n, count, to);
        }
    }
}

/// Finds the extremes of adjacent columns: as many at a time as registers hold, some of the last ones twice if fewer
/// are left.
///
/// # Safety
/// As [`FindExtremesFn`].
#[inline(always)]
unsafe fn find_block_extremes<T: Ordered, const MAX: bool>(
    x: *const T,
    stride: isize,
    n: usize,
    columns: usize,
    to: *mut i32,
) {
    let mut first = 0;
    macro_rules! columns {
        ($($W:literal)*) => {$(
            // SAFETY: the caller's.
            unsafe {
                while columns - first >= $W {
                    find_column_extremes::<T, MAX, $W>(x.add(first), stride, n, to.add(first));
                    first += $W;
                }
                if $W < MAX_COLUMNS_PER_SEARCH && first < columns && columns >= $W {
                    return find_column_extremes::<T, MAX, $W>(x.add(columns - $W), stride, n, to.add(columns - $W));
                }
            }
        )*};
    }
    columns!(32 8 2 1);
}
/// Maximum columns that one search takes. Columns that are left after searches of this width go to narrower ones;
/// those left after a narrower search are searched together with the columns before them.
const MAX_COLUMNS_PER_SEARCH: usize = 32;

/// Finds the extremes of `W` adjacent columns.
///
/// # Safety
/// As [`FindExtremesFn`].
#[inline(always)]
unsafe fn find_column_extremes<T: Ordered, const MAX: bool, const W: usize>(
    x: *const T,
    stride: isize,
    n: usize,
    to: *mut i32,
) {
    // SAFETY: the caller's.
    unsafe {
        let (mut best, mut place) = (load_keys::<T, W>(x), [0; W]);
        for i in 1..n {
            // Whole arrays, which stay in registers.
            let (own, other, mut places) = (load_keys::<T, W>(x.offset(i as isize * stride)), best, place);
            for c in 0..W {
                let is_better = if MAX { own[c] > other[c] } else { own[c] < other[c] };
                let is_taken = (is_better | T::is_nan(own[c])) & !T::is_nan(other[c]);
                best[c] = if is_taken { own[c] } else { other[c] };
                places[c] = if is_taken { i as i32 } else { places[c] };
            }
            place = places;
        }
        to.cast::<[i32; W]>().write(place);
    }
}

/// Returns the keys of `W` adjacent elements.
///
/// # Safety
/// `x` has `W` elements.
#[inline(always)]
unsafe fn load_keys<T: Ordered, const W: usize>(x: *const T) -> [T::Key; W] {
    // SAFETY: the caller's.
    unsafe {
        let mut keys = [x.read().key(); W];
        for (c, key) in keys.iter_mut().enumerate() {
            *key = x.add(c).read().key();
        }
        keys
    }
}

/// Transposes short rows of `n` elements to columns: elements of a row become [`COLUMNS_PER_BLOCK`] elements apart.
///
/// # Safety
/// The rows exist at this distance, and there is room for the columns.
#[inline(always)]
unsafe fn transpose_short_rows<T: Ordered>(x: *const T, row_stride: isize, n: usize, rows: usize, to: *mut T) {
    macro_rules! of {
        ($N:expr) => {
            for r in 0..rows {
                // SAFETY: the caller's.
                unsafe {
                    let row = x.offset(r as isize * row_stride);
                    (0..$N).for_each(|i| to.add(i * COLUMNS_PER_BLOCK + r).write(row.add(i).read()));
                }
            }
        };
    }
    // SAFETY: the caller's.
    let is_done = n > 8
        && size_of::<T>() == 4
        && unsafe { gemm::try_transpose_words(x.cast(), row_stride, to.cast(), COLUMNS_PER_BLOCK, [n, rows]) };
    if is_done {
        return;
    }
    // Loops over a constant number of elements are unrolled.
    match n {
        2 => of!(2),
        3 => of!(3),
        4 => of!(4),
        5 => of!(5),
        6 => of!(6),
        7 => of!(7),
        8 => of!(8),
        _ => of!(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw;

    /// Columns with ties and NaN, of any number of elements and columns, searched together and one by one.
    #[test]
    fn columns_have_the_extremes_of_each() {
        for (n, columns) in [
            (1, 5),
            (2, 64),
            (3, 130),
            (3, 25),
            (7, 3),
            (5, 47),
            (6, 39),
            (8, 33),
            (27, 70),
            (64, 9),
            (100, 3),
            (200, 1),
            (9, 63),
            (16, 65),
            (40, 1),
            (512, 2),
            (1000, 3),
            (1600, 1),
        ] {
            for max in [true, false] {
                let number = |i: usize| match i % 5 {
                    2 => [f32::NAN, -f32::NAN][i / 5 % 2],
                    1 => [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY][i / 5 % 4],
                    _ => (i * 7 % 4) as f32 - 1.5,
                };
                // Long columns have a NaN in the second one alone, and extremes near the end of the first.
                let in_long_columns = |i: usize| match (i / columns, i % columns) {
                    (450, 1) => f32::NAN,
                    (row, 0) if row + 3 == n => 250.0,
                    (row, 0) if row + 2 == n => -7.0,
                    _ => (i * 7919 % 241) as f32,
                };
                let x: Vec<f32> = (0..n * columns)
                    .map(|i| if n < MIN_LONG_LINE_ELEMENTS { number(i * i + i / 3) } else { in_long_columns(i) })
                    .collect();
                // The numbers are the same in all three types.
                let f16: Vec<half::f16> = x.iter().map(|&x| half::f16::from_f32(x)).collect();
                let bf16: Vec<half::bf16> = x.iter().map(|&x| half::bf16::from_f32(x)).collect();
                let is_better = |a: f32, b: f32| if max { a > b } else { a < b };
                let place_in = |column: usize| {
                    let at = |i: usize| x[i * columns + column];
                    let better = |best: usize, i: usize| if is_better(at(i), at(best)) { i } else { best };
                    (0..n).find(|&i| at(i).is_nan()).unwrap_or_else(|| (0..n).fold(0, better)) as i32
                };
                let expected: Vec<i32> = (0..columns).map(place_in).collect();
                let starts: [(DType, *const u8); 3] = [
                    (DType::F32, x.as_ptr().cast()),
                    (DType::F16, f16.as_ptr().cast()),
                    (DType::Bf16, bf16.as_ptr().cast()),
                ];
                for (dtype, start) in starts {
                    let mut found = vec![-1; columns];
                    // SAFETY: there are so many columns of the type, and room for their positions.
                    unsafe {
                        find_extremes_fn(dtype)(max, start, [columns as isize, 1], n, columns, found.as_mut_ptr())
                    };
                    assert_eq!(found, expected, "{n}x{columns} of {dtype}, {max}");
                    let column = |c: usize| start.wrapping_add(c * dtype.bytes());
                    // SAFETY: it is one of the columns.
                    let one = |c: usize| unsafe {
                        let mut place = -1;
                        find_extremes_fn(dtype)(max, column(c), [columns as isize, 0], n, 1, &raw mut place);
                        place
                    };
                    let found: Vec<i32> = (0..columns).map(one).collect();
                    assert_eq!(found, expected, "{n}x{columns} of {dtype}, {max}, one by one");
                    // The columns are rows, two elements further apart than they are long.
                    let mut turned = vec![0; (n + 2) * columns * dtype.bytes()];
                    for (r, row) in turned.chunks_mut((n + 2) * dtype.bytes()).enumerate() {
                        for (i, to) in row.chunks_mut(dtype.bytes()).take(n).enumerate() {
                            // SAFETY: it is an element of the column.
                            let from = unsafe { raw::slice(column(r + i * columns), to.len()) };
                            to.copy_from_slice(from);
                        }
                    }
                    let mut found = vec![-1; columns];
                    // SAFETY: there are so many rows of the type, and room for their positions.
                    unsafe {
                        let far = (n + 2) as isize;
                        find_extremes_fn(dtype)(max, turned.as_ptr(), [1, far], n, columns, found.as_mut_ptr());
                    }
                    assert_eq!(found, expected, "{columns}x{n} of {dtype}, {max}, in rows");
                }
            }
        }
    }
}

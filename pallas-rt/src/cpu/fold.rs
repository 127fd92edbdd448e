//! Reductions of rows, monomorphised per monoid and element type.
use super::boxes::{Along, Inner, each_row};
use super::line::{AHEAD, FETCHED, Line, fetch};
use super::strips::{compiled, typed};
use crate::raw;
use pallas_ir::scalar::VisitMonoid;
use pallas_ir::{DType, Elem, Lane, ScalarOp};

/// The loops of one monoid on one element type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold {
    /// Folds each of `rows` rows of `n` adjacent elements: `out[r] = fold(start, x[r])`. Rows are `row` bytes apart.
    ///
    /// # Safety
    /// The rows are readable, `out` has `rows` elements and overlaps them not; `start` is one element.
    pub(super) rows: Rows,
    /// `out[i] = out[i] ∘ x[i]` for `n` adjacent elements.
    ///
    /// # Safety
    /// Both have `n` elements and do not overlap.
    pub(super) into: Into,
    /// `out[..] = out[..] ∘ x[..]` at the positions of loops.
    ///
    /// # Safety
    /// Both have elements at these positions, and do not overlap.
    pub(super) loops: InLoops,
    /// `out[place(i)] = out[place(i)] ∘ x[i]` for the elements of a line, in order; those outside of `out` are skipped.
    ///
    /// # Safety
    /// As [`line::scatter`](super::line::scatter).
    pub(super) at: At,
    /// As `at`, for a line of rows of so many adjacent elements instead of single ones; the line has one row of positions.
    ///
    /// # Safety
    /// As `at`, for rows at each place, which overlap nowhere.
    pub(super) rows_at: RowsAt,
    /// Inclusive running fold of `n` elements at strides (in elements).
    ///
    /// # Safety
    /// Both have `n` elements at their strides.
    pub(super) scan: unsafe fn(x: *const u8, x_stride: isize, out: *mut u8, out_stride: isize, n: usize),
}

/// Rows of a few columns that are folded as one row, and bytes of such a row.
const TOGETHER: usize = 16;
const SHORT: usize = 64;

impl Fold {
    /// Folds rows that lie side by side into `to`, an element for each column, of so many bytes.
    ///
    /// # Safety
    /// `x` has the rows, `to` the columns; they do not overlap.
    pub(super) unsafe fn columns(&self, mut x: *const u8, [rows, columns]: [usize; 2], bytes: usize, to: *mut u8) {
        let row = columns * bytes;
        let mut left = rows;
        // SAFETY: the caller's; the buffer has room for so many short rows.
        unsafe {
            if row <= SHORT && rows >= 4 * TOGETHER {
                let mut buffer = [0u64; TOGETHER * SHORT / 8];
                let sums = buffer.as_mut_ptr().cast::<u8>();
                std::ptr::copy_nonoverlapping(x, sums, TOGETHER * row);
                for k in 1..rows / TOGETHER {
                    (self.into)(x.add(k * TOGETHER * row), TOGETHER * columns, sums);
                }
                (0..TOGETHER).for_each(|k| (self.into)(sums.add(k * row), columns, to));
                left = rows % TOGETHER;
                x = x.add((rows - left) * row);
            }
            (0..left).for_each(|r| (self.into)(x.add(r * row), columns, to));
        }
    }
}

type Rows = unsafe fn(x: *const u8, row: isize, rows: usize, n: usize, start: *const u8, out: *mut u8);
type InLoops = unsafe fn(x: *const u8, out: *mut u8, inner: &Inner<2>);
type Into = unsafe fn(x: *const u8, n: usize, out: *mut u8);
type At = unsafe fn(line: Line, x: *const u8, out: *mut u8);
type RowsAt = unsafe fn(line: Line, row: usize, x: *const u8, out: *mut u8);

/// Folds a row in `LANES` independent running results: a long row has many, so that none waits for its last step; a short
/// one few, since they are folded in turn at its end.
#[inline(always)]
fn row<O: Lane<(T, T), Out = T>, T: Elem, const LANES: usize>(start: T, x: &[T]) -> T {
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut sum = start;
    if let Some((first, blocks)) = blocks.split_first() {
        let mut lanes = *first;
        for block in blocks {
            for (lane, &x) in lanes.iter_mut().zip(block) {
                *lane = O::fast((*lane, x));
            }
        }
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] = O::fast((lanes[i], lanes[i + width]));
            }
            width /= 2;
        }
        sum = O::fast((sum, lanes[0]));
    }
    rest.iter().fold(sum, |sum, &x| O::fast((sum, x)))
}

#[inline(always)]
unsafe fn rows<O: Lane<(T, T), Out = T>, T: Elem>(
    x: *const u8,
    row_bytes: isize,
    rows: usize,
    n: usize,
    start: *const u8,
    out: *mut u8,
) {
    // SAFETY: the caller's.
    let start = unsafe { *start.cast::<T>() };
    for r in 0..rows {
        // SAFETY: the caller's: row r is readable, out has room.
        unsafe {
            let x = raw::slice(x.offset(r as isize * row_bytes).cast::<T>(), n);
            *out.cast::<T>().add(r) = if n >= 128 { row::<O, T, 64>(start, x) } else { row::<O, T, 16>(start, x) };
        }
    }
}

#[inline(always)]
unsafe fn into<O: Lane<(T, T), Out = T>, T: Elem>(x: *const u8, n: usize, out: *mut u8) {
    // SAFETY: the caller's.
    let (x, out) = unsafe { (raw::slice(x.cast::<T>(), n), raw::slice_mut(out.cast::<T>(), n)) };
    for (y, &x) in out.iter_mut().zip(x) {
        *y = O::fast((*y, x));
    }
}

/// Elements of rows that are folded without a loop: few features, which are many rows.
macro_rules! short_rows {
    ($inner:ident, $x:ident, $out:ident, $O:ident, $T:ident, [$($n:literal)*], $long:expr) => {
        match $inner[2].n {
            $($n if $inner[2].by == [1; 2] => each_row($inner, |[at, to]| {
                // SAFETY: the caller's.
                let (x, out) = unsafe { (&*$x.offset(at).cast::<[$T; $n]>(), &mut *$out.offset(to).cast::<[$T; $n]>()) };
                for (y, &x) in out.iter_mut().zip(x) {
                    *y = $O::fast((*y, x));
                }
            }),)*
            _ => $long,
        }
    };
}

#[inline(always)]
unsafe fn in_loops<O: Lane<(T, T), Out = T>, T: Elem>(x: *const u8, out: *mut u8, inner: &Inner<2>) {
    let (x, out) = (x.cast::<T>(), out.cast::<T>());
    let Along { n, by } = inner[2];
    let along = |[at, to]: [isize; 2]| {
        // SAFETY: the caller's.
        unsafe {
            let (x, out) = (x.offset(at), out.offset(to));
            match by {
                [1, 1] => {
                    for (y, &x) in raw::slice_mut(out, n).iter_mut().zip(raw::slice(x, n)) {
                        *y = O::fast((*y, x));
                    }
                }
                [from, 0] => *out = (0..n as isize).fold(*out, |y, i| O::fast((y, *x.offset(i * from)))),
                [from, to] => {
                    for i in 0..n as isize {
                        let y = out.offset(i * to);
                        *y = O::fast((*y, *x.offset(i * from)));
                    }
                }
            }
        }
    };
    short_rows!(inner, x, out, O, T, [4 8], each_row(inner, along));
}

#[inline(always)]
unsafe fn at<O: Lane<(T, T), Out = T>, T: Elem>(line: Line, x: *const u8, out: *mut u8) {
    let (x, out) = (x.cast::<T>(), out.cast::<T>());
    // SAFETY: the caller's; positions outside of `out` are skipped.
    unsafe {
        line.each(|i, place| {
            let y = out.offset(place);
            *y = O::fast((*y, *x.offset(i * line.moved)));
        });
    }
}

#[inline(always)]
unsafe fn rows_at<O: Lane<(T, T), Out = T>, T: Elem>(line: Line, row: usize, x: *const u8, out: *mut u8) {
    let (x, out, n) = (x.cast::<T>(), out.cast::<T>(), line.n as isize);
    let is_far = line.is_far(size_of::<T>());
    for i in 0..n {
        // SAFETY: the caller's; positions outside of `out` are skipped.
        unsafe {
            if is_far && i + AHEAD < n {
                let near = out.wrapping_offset(line.place(i + AHEAD, line.position(i + AHEAD)));
                fetch(near.cast(), (row * size_of::<T>()).min(FETCHED));
            }
            let position = line.position(i);
            if line.has(position) {
                into::<O, T>(x.offset(i * line.moved).cast(), row, out.offset(line.place(i, position)).cast());
            }
        }
    }
}

unsafe fn scan<O: Lane<(T, T), Out = T>, T: Elem>(x: *const u8, xs: isize, out: *mut u8, os: isize, n: usize) {
    let (x, out) = (x.cast::<T>(), out.cast::<T>());
    for i in 0..n as isize {
        // SAFETY: the caller's.
        unsafe {
            let here = *x.offset(i * xs);
            *out.offset(i * os) = if i == 0 { here } else { O::fast((*out.offset((i - 1) * os), here)) };
        }
    }
}

compiled! {
    fastest_rows<O: Lane<(T, T), Out = T>, T: Elem>() -> Rows
        = rows(x: *const u8, row: isize, count: usize, n: usize, start: *const u8, out: *mut u8)
}
compiled! {
    fastest_in_loops<O: Lane<(T, T), Out = T>, T: Elem>() -> InLoops
        = in_loops(x: *const u8, out: *mut u8, inner: &Inner<2>)
}
compiled! { fastest_into<O: Lane<(T, T), Out = T>, T: Elem>() -> Into = into(x: *const u8, n: usize, out: *mut u8) }
compiled! {
    fastest_rows_at<O: Lane<(T, T), Out = T>, T: Elem>() -> RowsAt
        = rows_at(line: Line, row: usize, x: *const u8, out: *mut u8)
}
compiled! { fastest_at<O: Lane<(T, T), Out = T>, T: Elem>() -> At = at(line: Line, x: *const u8, out: *mut u8) }

/// The loops of a monoid.
pub(super) fn fold(op: ScalarOp, dtype: DType) -> Fold {
    struct Pick;
    impl VisitMonoid for Pick {
        type Out = Fold;
        fn visit<O: Lane<(T, T), Out = T>, T: Elem>(self) -> Fold {
            Fold {
                rows: fastest_rows::<O, T>(),
                into: fastest_into::<O, T>(),
                loops: fastest_in_loops::<O, T>(),
                at: fastest_at::<O, T>(),
                rows_at: fastest_rows_at::<O, T>(),
                scan: scan::<O, T>,
            }
        }
    }
    op.visit_monoid(dtype, Pick).expect("the shape rule admits monoids only")
}

/// Position of the extreme of `n` elements at a stride (in elements): the first of ties; the first NaN wins.
///
/// # Safety
/// `x` has `n` elements of `dtype` at that stride.
pub(super) unsafe fn extreme(dtype: DType, max: bool, x: *const u8, stride: isize, n: usize) -> i32 {
    // SAFETY: the caller's.
    typed!(dtype, T => unsafe { extreme_of::<T>(max, x.cast(), stride, n) })
}

unsafe fn extreme_of<T: Ordered>(max: bool, x: *const T, stride: isize, n: usize) -> i32 {
    if n == 0 {
        return 0;
    }
    // SAFETY: the caller's.
    let at = |i: usize| unsafe { *x.offset(i as isize * stride) }.key();
    let (mut best, mut place) = (at(0), 0);
    for i in 0..n {
        let own = at(i);
        if T::is_nan(own) {
            return i as i32;
        }
        if if max { own > best } else { own < best } {
            (best, place) = (own, i as i32);
        }
    }
    place
}

/// Elements that [`extreme`] compares.
trait Ordered: Copy {
    /// Has the same order.
    type Key: Copy + PartialOrd;
    fn key(self) -> Self::Key;
    fn is_nan(key: Self::Key) -> bool;
}

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
            /// The bits as an integer with their sign, so that both zeros are 0: as wide as a position, since AVX2 stores no
            /// choice of narrower ones.
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

/// Columns that are searched together.
const COLUMNS: usize = 64;

/// Positions of the extremes of adjacent columns, each of `n` elements at a stride (in elements); see [`extreme`].
///
/// # Safety
/// `x` has the columns, of at least one element of `dtype` each; there is room for the positions.
pub(super) unsafe fn extremes(
    dtype: DType,
    max: bool,
    x: *const u8,
    (stride, n): (isize, usize),
    columns: usize,
    to: *mut i32,
) {
    // SAFETY: the caller's.
    typed!(dtype, T => unsafe { fastest_extremes::<T>()(max, x.cast(), stride, n, columns, to) });
}
compiled! { fastest_extremes<T: Ordered>() -> unsafe fn(bool, *const T, isize, usize, usize, *mut i32) =
extremes_of(max: bool, x: *const T, stride: isize, n: usize, columns: usize, to: *mut i32) }

#[inline(always)]
unsafe fn extremes_of<T: Ordered>(max: bool, x: *const T, stride: isize, n: usize, columns: usize, to: *mut i32) {
    for first in (0..columns).step_by(COLUMNS) {
        let count = COLUMNS.min(columns - first);
        // SAFETY: the caller's.
        unsafe {
            let (x, to) = (x.add(first), to.add(first));
            match (max, count) {
                (true, COLUMNS) => block_of::<T, true>(x, stride, n, COLUMNS, to),
                (false, COLUMNS) => block_of::<T, false>(x, stride, n, COLUMNS, to),
                (true, _) => block_of::<T, true>(x, stride, n, count, to),
                (false, _) => block_of::<T, false>(x, stride, n, count, to),
            }
        }
    }
}

/// .. of at most [`COLUMNS`] columns.
///
/// # Safety
/// As [`extremes`].
#[inline(always)]
unsafe fn block_of<T: Ordered, const MAX: bool>(x: *const T, stride: isize, n: usize, count: usize, to: *mut i32) {
    // SAFETY: the caller's.
    unsafe {
        let mut best = [x.read().key(); COLUMNS];
        let mut place = [0; COLUMNS];
        (0..count).for_each(|c| best[c] = x.add(c).read().key());
        for i in 1..n {
            let row = x.offset(i as isize * stride);
            for c in 0..count {
                let (own, other) = (row.add(c).read().key(), best[c]);
                let is_better = if MAX { own > other } else { own < other };
                let is_taken = (is_better | T::is_nan(own)) & !T::is_nan(other);
                best[c] = if is_taken { own } else { other };
                place[c] = if is_taken { i as i32 } else { place[c] };
            }
        }
        std::ptr::copy_nonoverlapping(place.as_ptr(), to, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns with ties and NaN, of any number of elements and columns, searched together and one by one.
    #[test]
    fn columns_have_the_extremes_of_each() {
        for (n, columns) in [(1, 5), (2, 64), (3, 130), (9, 63), (40, 1)] {
            for max in [true, false] {
                let number = |i: usize| match i % 5 {
                    2 => [f32::NAN, -f32::NAN][i / 5 % 2],
                    1 => [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY][i / 5 % 4],
                    _ => (i * 7 % 4) as f32 - 1.5,
                };
                let x: Vec<f32> = (0..n * columns).map(|i| number(i * i + i / 3)).collect();
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
                    unsafe { extremes(dtype, max, start, (columns as isize, n), columns, found.as_mut_ptr()) };
                    assert_eq!(found, expected, "{n}x{columns} of {dtype}, {max}");
                    let column = |c: usize| start.wrapping_add(c * dtype.bytes());
                    // SAFETY: it is one of the columns.
                    let one = |c: usize| unsafe { extreme(dtype, max, column(c), columns as isize, n) };
                    let found: Vec<i32> = (0..columns).map(one).collect();
                    assert_eq!(found, expected, "{n}x{columns} of {dtype}, {max}, one by one");
                }
            }
        }
    }
}

//! Folds of rows by a monoid, compiled for each monoid and element type.
mod extremes;

use self::extremes::{HalfMinMax, fastest_fold_rows_to_extremes};
use super::indexed_lines::{IndexedLine, MAX_PREFETCHED_ROW_BYTES, PREFETCH_DISTANCE_ROWS, prefetch_cache_lines};
use super::interior_boxes::{InnerLoops, StridedLoop, for_each_row};
use super::strips::compiled;
use crate::raw;
use half::{bf16, f16};
use pallas_ir::scalar::{Maximum, Minimum, MonoidVisitor};
use pallas_ir::{DType, Elem, ElementFunction, ScalarOp};
use std::any::Any;

/// The loops that fold by one monoid (written `∘`) over one element type.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldFunctions {
    /// Folds each of `rows` rows of `n` adjacent elements: `out[r] = fold(start, x[r])`. Rows are `row` bytes apart.
    ///
    /// # Safety
    /// The rows are readable; `out` has `rows` elements and does not overlap them; `start` is one element.
    pub(super) rows: unsafe fn(x: *const u8, row: isize, rows: usize, n: usize, start: *const u8, out: *mut u8),
    /// Folds each of `n` adjacent elements into another: `out[i] = out[i] ∘ x[i]`.
    ///
    /// # Safety
    /// Both have `n` elements and do not overlap.
    pub(super) into: unsafe fn(x: *const u8, n: usize, out: *mut u8),
    /// Folds elements into others in three nested loops: `out[..] = out[..] ∘ x[..]`.
    ///
    /// # Safety
    /// Both have elements at these positions, and do not overlap.
    pub(super) loops: unsafe fn(x: *const u8, out: *mut u8, inner: &InnerLoops<2>),
    /// Folds the elements of a line into those at its positions, in order: `out[place(i)] = out[place(i)] ∘ x[i]`.
    /// Elements with invalid positions are skipped.
    ///
    /// # Safety
    /// As [`scatter`](super::indexed_lines::scatter).
    pub(super) at: unsafe fn(line: IndexedLine, x: *const u8, out: *mut u8),
    /// Folds rows of `row` adjacent elements, otherwise as `at`; the line has one row of positions.
    ///
    /// # Safety
    /// As `at`, for rows at each place, which overlap nowhere.
    pub(super) rows_at: unsafe fn(line: IndexedLine, row: usize, x: *const u8, out: *mut u8),
    /// Writes the inclusive running fold of `n` elements at strides (in elements).
    ///
    /// # Safety
    /// Both have `n` elements at their strides.
    pub(super) scan: unsafe fn(x: *const u8, x_stride: isize, out: *mut u8, out_stride: isize, n: usize),
    /// Replaces subnormal numbers among `n` adjacent elements by 0; only running products have it, see
    /// [`flush_subnormal`].
    ///
    /// # Safety
    /// `x` has `n` elements.
    pub(super) flush: Option<unsafe fn(x: *mut u8, n: usize)>,
}

/// Number of short rows that are folded as one row.
const ROWS_FOLDED_AS_ONE: usize = 16;
/// Maximum bytes of a row that is folded together with others, as one longer row; longer rows are folded one by one.
const MAX_SHORT_ROW_BYTES: usize = 64;

impl FoldFunctions {
    /// Folds adjacent rows into the row `to`, element by element: `to[j] = to[j] ∘ x[i, j]` for every row `i`.
    ///
    /// # Safety
    /// `x` has the rows, `to` the columns; they do not overlap.
    pub(super) unsafe fn fold_columns(
        &self,
        mut x: *const u8,
        [rows, columns]: [usize; 2],
        element_bytes: usize,
        to: *mut u8,
    ) {
        let row = columns * element_bytes;
        let mut left = rows;
        // SAFETY: the caller's; the buffer has room for so many short rows.
        unsafe {
            if row <= MAX_SHORT_ROW_BYTES && rows >= 4 * ROWS_FOLDED_AS_ONE {
                let mut buffer = [0u64; ROWS_FOLDED_AS_ONE * MAX_SHORT_ROW_BYTES / 8];
                let sums = buffer.as_mut_ptr().cast::<u8>();
                std::ptr::copy_nonoverlapping(x, sums, ROWS_FOLDED_AS_ONE * row);
                for k in 1..rows / ROWS_FOLDED_AS_ONE {
                    (self.into)(x.add(k * ROWS_FOLDED_AS_ONE * row), ROWS_FOLDED_AS_ONE * columns, sums);
                }
                (0..ROWS_FOLDED_AS_ONE).for_each(|k| (self.into)(sums.add(k * row), columns, to));
                left = rows % ROWS_FOLDED_AS_ONE;
                x = x.add((rows - left) * row);
            }
            (0..left).for_each(|r| (self.into)(x.add(r * row), columns, to));
        }
    }
}

/// Folds a row, with `LANES` independent running results: many for a long row, so that no step waits for the one
/// before; few for a short row, since they have to be folded together at its end.
#[inline(always)]
fn fold_row<O: ElementFunction<(T, T), Out = T>, T: Elem, const LANES: usize>(start: T, x: &[T]) -> T {
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

/// Folds each of `rows` rows of `n` adjacent elements to one element of `out`, beginning with the element `start`.
#[inline(always)]
unsafe fn fold_rows<O: ElementFunction<(T, T), Out = T>, T: Elem>(
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
            *out.cast::<T>().add(r) =
                if n >= 128 { fold_row::<O, T, 64>(start, x) } else { fold_row::<O, T, 16>(start, x) };
        }
    }
}

/// Folds each of `n` adjacent elements of `x` into the element of `out` at the same index: `out[i] = out[i] ∘ x[i]`.
#[inline(always)]
unsafe fn fold_elementwise<O: ElementFunction<(T, T), Out = T>, T: Elem>(x: *const u8, n: usize, out: *mut u8) {
    // SAFETY: the caller's.
    let (x, out) = unsafe { (raw::slice(x.cast::<T>(), n), raw::slice_mut(out.cast::<T>(), n)) };
    for (y, &x) in out.iter_mut().zip(x) {
        *y = O::fast((*y, x));
    }
}

/// Runs innermost loops of these constant lengths without a loop (arrays with few features), or `$long` for others.
macro_rules! short_rows {
    ($inner:ident, $x:ident, $out:ident, $O:ident, $T:ident, [$($n:literal)*], $long:expr) => {
        match $inner[2].n {
            $($n if $inner[2].by == [1; 2] => for_each_row($inner, |[at, to]| {
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

/// Folds elements of `x` into elements of `out` in three nested loops, which have a stride in each: `out[..] = out[..]
/// ∘ x[..]`.
#[inline(always)]
unsafe fn fold_in_loops<O: ElementFunction<(T, T), Out = T>, T: Elem>(
    x: *const u8,
    out: *mut u8,
    inner: &InnerLoops<2>,
) {
    let (x, out) = (x.cast::<T>(), out.cast::<T>());
    let StridedLoop { n, by } = inner[2];
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
    short_rows!(inner, x, out, O, T, [4 8], for_each_row(inner, along));
}

/// Folds each element of `x` into the element of `out` at its position in the line; elements with invalid positions
/// are skipped.
#[inline(always)]
unsafe fn fold_at_positions<O: ElementFunction<(T, T), Out = T>, T: Elem>(
    line: IndexedLine,
    x: *const u8,
    out: *mut u8,
) {
    let (x, out) = (x.cast::<T>(), out.cast::<T>());
    // SAFETY: the caller's; positions outside of `out` are skipped.
    unsafe {
        line.for_each_valid_element(|i, place| {
            let y = out.offset(place);
            *y = O::fast((*y, *x.offset(i * line.moved)));
        });
    }
}

/// Folds each row of adjacent elements of `x` into the row of `out` at its position in the line; rows with invalid
/// positions are skipped.
#[inline(always)]
unsafe fn fold_rows_at_positions<O: ElementFunction<(T, T), Out = T>, T: Elem>(
    line: IndexedLine,
    row_elements: usize,
    x: *const u8,
    out: *mut u8,
) {
    let (x, out, n) = (x.cast::<T>(), out.cast::<T>(), line.n as isize);
    let is_far = line.is_operand_larger_than_cache(size_of::<T>());
    for i in 0..n {
        // SAFETY: the caller's; positions outside of `out` are skipped.
        unsafe {
            if is_far && i + PREFETCH_DISTANCE_ROWS < n {
                let near = out.wrapping_offset(
                    line.operand_offset(i + PREFETCH_DISTANCE_ROWS, line.position(i + PREFETCH_DISTANCE_ROWS)),
                );
                prefetch_cache_lines(near.cast(), (row_elements * size_of::<T>()).min(MAX_PREFETCHED_ROW_BYTES));
            }
            let position = line.position(i);
            if line.is_valid_position(position) {
                fold_elementwise::<O, T>(
                    x.offset(i * line.moved).cast(),
                    row_elements,
                    out.offset(line.operand_offset(i, position)).cast(),
                );
            }
        }
    }
}

/// Number of elements of a running product after which a subnormal result is replaced by 0.
pub(super) const ELEMENTS_PER_SUBNORMAL_FLUSH: usize = 16;

/// Returns a float, or 0 if it is subnormal. A product that shrinks would stay at the smallest subnormal number, since
/// nine tenths of it are rounded to it again, and arithmetic with subnormal numbers takes a hundred times as long.
#[inline(always)]
fn flush_subnormal<T: Elem>(mut x: T) -> T {
    let any: &mut dyn Any = &mut x;
    if let Some(x) = any.downcast_mut::<f32>() {
        *x = if x.is_subnormal() { 0.0f32.copysign(*x) } else { *x };
    } else if let Some(x) = any.downcast_mut::<f64>() {
        *x = if x.is_subnormal() { 0.0f64.copysign(*x) } else { *x };
    }
    x
}

/// Replaces the subnormal numbers among `n` adjacent elements by zeros of the same signs.
unsafe fn flush_subnormals<T: Elem>(x: *mut u8, n: usize) {
    // SAFETY: the caller's.
    unsafe { raw::slice_mut(x.cast::<T>(), n) }.iter_mut().for_each(|x| *x = flush_subnormal(*x));
}

/// Writes the inclusive running fold of `n` elements at strides, in elements. With `FLUSHES`, some results at regular
/// distances are replaced by 0 if they are subnormal.
unsafe fn scan<O: ElementFunction<(T, T), Out = T>, T: Elem, const FLUSHES: bool>(
    x: *const u8,
    x_stride: isize,
    out: *mut u8,
    out_stride: isize,
    n: usize,
) {
    let (x, out) = (x.cast::<T>(), out.cast::<T>());
    for i in 0..n as isize {
        // SAFETY: the caller's.
        unsafe {
            let here = *x.offset(i * x_stride);
            let sum = if i == 0 { here } else { O::fast((*out.offset((i - 1) * out_stride), here)) };
            let flushes = FLUSHES && i as usize % ELEMENTS_PER_SUBNORMAL_FLUSH == ELEMENTS_PER_SUBNORMAL_FLUSH - 1;
            *out.offset(i * out_stride) = if flushes { flush_subnormal(sum) } else { sum };
        }
    }
}

compiled! {
    fastest_fold_rows<O: ElementFunction<(T, T), Out = T>, T: Elem>()
        = fold_rows(x: *const u8, row: isize, count: usize, n: usize, start: *const u8, out: *mut u8)
}
compiled! {
    fastest_fold_in_loops<O: ElementFunction<(T, T), Out = T>, T: Elem>() = fold_in_loops(x: *const u8, out: *mut u8, inner: &InnerLoops<2>)
}
compiled! { fastest_fold_elementwise<O: ElementFunction<(T, T), Out = T>, T: Elem>() = fold_elementwise(x: *const u8, n: usize, out: *mut u8) }
compiled! {
    fastest_fold_rows_at_positions<O: ElementFunction<(T, T), Out = T>, T: Elem>() = fold_rows_at_positions(line: IndexedLine, row: usize, x: *const u8, out: *mut u8)
}
compiled! { fastest_fold_at_positions<O: ElementFunction<(T, T), Out = T>, T: Elem>() = fold_at_positions(line: IndexedLine, x: *const u8, out: *mut u8) }

/// Returns the functions that fold elements of type `dtype` by the monoid `op`.
pub(super) fn fold_functions(op: ScalarOp, dtype: DType) -> FoldFunctions {
    struct FoldSelector {
        flushes: bool,
    }
    impl MonoidVisitor for FoldSelector {
        type Out = FoldFunctions;
        fn visit<O: ElementFunction<(T, T), Out = T>, T: Elem>(self) -> FoldFunctions {
            FoldFunctions {
                rows: fastest_fold_rows::<O, T>(),
                into: fastest_fold_elementwise::<O, T>(),
                loops: fastest_fold_in_loops::<O, T>(),
                at: fastest_fold_at_positions::<O, T>(),
                rows_at: fastest_fold_rows_at_positions::<O, T>(),
                scan: if self.flushes { scan::<O, T, true> } else { scan::<O, T, false> },
                flush: self.flushes.then_some(flush_subnormals::<T>),
            }
        }
    }
    let flushes = op == ScalarOp::Mul && matches!(dtype, DType::F32 | DType::F64);
    let select = FoldSelector { flushes };
    match (op, dtype) {
        (ScalarOp::Minimum, DType::F16) => select.visit::<HalfMinMax<false>, f16>(),
        (ScalarOp::Maximum, DType::F16) => select.visit::<HalfMinMax<true>, f16>(),
        (ScalarOp::Minimum, DType::Bf16) => select.visit::<HalfMinMax<false>, bf16>(),
        (ScalarOp::Maximum, DType::Bf16) => select.visit::<HalfMinMax<true>, bf16>(),
        (ScalarOp::Minimum, DType::F32) => {
            FoldFunctions { rows: fastest_fold_rows_to_extremes::<Minimum>(), ..select.visit::<Minimum, f32>() }
        }
        (ScalarOp::Maximum, DType::F32) => {
            FoldFunctions { rows: fastest_fold_rows_to_extremes::<Maximum>(), ..select.visit::<Maximum, f32>() }
        }
        _ => op.visit_monoid(dtype, select).expect("the shape rule admits monoids only"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A product that shrinks ends at 0, not at the least subnormal number; its zeros keep their signs.
    #[test]
    fn running_products_leave_subnormal_numbers() {
        let product = fold_functions(ScalarOp::Mul, DType::F32);
        let x: Vec<f32> = (0..300).map(|i| if i == 7 { -0.6 } else { 0.7 }).collect();
        let mut found = vec![f32::NAN; x.len()];
        // SAFETY: both have so many adjacent elements.
        unsafe { (product.scan)(x.as_ptr().cast(), 1, found.as_mut_ptr().cast(), 1, x.len()) };
        let exact = |i: usize| x[..=i].iter().map(|&x| f64::from(x)).product::<f64>();
        for (i, &found) in found.iter().enumerate() {
            assert!((f64::from(found) - exact(i)).abs() <= 1e-5 * exact(i).abs() + f64::from(f32::MIN_POSITIVE));
        }
        assert!(found[299] == 0.0 && found[299].is_sign_negative(), "{}", found[299]);
        let flush = product.flush.expect("products have it");
        let mut row = [1e-40f32, -1e-40, f32::MIN_POSITIVE, f32::NAN, -0.0];
        // SAFETY: there are five.
        unsafe { flush(row.as_mut_ptr().cast(), 5) };
        assert_eq!(row.map(f32::to_bits)[..3], [0.0, -0.0, f32::MIN_POSITIVE].map(f32::to_bits));
        assert!(row[3].is_nan() && row[4].to_bits() == (-0.0f32).to_bits());
        assert!(
            fold_functions(ScalarOp::Add, DType::F32).flush.is_none()
                && fold_functions(ScalarOp::Mul, DType::I32).flush.is_none()
        );
    }
}

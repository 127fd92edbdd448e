//! Folds by maximum and minimum, whose rules for NaN and for zeros of both signs take more steps than a comparison.
use super::super::strips::compiled;
use super::fold_rows;
use crate::raw;
use half::{bf16, f16};
use pallas_ir::ElementFunction;

/// Returns the maximum of a row (the minimum unless `is_max`); NaN if the row has one, or less than `LANES` elements.
#[inline(always)]
fn find_row_extreme<const LANES: usize>(is_max: bool, x: &[f32]) -> f32 {
    let further = |a: f32, b: f32| if if is_max { a > b } else { a < b } { a } else { b };
    let (blocks, rest) = x.as_chunks::<LANES>();
    let Some((first, blocks)) = blocks.split_first() else { return f32::NAN };
    let (mut lanes, mut has_nan) = (*first, first.map(|x| u32::from(x.is_nan())));
    for block in blocks {
        for ((lane, has_nan), &x) in lanes.iter_mut().zip(&mut has_nan).zip(block) {
            *lane = further(x, *lane);
            *has_nan |= u32::from(x.is_nan());
        }
    }
    let is_nan = has_nan.iter().fold(0, |any, one| any | one) != 0 || rest.iter().any(|x| x.is_nan());
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = further(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    if is_nan { f32::NAN } else { rest.iter().fold(lanes[0], |most, &x| further(x, most)) }
}

/// Folds rows of `f32` by `O`, the maximum or minimum, as [`fold_rows`] does, with one comparison for each element: the
/// order of +0 and -0 and the kind of NaN matter only for rows whose extreme is one of them, which are folded again.
#[inline(always)]
unsafe fn fold_rows_to_extremes<O: ElementFunction<(f32, f32), Out = f32>>(
    x: *const u8,
    row_bytes: isize,
    rows: usize,
    n: usize,
    start: *const u8,
    out: *mut u8,
) {
    let is_max = O::fast((0.0, 1.0)) == 1.0;
    for r in 0..rows {
        // SAFETY: the caller's: row r is readable, out has room, and there is a start.
        unsafe {
            let (at, to) = (x.offset(r as isize * row_bytes), out.cast::<f32>().add(r));
            let row = raw::slice(at.cast::<f32>(), n);
            let found =
                if n >= 128 { find_row_extreme::<64>(is_max, row) } else { find_row_extreme::<16>(is_max, row) };
            if found == 0.0 || found.is_nan() {
                fold_rows::<O, f32>(at, 0, 1, n, start, to.cast());
            } else {
                *to = O::fast((*start.cast::<f32>(), found));
            }
        }
    }
}

compiled! {
    pub(super) fastest_fold_rows_to_extremes<O: ElementFunction<(f32, f32), Out = f32>>()
        = fold_rows_to_extremes(x: *const u8, row: isize, count: usize, n: usize, start: *const u8, out: *mut u8)
}

/// The minimum or maximum of two 16-bit floats, found by comparing their bits as integers: sixteen of them fit a
/// vector.
pub(super) struct HalfMinMax<const MAX: bool>;

/// Implements [`HalfMinMax`] for 16-bit float types, given the bit that makes their NaN quiet.
macro_rules! extreme {
    ($($T:ident quiet $quiet:literal),*) => {$(
        impl<const MAX: bool> ElementFunction<($T, $T)> for HalfMinMax<MAX> {
            type Out = $T;
            fn reference(args: ($T, $T)) -> $T {
                Self::fast(args)
            }
            #[inline(always)]
            fn fast((a, b): ($T, $T)) -> $T {
                const INFINITY: u16 = $T::INFINITY.to_bits();
                // Integers in the order of the floats, with -0 below +0; the function is its own inverse.
                let key = |bits: u16| bits ^ ((bits as i16 >> 15) as u16 & 0x7fff);
                let [x, y] = [key(a.to_bits()) as i16, key(b.to_bits()) as i16];
                let bits = key(if MAX { x.max(y) } else { x.min(y) } as u16);
                let or_nan = |bits: u16, of: u16| if of & 0x7fff > INFINITY { of | $quiet } else { bits };
                $T::from_bits(or_nan(or_nan(bits, b.to_bits()), a.to_bits()))
            }
        }
    )*};
}
extreme!(f16 quiet 0x200, bf16 quiet 0x40);

#[cfg(test)]
mod tests {
    use super::super::fold_functions;
    use super::*;
    use pallas_ir::dtype::Half;
    use pallas_ir::scalar::{Maximum, Minimum};
    use pallas_ir::{DType, Elem, ScalarOp};

    /// Extremes of 16-bit floats by their bits are those of the floats: of all kinds of numbers, signs of zeros too.
    #[test]
    fn extremes_by_bits_are_those_of_floats() {
        fn check<T: Elem + Half, O: ElementFunction<(T, T), Out = T>, X: ElementFunction<(T, T), Out = T>>(
            of: impl Fn(u16) -> T,
            to: impl Fn(T) -> u16,
        ) {
            let kinds = [
                0, 1, 0x3ff, 0x400, 0x3c00, 0x7bff, 0x7c00, 0x7c01, 0x7e00, 0x80, 0x7f, 0x3f80, 0x7f7f, 0x7f80, 0x7f81,
                0x7fc0,
            ];
            let all: Vec<u16> = kinds.into_iter().flat_map(|bits| [bits, bits | 0x8000]).collect();
            for (&a, &b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
                let [found, want] = [X::fast((of(a), of(b))), O::reference((of(a), of(b)))];
                let same = to(found) == to(want) || found.wide().is_nan() && want.wide().is_nan();
                assert!(same, "{a:x} and {b:x}: {:x}, the reference {:x}", to(found), to(want));
            }
        }
        check::<f16, Minimum, HalfMinMax<false>>(f16::from_bits, f16::to_bits);
        check::<f16, Maximum, HalfMinMax<true>>(f16::from_bits, f16::to_bits);
        check::<bf16, Minimum, HalfMinMax<false>>(bf16::from_bits, bf16::to_bits);
        check::<bf16, Maximum, HalfMinMax<true>>(bf16::from_bits, bf16::to_bits);
    }

    /// Extremes of rows are those of the elements one after the other, also of NaN, infinities and zeros of both signs.
    #[test]
    fn extremes_of_rows_are_those_of_elements() {
        let special = [0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.5, -1.5];
        let mut state = 1u32;
        let mut below = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % n
        };
        for turn in 0..4000 {
            let n = [0, 1, 5, 15, 16, 17, 40, 64, 100, 127, 128, 200][below(12) as usize];
            let scale = [0.0, -0.0, 1.0, -1.0][below(4) as usize];
            let mut x: Vec<f32> = (0..2 * n).map(|_| below(1000) as f32 * scale).collect();
            for _ in 0..if x.is_empty() { 0 } else { below(4) } {
                let at = below(2 * n) as usize;
                x[at] = special[below(8) as usize];
            }
            for op in [ScalarOp::Maximum, ScalarOp::Minimum] {
                let start = if op == ScalarOp::Maximum { f32::NEG_INFINITY } else { f32::INFINITY };
                let (mut found, start_at) = ([0.0f32; 2], (&raw const start).cast());
                let rows = fold_functions(op, DType::F32).rows;
                // SAFETY: there are two rows of n elements, and room for two results.
                unsafe { rows(x.as_ptr().cast(), 4 * n as isize, 2, n as usize, start_at, found.as_mut_ptr().cast()) };
                for (row, found) in found.iter().enumerate() {
                    let row = &x[row * n as usize..][..n as usize];
                    let of = |pair| {
                        if op == ScalarOp::Maximum { Maximum::reference(pair) } else { Minimum::reference(pair) }
                    };
                    let want = row.iter().fold(start, |y, &x| of((y, x)));
                    let same = found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan();
                    assert!(same, "turn {turn}, {op:?} of {row:?}: {found}, not {want}");
                }
            }
        }
    }
}

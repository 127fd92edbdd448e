//! Conversions of strips between element types, and of bytes from outside to `bool`.
//!
//! Element types are converted as by Rust's `as`: floats saturate when cast to integers, a cast to `bool` is `x != 0`.
//! Bytes of bool arrays may be neither 0 nor 1: users write them, and uninitialised memory holds any.
#![warn(clippy::wildcard_enum_match_arm)]
use super::strips::{StripFn, compiled, slice, slice_mut, typed};
use half::{bf16, f16};
use pallas_ir::dtype::Half;
use pallas_ir::{DType, Elem, Literal, Slice, SliceMut};

/// An element type to which elements of type `S` are converted.
trait ConvertFrom<S>: Elem {
    fn from(x: S) -> Self;
}

/// Implements [`ConvertFrom`] for pairs of element types.
macro_rules! conversions {
    ($($from:tt => $to:tt |$x:ident| $make:expr;)*) => { $(conversions! { @ $from $to |$x| $make })* };
    (@ [$($S:ty)*] $to:tt |$x:ident| $make:expr) => { $(conversions! { @@ $S, $to |$x| $make })* };
    (@@ $S:ty, [$($T:ty)*] |$x:ident| $make:expr) => {$(
        impl ConvertFrom<$S> for $T {
            #[inline(always)]
            fn from($x: $S) -> Self { $make }
        }
    )*};
}
conversions! {
    [f32 f64 i8 u8 i16 u16 i32 u32 i64 u64] => [f32 f64 i8 u8 i16 u16 i32 u32 i64 u64] |x| x as _;
    [f32 f64] => [bool] |x| x != 0.0;
    [i8 u8 i16 u16 i32 u32 i64 u64] => [bool] |x| x != 0;
    [f16 bf16] => [f32 f64 i8 u8 i16 u16 i32 u32 i64 u64] |x| Half::wide(x) as _;
    [f16 bf16] => [bool] |x| Half::wide(x) != 0.0;
    [f32] => [f16 bf16] |x| Half::round(x);
    // Converted from f64, so that the result is rounded only once.
    [f64 i8 u8 i16 u16 i32 u32 i64 u64] => [f16 bf16] |x| Self::from_f64(x as f64);
    [f16] => [bf16] |x| Half::round(Half::wide(x));
    [bf16] => [f16] |x| Half::round(Half::wide(x));
    [bool] => [f32 f64 i8 u8 i16 u16 i32 u32 i64 u64] |x| if x { 1 as _ } else { 0 as _ };
    [bool] => [f16 bf16] |x| Half::round(if x { 1.0 } else { 0.0 });
    [f16] => [f16] |x| x;
    [bf16] => [bf16] |x| x;
    [bool] => [bool] |x| x;
}

#[inline(always)]
unsafe fn cast_strip<S: Elem, T: ConvertFrom<S>>(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) {
    let (x, y) = (&S::of(args[0])[..n], &mut T::of_mut(out)[..n]);
    for (y, &x) in y.iter_mut().zip(x) {
        *y = T::from(x);
    }
}
compiled! { fastest_cast<S: Elem, T: ConvertFrom<S>>() = cast_strip(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) }

/// Returns the loop that converts strips of the type `from` to `to`.
pub(super) fn cast_strip_fn(from: DType, to: DType) -> StripFn {
    typed!(from, S => typed!(to, T => fastest_cast::<S, T>()))
}

/// Converts elements in memory from one type to another.
///
/// # Safety
/// Both hold `n` elements of their types, aligned, and do not overlap.
pub(super) unsafe fn convert_elements([from, to]: [DType; 2], source: *const u8, target: *mut u8, n: usize) {
    // SAFETY: the caller's.
    unsafe { cast_strip_fn(from, to)(&[slice(from, source, n)], slice_mut(to, target, n), n) };
}

/// Returns the loop that reinterprets the bits of elements as another type of the same size, other than `bool`.
pub(super) fn bitcast_strip_fn(from: DType, to: DType) -> StripFn {
    debug_assert_eq!(from.bytes(), to.bytes());
    unsafe fn copy_bits<S: Elem, T: Elem>(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) {
        let (from, to) = (&S::of(args[0])[..n], &mut T::of_mut(out)[..n]);
        // SAFETY: source and destination elements have equal size, and a strip that is written overlaps no other.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to.as_mut_ptr(), n) };
    }
    typed!(from, S => typed!(to, T => copy_bits::<S, T>))
}

/// Converts each byte of a bool array to 0 or 1.
pub(super) fn normalize_bools(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = (*byte != 0).into());
}

/// Converts a `bool` from outside to 0 or 1; returns other literals as they are.
pub(super) fn normalize_bool(x: Literal) -> Literal {
    if x.dtype == DType::Bool { Literal::bool(x.bits != 0) } else { x }
}

//! Conversions between element types as strips: Rust's `as`; floats saturate into integers, `bool` is `x != 0`.
#![warn(clippy::wildcard_enum_match_arm)]
use super::strips::Strip;
use half::{bf16, f16};
use pallas_ir::dtype::Half;
use pallas_ir::{DType, Elem, Slice, SliceMut};

/// The element types that others convert from and to.
trait From<S> {
    fn from(x: S) -> Self;
}

macro_rules! numbers {
    ($($S:ty => [$($T:ty)*];)*) => {$($(
        impl From<$S> for $T {
            #[inline(always)]
            fn from(x: $S) -> Self { x as $T }
        }
    )*)*};
}
macro_rules! all_numbers {
    ($($S:ty)*) => { numbers! { $($S => [f32 f64 i8 u8 i16 u16 i32 u32 i64 u64];)* } };
}
all_numbers! { f32 f64 i8 u8 i16 u16 i32 u32 i64 u64 }

macro_rules! others {
    ($($T:ty, $zero:expr, $one:expr;)*) => {$(
        impl From<$T> for bool {
            #[inline(always)]
            fn from(x: $T) -> Self { x != $zero }
        }
        impl From<bool> for $T {
            #[inline(always)]
            fn from(x: bool) -> Self { if x { $one } else { $zero } }
        }
        impl From<f16> for $T {
            #[inline(always)]
            fn from(x: f16) -> Self { Half::wide(x) as $T }
        }
        impl From<bf16> for $T {
            #[inline(always)]
            fn from(x: bf16) -> Self { Half::wide(x) as $T }
        }
    )*};
}
others! {
    f32, 0.0, 1.0; f64, 0.0, 1.0; i8, 0, 1; u8, 0, 1; i16, 0, 1; u16, 0, 1; i32, 0, 1; u32, 0, 1; i64, 0, 1; u64, 0, 1;
}

macro_rules! to_half {
    ($($H:ty),*) => {$(
        impl From<f32> for $H {
            #[inline(always)]
            fn from(x: f32) -> Self { Half::round(x) }
        }
        impl From<bool> for $H {
            #[inline(always)]
            fn from(x: bool) -> Self { Half::round(if x { 1.0 } else { 0.0 }) }
        }
        impl From<$H> for bool {
            #[inline(always)]
            fn from(x: $H) -> Self { Half::wide(x) != 0.0 }
        }
        to_half! { @ $H, f64 i8 u8 i16 u16 i32 u32 i64 u64 }
    )*};
    (@ $H:ty, $($S:ty)*) => {$(
        impl From<$S> for $H {
            // Rounded once, from a double.
            #[inline(always)]
            fn from(x: $S) -> Self { <$H>::from_f64(x as f64) }
        }
    )*};
}
to_half! { f16, bf16 }

impl From<f16> for f16 {
    fn from(x: f16) -> Self {
        x
    }
}
impl From<bf16> for bf16 {
    fn from(x: bf16) -> Self {
        x
    }
}
impl From<f16> for bf16 {
    #[inline(always)]
    fn from(x: f16) -> Self {
        Half::round(Half::wide(x))
    }
}
impl From<bf16> for f16 {
    #[inline(always)]
    fn from(x: bf16) -> Self {
        Half::round(Half::wide(x))
    }
}
impl From<bool> for bool {
    fn from(x: bool) -> Self {
        x
    }
}

#[inline(always)]
fn body<S: Elem, T: Elem + From<S>>(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) {
    let (x, y) = (&S::of(args[0])[..n], &mut T::of_mut(out)[..n]);
    for (y, &x) in y.iter_mut().zip(x) {
        *y = T::from(x);
    }
}
fn portable<S: Elem, T: Elem + From<S>>(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) {
    body::<S, T>(args, out, n);
}
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2_body<S: Elem, T: Elem + From<S>>(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) {
    body::<S, T>(args, out, n);
}
#[cfg(target_arch = "x86_64")]
fn avx2<S: Elem, T: Elem + From<S>>(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) {
    // SAFETY: `pick` hands this function out only where `has_avx2` has found the features.
    unsafe { avx2_body::<S, T>(args, out, n) }
}
fn pick<S: Elem, T: Elem + From<S>>() -> Strip {
    #[cfg(target_arch = "x86_64")]
    if super::strips::has_avx2() {
        return avx2::<S, T>;
    }
    portable::<S, T>
}

/// The conversion of strips of `from` to strips of `to`.
pub(super) fn cast(from: DType, to: DType) -> Strip {
    macro_rules! from {
        ($($V:ident $S:ty),*) => { match from { $(DType::$V => target::<$S>(to)),* } };
    }
    from!(F32 f32, F64 f64, F16 f16, Bf16 bf16, I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64, Bool bool)
}

macro_rules! target {
    ($($V:ident $T:ty),*) => {
        fn target<S: Elem>(to: DType) -> Strip
        where
            $($T: From<S>),*
        {
            match to { $(DType::$V => pick::<S, $T>()),* }
        }
    };
}
target!(F32 f32, F64 f64, F16 f16, Bf16 bf16, I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64, Bool bool);

/// Bits read as another type of the same size; never `bool`.
pub(super) fn bitcast(from: DType, to: DType) -> Strip {
    debug_assert_eq!(from.bytes(), to.bytes());
    fn copy<const BYTES: usize>(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) {
        let (from, to) = (address(args[0]), address_mut(out));
        // SAFETY: both strips have n elements of this size, and a strip that is written overlaps no other.
        unsafe { std::ptr::copy_nonoverlapping(from, to, n * BYTES) };
    }
    match from.bytes() {
        1 => copy::<1>,
        2 => copy::<2>,
        4 => copy::<4>,
        _ => copy::<8>,
    }
}

macro_rules! addresses {
    ($($V:ident),*) => {
        fn address(s: Slice<'_>) -> *const u8 {
            match s { $(Slice::$V(s) => s.as_ptr().cast()),* }
        }
        fn address_mut(s: SliceMut<'_>) -> *mut u8 {
            match s { $(SliceMut::$V(s) => s.as_mut_ptr().cast()),* }
        }
    };
}
addresses!(F32, F64, F16, Bf16, I8, U8, I16, U16, I32, U32, I64, U64, Bool);

//! Elementwise loops, compiled for each operation and element type, and for this machine's vectors.
use crate::raw;
use pallas_ir::{DType, Elem, ElementFunction, ElementOperands, OpVisitor, ScalarOp, Slice, SliceMut};

/// Maximum elements of a strip, the run of adjacent elements that an elementwise loop computes at a time: so few that
/// the operands and results of a chain stay in the first-level cache.
pub(super) const STRIP_ELEMENTS: usize = 1024;

/// A function that computes `n` elements of a result from the operands' strips.
///
/// # Safety
/// The processor is the one that the function was selected for.
pub(super) type StripFn = unsafe fn(&[Slice<'_>], SliceMut<'_>, usize);

/// Defines a function `$pick` that returns the loop `$body`, compiled for AVX2 where the processor supports it.
macro_rules! compiled {
    ($(#[$doc:meta])* $visible:vis $pick:ident<$($G:ident: $bound:path),*>() = $body:ident($($arg:ident: $ty:ty),*)) => {
        $(#[$doc])*
        $visible fn $pick<$($G: $bound),*>() -> unsafe fn($($ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                unsafe fn avx2<$($G: $bound),*>($($arg: $ty),*) {
                    // SAFETY: the caller's.
                    unsafe { $body::<$($G),*>($($arg),*) }
                }
                if $crate::cpu::strips::has_avx2() {
                    return avx2::<$($G),*>;
                }
            }
            $body::<$($G),*>
        }
    };
}
pub(super) use compiled;

/// Expands `$body` with `$T` as the Rust type of the element type `$dtype`.
macro_rules! typed {
    ($dtype:expr, $T:ident => $body:expr) => {
        typed!(@ $dtype, $T => $body; F32 f32, F64 f64, F16 half::f16, Bf16 half::bf16, I8 i8, U8 u8, I16 i16, U16 u16,
            I32 i32, U32 u32, I64 i64, U64 u64, Bool bool)
    };
    (@ $dtype:expr, $T:ident => $body:expr; $($V:ident $R:ty),*) => {
        match $dtype { $(DType::$V => { type $T = $R; $body })* }
    };
}
pub(super) use typed;

/// Expands `$body` with `$T` as the unsigned integer of `$bytes` bytes.
macro_rules! sized {
    ($bytes:expr, $T:ident => $body:expr) => { sized!(@ $bytes, $T => $body; 1 u8, 2 u16, 4 u32, _ u64) };
    (@ $bytes:expr, $T:ident => $body:expr; $($n:tt $R:ty),*) => { match $bytes { $($n => { type $T = $R; $body })* } };
}
pub(super) use sized;

#[inline(always)]
unsafe fn apply_elementwise<O: ElementFunction<A>, A: ElementOperands>(
    args: &[Slice<'_>],
    out: SliceMut<'_>,
    n: usize,
) {
    let (args, out) = (A::strips(args, n), &mut <O::Out as Elem>::of_mut(out)[..n]);
    for (i, y) in out.iter_mut().enumerate() {
        *y = O::fast(A::at(args, i));
    }
}
compiled! { fastest_elementwise<O: ElementFunction<A>, A: ElementOperands>() = apply_elementwise(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) }

/// Returns true if this machine has AVX2 with fused multiply-add.
pub(super) fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The visitor that selects the fastest loop of an operation.
struct StripFnSelector;
impl OpVisitor for StripFnSelector {
    type Out = StripFn;
    fn visit<O: ElementFunction<A>, A: ElementOperands>(self) -> StripFn {
        fastest_elementwise::<O, A>()
    }
}

/// Returns this machine's fastest loop for a scalar operation; `dtype` is the type of the operands whose type the
/// operation leaves open.
pub(super) fn scalar_strip_fn(op: ScalarOp, dtype: DType) -> StripFn {
    op.visit(dtype, StripFnSelector).expect("types were inferred")
}

/// Expands to a slice of the element type `$dtype`, made by the function `$from`.
macro_rules! cut {
    ($dtype:expr, $Strip:ident, $from:path, $p:expr, $n:expr) => {
        cut!(@ $dtype, $Strip, $from, $p, $n; F32 f32, F64 f64, F16 half::f16, Bf16 half::bf16, I8 i8, U8 u8, I16 i16,
            U16 u16, I32 i32, U32 u32, I64 i64, U64 u64, Bool bool)
    };
    (@ $dtype:expr, $Strip:ident, $from:path, $p:expr, $n:expr; $($V:ident $T:ty),*) => {
        match $dtype { $(DType::$V => $Strip::$V($from($p.cast::<$T>(), $n))),* }
    };
}

/// Returns `n` elements at `p` as a typed slice.
///
/// # Safety
/// `p` points at `n` initialised elements of `dtype`, aligned, that nobody writes during `'a`.
pub(super) unsafe fn slice<'a>(dtype: DType, p: *const u8, n: usize) -> Slice<'a> {
    // SAFETY: the caller's.
    unsafe { cut!(dtype, Slice, raw::slice, p, n) }
}

/// Returns `n` elements at `p` as a typed slice to be written.
///
/// # Safety
/// `p` points at `n` elements of `dtype`, aligned, that nobody else touches during `'a`.
pub(super) unsafe fn slice_mut<'a>(dtype: DType, p: *mut u8, n: usize) -> SliceMut<'a> {
    // SAFETY: the caller's.
    unsafe { cut!(dtype, SliceMut, raw::slice_mut, p, n) }
}

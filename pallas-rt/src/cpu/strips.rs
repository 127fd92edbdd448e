//! Elementwise loops, monomorphised per operation and element type, compiled for each vector width this machine may have.
use pallas_ir::{Args, DType, Elem, Lane, ScalarOp, Slice, SliceMut, Visit};

/// Computes `n` elements of each operand's strip.
pub(super) type Strip = fn(&[Slice<'_>], SliceMut<'_>, usize);

#[inline(always)]
fn body<O: Lane<A>, A: Args>(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) {
    let (args, out) = (A::strips(args, n), &mut <O::Out as Elem>::of_mut(out)[..n]);
    for (i, y) in out.iter_mut().enumerate() {
        *y = O::fast(A::at(args, i));
    }
}
fn portable<O: Lane<A>, A: Args>(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) {
    body::<O, A>(args, out, n);
}
macro_rules! wide {
    ($inner:ident $outer:ident $features:literal) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        fn $inner<O: Lane<A>, A: Args>(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) {
            body::<O, A>(args, out, n);
        }
        #[cfg(target_arch = "x86_64")]
        fn $outer<O: Lane<A>, A: Args>(args: &[Slice<'_>], out: SliceMut<'_>, n: usize) {
            // SAFETY: `Fastest` hands this function out only where `level` has found the features.
            unsafe { $inner::<O, A>(args, out, n) }
        }
    };
}
wide! { avx2_body avx2 "avx2,fma" }
wide! { avx512_body avx512 "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma" }

/// The vector instructions this machine has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Level {
    /// Whatever the target guarantees.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, VL, BW, DQ.
    Avx512,
}

/// Detects the vector instructions, once.
pub(super) fn level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        use std::sync::LazyLock;
        static LEVEL: LazyLock<Level> = LazyLock::new(|| {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
            {
                Level::Avx512
            } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                Level::Avx2
            } else {
                Level::Portable
            }
        });
        *LEVEL
    }
    #[cfg(not(target_arch = "x86_64"))]
    Level::Portable
}

struct Fastest;
impl Visit for Fastest {
    type Out = Strip;
    fn visit<O: Lane<A>, A: Args>(self) -> Strip {
        #[cfg(target_arch = "x86_64")]
        match level() {
            Level::Avx512 => return avx512::<O, A>,
            Level::Avx2 => return avx2::<O, A>,
            Level::Portable => {}
        }
        portable::<O, A>
    }
}

/// The fastest loop for this machine; `dtype` is the type of the row's open operands, and in its class.
pub(super) fn strip(op: ScalarOp, dtype: DType) -> Strip {
    op.visit(dtype, Fastest).expect("types were inferred")
}

/// `n` elements at `p` as a strip.
///
/// # Safety
/// `p` points at `n` initialised elements of `dtype`, aligned, that nobody writes during `'a`.
pub(super) unsafe fn slice<'a>(dtype: DType, p: *const u8, n: usize) -> Slice<'a> {
    macro_rules! cut {
        ($($V:ident $T:ty),*) => {
            // SAFETY: the caller's.
            match dtype { $(DType::$V => Slice::$V(unsafe { std::slice::from_raw_parts(p.cast::<$T>(), n) })),* }
        };
    }
    cut!(F32 f32, F64 f64, F16 half::f16, Bf16 half::bf16, I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64, Bool bool)
}

/// `n` elements at `p` as a strip to be written.
///
/// # Safety
/// `p` points at `n` elements of `dtype`, aligned, that nobody else touches during `'a`.
pub(super) unsafe fn slice_mut<'a>(dtype: DType, p: *mut u8, n: usize) -> SliceMut<'a> {
    macro_rules! cut {
        ($($V:ident $T:ty),*) => {
            // SAFETY: the caller's.
            match dtype { $(DType::$V => SliceMut::$V(unsafe { std::slice::from_raw_parts_mut(p.cast::<$T>(), n) })),* }
        };
    }
    cut!(F32 f32, F64 f64, F16 half::f16, Bf16 half::bf16, I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64, Bool bool)
}

/// Sum, largest or smallest element of a row of f32.
pub(super) fn fold_f32(op: ScalarOp, row: &[f32]) -> Option<f32> {
    /// Sixteen running results, so that the loop is vectors and the sum does not wait for itself.
    #[inline(always)]
    fn run(row: &[f32], start: f32, f: impl Fn(f32, f32) -> f32 + Copy) -> f32 {
        let mut lanes = [start; 16];
        let (blocks, rest) = row.as_chunks::<16>();
        for block in blocks {
            for (lane, x) in lanes.iter_mut().zip(block) {
                *lane = f(*lane, *x);
            }
        }
        let tail = rest.iter().fold(start, |s, x| f(s, *x));
        let mut width = 8;
        while width > 0 {
            for i in 0..width {
                lanes[i] = f(lanes[i], lanes[i + width]);
            }
            width /= 2;
        }
        f(lanes[0], tail)
    }
    // NaN stays: `a > b` is false for a NaN on either side.
    #[inline(always)]
    fn larger(a: f32, b: f32) -> f32 {
        if a >= b || a.is_nan() { a } else { b }
    }
    #[inline(always)]
    fn smaller(a: f32, b: f32) -> f32 {
        if a <= b || a.is_nan() { a } else { b }
    }
    #[inline(always)]
    fn choose(op: ScalarOp, row: &[f32]) -> Option<f32> {
        match op {
            ScalarOp::Add => Some(run(row, 0.0, |a, b| a + b)),
            ScalarOp::Maximum => Some(run(row, f32::NEG_INFINITY, larger)),
            ScalarOp::Minimum => Some(run(row, f32::INFINITY, smaller)),
            _ => None,
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
        fn avx512(op: ScalarOp, row: &[f32]) -> Option<f32> {
            choose(op, row)
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(op: ScalarOp, row: &[f32]) -> Option<f32> {
            choose(op, row)
        }
        match level() {
            // SAFETY: `level` has found the features.
            Level::Avx512 => return unsafe { avx512(op, row) },
            // SAFETY: as above.
            Level::Avx2 => return unsafe { avx2(op, row) },
            Level::Portable => {}
        }
    }
    choose(op, row)
}

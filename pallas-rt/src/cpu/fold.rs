//! Reductions of rows, monomorphised per monoid and element type.
use pallas_ir::scalar::VisitMonoid;
use pallas_ir::{DType, Elem, Lane, ScalarOp};

/// The loops of one monoid on one element type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold {
    /// Folds each of `rows` rows of `n` adjacent elements: `out[r] = fold(start, x[r])`. Rows are `row` bytes apart.
    ///
    /// # Safety
    /// The rows are readable, `out` has `rows` elements and overlaps them not; `start` is one element.
    pub(super) rows: unsafe fn(x: *const u8, row: isize, rows: usize, n: usize, start: *const u8, out: *mut u8),
    /// `out[i] = out[i] ∘ x[i]` for `n` adjacent elements.
    ///
    /// # Safety
    /// Both have `n` elements and do not overlap.
    pub(super) into: unsafe fn(x: *const u8, n: usize, out: *mut u8),
    /// Inclusive running fold of `n` elements at strides (in elements).
    ///
    /// # Safety
    /// Both have `n` elements at their strides.
    pub(super) scan: unsafe fn(x: *const u8, x_stride: isize, out: *mut u8, out_stride: isize, n: usize),
}

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
unsafe fn rows_body<O: Lane<(T, T), Out = T>, T: Elem>(
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
            let x = std::slice::from_raw_parts(x.offset(r as isize * row_bytes).cast::<T>(), n);
            *out.cast::<T>().add(r) = if n >= 128 { row::<O, T, 64>(start, x) } else { row::<O, T, 16>(start, x) };
        }
    }
}

#[inline(always)]
unsafe fn into_body<O: Lane<(T, T), Out = T>, T: Elem>(x: *const u8, n: usize, out: *mut u8) {
    // SAFETY: the caller's.
    let (x, out) =
        unsafe { (std::slice::from_raw_parts(x.cast::<T>(), n), std::slice::from_raw_parts_mut(out.cast::<T>(), n)) };
    for (y, &x) in out.iter_mut().zip(x) {
        *y = O::fast((*y, x));
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

/// A loop, and the same compiled for AVX2.
macro_rules! compiled {
    ($body:ident $portable:ident $avx2:ident ($($arg:ident: $ty:ty),*)) => {
        unsafe fn $portable<O: Lane<(T, T), Out = T>, T: Elem>($($arg: $ty),*) {
            // SAFETY: the caller's.
            unsafe { $body::<O, T>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn $avx2<O: Lane<(T, T), Out = T>, T: Elem>($($arg: $ty),*) {
            // SAFETY: the caller's; `pick` has found the features.
            unsafe { $body::<O, T>($($arg),*) }
        }
    };
}
compiled! { rows_body rows_portable rows_avx2 (x: *const u8, row: isize, rows: usize, n: usize, start: *const u8, out: *mut u8) }
compiled! { into_body into_portable into_avx2 (x: *const u8, n: usize, out: *mut u8) }

fn pick<O: Lane<(T, T), Out = T>, T: Elem>() -> Fold {
    #[cfg(target_arch = "x86_64")]
    if super::strips::has_avx2() {
        return Fold { rows: rows_avx2::<O, T>, into: into_avx2::<O, T>, scan: scan::<O, T> };
    }
    Fold { rows: rows_portable::<O, T>, into: into_portable::<O, T>, scan: scan::<O, T> }
}

/// The loops of a monoid.
pub(super) fn fold(op: ScalarOp, dtype: DType) -> Fold {
    struct Pick;
    impl VisitMonoid for Pick {
        type Out = Fold;
        fn visit<O: Lane<(T, T), Out = T>, T: Elem>(self) -> Fold {
            pick::<O, T>()
        }
    }
    op.visit_monoid(dtype, Pick).expect("the shape rule admits monoids only")
}

/// Position of the extreme of `n` elements at a stride (in elements): the first of ties; the first NaN wins.
///
/// # Safety
/// `x` has `n` elements of `dtype` at that stride.
pub(super) unsafe fn extreme(dtype: DType, max: bool, x: *const u8, stride: isize, n: usize) -> i32 {
    macro_rules! each {
        ($($V:ident $T:ty, |$x:ident| $nan:expr;)*) => {
            match dtype {
                // SAFETY: the caller's.
                $(DType::$V => unsafe { extreme_of::<$T>(max, x.cast(), stride, n, |$x| $nan) },)*
            }
        };
    }
    each! {
        F32 f32, |x| x.is_nan(); F64 f64, |x| x.is_nan(); F16 half::f16, |x| x.is_nan(); Bf16 half::bf16, |x| x.is_nan();
        I8 i8, |_x| false; U8 u8, |_x| false; I16 i16, |_x| false; U16 u16, |_x| false; I32 i32, |_x| false;
        U32 u32, |_x| false; I64 i64, |_x| false; U64 u64, |_x| false; Bool bool, |_x| false;
    }
}

unsafe fn extreme_of<T: Copy + PartialOrd>(
    max: bool,
    x: *const T,
    stride: isize,
    n: usize,
    nan: impl Fn(T) -> bool,
) -> i32 {
    // SAFETY: the caller's.
    let at = |i: usize| unsafe { *x.offset(i as isize * stride) };
    let mut best = 0;
    for i in 0..n {
        if nan(at(i)) {
            return i as i32;
        }
        if if max { at(i) > at(best) } else { at(i) < at(best) } {
            best = i;
        }
    }
    best as i32
}

//! The portable micro-kernel: arrays of sums that the compiler keeps in vector registers.
use super::{Kernel, Matrix};

/// What a product needs of an element type: integers wrap, booleans are or-ed products.
pub(crate) trait Number: Copy {
    /// The empty sum.
    const ZERO: Self;
    /// `sum + a * b`.
    fn step(sum: Self, a: Self, b: Self) -> Self;
    /// `a + b`.
    fn add(a: Self, b: Self) -> Self;
}

macro_rules! number {
    ($($T:ty, $zero:expr, |$s:ident, $a:ident, $b:ident| $step:expr, $add:expr;)*) => {$(
        impl Number for $T {
            const ZERO: Self = $zero;
            #[inline(always)]
            fn step($s: Self, $a: Self, $b: Self) -> Self { $step }
            #[inline(always)]
            fn add($s: Self, $a: Self) -> Self { $add }
        }
    )*};
}
number! {
    f32, 0.0, |s, a, b| s + a * b, s + a;
    f64, 0.0, |s, a, b| s + a * b, s + a;
    i8, 0, |s, a, b| s.wrapping_add(a.wrapping_mul(b)), s.wrapping_add(a);
    u8, 0, |s, a, b| s.wrapping_add(a.wrapping_mul(b)), s.wrapping_add(a);
    i16, 0, |s, a, b| s.wrapping_add(a.wrapping_mul(b)), s.wrapping_add(a);
    u16, 0, |s, a, b| s.wrapping_add(a.wrapping_mul(b)), s.wrapping_add(a);
    i32, 0, |s, a, b| s.wrapping_add(a.wrapping_mul(b)), s.wrapping_add(a);
    u32, 0, |s, a, b| s.wrapping_add(a.wrapping_mul(b)), s.wrapping_add(a);
    i64, 0, |s, a, b| s.wrapping_add(a.wrapping_mul(b)), s.wrapping_add(a);
    u64, 0, |s, a, b| s.wrapping_add(a.wrapping_mul(b)), s.wrapping_add(a);
    bool, false, |s, a, b| s | (a & b), s | a;
}

const MR: usize = 4;
const NR: usize = 16;

/// For any machine.
pub(super) fn portable<T: Number>() -> Kernel<T> {
    Kernel { name: "portable", mr: MR, nr: NR, run: run::<T> }
}

/// The same source, compiled for this machine's vectors.
pub(super) fn fastest<T: Number>() -> Kernel<T> {
    #[cfg(target_arch = "x86_64")]
    if super::x86::has_avx2() {
        return Kernel { name: "avx2, compiled", mr: MR, nr: NR, run: run_avx2::<T> };
    }
    portable::<T>()
}

/// # Safety
/// See [`super::MicroFn`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<T: Number>(
    r: usize,
    k: usize,
    a: Matrix<T>,
    b: *const T,
    bs: isize,
    c: *mut T,
    cs: isize,
    add: bool,
) {
    // SAFETY: the caller's.
    unsafe { rows::<T>(r, k, a, b, bs, c, cs, add) }
}

/// # Safety
/// See [`super::MicroFn`].
unsafe fn run<T: Number>(r: usize, k: usize, a: Matrix<T>, b: *const T, bs: isize, c: *mut T, cs: isize, add: bool) {
    // SAFETY: the caller's.
    unsafe { rows::<T>(r, k, a, b, bs, c, cs, add) }
}

/// # Safety
/// See [`super::MicroFn`].
#[inline(always)]
unsafe fn rows<T: Number>(r: usize, k: usize, a: Matrix<T>, b: *const T, bs: isize, c: *mut T, cs: isize, add: bool) {
    // SAFETY: the caller's.
    unsafe {
        match r {
            1 => fixed::<T, 1>(k, a, b, bs, c, cs, add),
            2 => fixed::<T, 2>(k, a, b, bs, c, cs, add),
            3 => fixed::<T, 3>(k, a, b, bs, c, cs, add),
            _ => fixed::<T, 4>(k, a, b, bs, c, cs, add),
        }
    }
}

/// # Safety
/// See [`super::MicroFn`].
#[inline(always)]
unsafe fn fixed<T: Number, const R: usize>(
    k: usize,
    a: Matrix<T>,
    b: *const T,
    bs: isize,
    c: *mut T,
    cs: isize,
    add: bool,
) {
    let mut sums = [[T::ZERO; NR]; R];
    // SAFETY: the caller's: every offset is inside of the extents.
    unsafe {
        for p in 0..k as isize {
            let row = &*b.offset(p * bs).cast::<[T; NR]>();
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = *a.start.offset(i as isize * a.row + p * a.col);
                for (s, &y) in sums.iter_mut().zip(row) {
                    *s = T::step(*s, x, y);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let row = &mut *c.offset(i as isize * cs).cast::<[T; NR]>();
            for (c, &s) in row.iter_mut().zip(sums) {
                *c = if add { T::add(*c, s) } else { s };
            }
        }
    }
}

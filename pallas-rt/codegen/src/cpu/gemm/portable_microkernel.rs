//! The portable micro-kernel: arrays of sums that the compiler keeps in vector registers.
use super::super::strips::compiled;
use super::{Matrix, MicroKernel, OutputMatrix};

/// Arithmetic of products of an element type, whose default value is an empty sum: integers wrap around; for booleans
/// the sum is `or` and the product `and`.
pub(crate) trait Number: Copy + Default + PartialEq {
    /// Returns `sum + a * b`.
    fn multiply_add(sum: Self, a: Self, b: Self) -> Self;
    /// Returns `a + b`.
    fn add(a: Self, b: Self) -> Self;
}

/// Implements [`Number`] for types, from expressions of a step and of a sum.
macro_rules! number {
    ($($($T:ty)*: |$s:ident, $a:ident, $b:ident| $step:expr, $add:expr;)*) => {$($(
        impl Number for $T {
            #[inline(always)]
            fn multiply_add($s: Self, $a: Self, $b: Self) -> Self { $step }
            #[inline(always)]
            fn add($s: Self, $a: Self) -> Self { $add }
        }
    )*)*};
}
number! {
    f32 f64: |s, a, b| s + a * b, s + a;
    i8 u8 i16 u16 i32 u32 i64 u64: |s, a, b| s.wrapping_add(a.wrapping_mul(b)), s.wrapping_add(a);
    bool: |s, a, b| s | (a & b), s | a;
}

/// Maximum rows of C that one call of the portable kernel computes; `NR` is the number of columns of its panels.
const MR: usize = 4;
const NR: usize = 16;

/// Returns the kernel that runs on any machine.
pub(super) fn portable_kernel<T: Number>() -> MicroKernel<T> {
    MicroKernel { name: "portable", mr: MR, nr: NR, k_multiple: 1, run: compute_panel_rows::<T>, half: None }
}

/// Returns the portable kernel, compiled for this machine's vectors.
pub(crate) fn vectorized_kernel<T: Number>() -> MicroKernel<T> {
    MicroKernel { name: "compiled", run: fastest_compute_panel_rows::<T>(), ..portable_kernel() }
}

compiled! { fastest_compute_panel_rows<T: Number>() = compute_panel_rows(r: usize, k: usize, a: Matrix<T>, b: Matrix<T>, c: OutputMatrix<T>) }

/// Computes one to four rows of a panel of C, by a function for that number.
///
/// # Safety
/// See [`super::MicroKernelFn`].
#[inline(always)]
unsafe fn compute_panel_rows<T: Number>(rows: usize, k: usize, a: Matrix<T>, b: Matrix<T>, c: OutputMatrix<T>) {
    // SAFETY: the caller's.
    unsafe {
        match rows {
            1 => compute_fixed_rows::<T, 1>(k, a, b, c),
            2 => compute_fixed_rows::<T, 2>(k, a, b, c),
            3 => compute_fixed_rows::<T, 3>(k, a, b, c),
            _ => compute_fixed_rows::<T, 4>(k, a, b, c),
        }
    }
}

/// Computes `R` rows of a panel of C.
///
/// # Safety
/// See [`super::MicroKernelFn`].
#[inline(always)]
unsafe fn compute_fixed_rows<T: Number, const R: usize>(k: usize, a: Matrix<T>, b: Matrix<T>, c: OutputMatrix<T>) {
    let mut sums = [[T::default(); NR]; R];
    // SAFETY: the caller's: every offset is inside of the extents.
    unsafe {
        for p in 0..k {
            let row = &*b.start.offset(p as isize * b.row).cast::<[T; NR]>();
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = *a.submatrix_at(i, p).start;
                for (s, &y) in sums.iter_mut().zip(row) {
                    *s = T::multiply_add(*s, x, y);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let row = &mut *c.submatrix_at(i, 0).start.cast::<[T; NR]>();
            for (to, &s) in row.iter_mut().zip(sums) {
                *to = if c.add { T::add(*to, s) } else { s };
            }
        }
    }
}

//! Products of tiles: `C[m, n] (+)= A[m, k] · B[k, n]` over strided memory.
//!
//! ```text
//! for each block of KC along k                      a packed panel of B stays in the first level cache
//!     for each panel of NR columns of B             read in place where its columns are adjacent and its rows near
//!         for each MR rows of A                     broadcast in place: any strides; packed where rows are far
//!             micro-kernel: MR x NR sums in registers
//! ```
//!
//! The last, narrow panel is padded with zeros, and its sums go through a small buffer: the micro-kernels know whole
//! panels only. [`micro`] is the portable kernel for every element type, [`x86`] those for `f32` with AVX2 and AVX-512,
//! [`int8`] products of bytes, [`narrow`] those of a few rows.
#![allow(clippy::too_many_arguments, reason = "a product has this many")]
pub(crate) mod int8;
mod micro;
pub(crate) mod narrow;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use micro::Number;

use std::sync::OnceLock;

/// A matrix in memory: element (i, j) lies at `start + i * row + j * col`, counted in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<T> {
    /// Element (0, 0).
    pub(crate) start: *const T,
    /// Distance between rows.
    pub(crate) row: isize,
    /// Distance between columns.
    pub(crate) col: isize,
}

/// The extents of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extents {
    /// Rows of A and C.
    pub(crate) m: usize,
    /// Columns of B and C.
    pub(crate) n: usize,
    /// Columns of A, rows of B.
    pub(crate) k: usize,
}

/// `rows`, `k`, A with row and column stride, B with row stride, C with row stride, whether to add to C.
///
/// # Safety
/// A holds `rows` x `k` elements, B `k` whole panels' rows, C `rows` whole panels' rows; `rows` is at most the kernel's
/// `mr`; the processor has the kernel's features.
type MicroFn<T> = unsafe fn(usize, usize, Matrix<T>, *const T, isize, *mut T, isize, bool);

/// A micro-kernel and the shape of its panels.
#[derive(Clone, Copy)]
pub(crate) struct Kernel<T> {
    #[cfg_attr(not(test), allow(dead_code, reason = "tests name the kernel that failed"))]
    name: &'static str,
    mr: usize,
    nr: usize,
    run: MicroFn<T>,
}

/// Rows of B that one pass over C takes: a panel of 32 columns of `f32` is 32 KiB. Where the first level cache is no
/// larger, the panel comes from the second, fast enough: 99% of the peak on Zen 4 with B packed.
const KC: usize = 256;
/// Columns of B packed at a time.
const NC: usize = 512;
/// Rows of B further apart than this (in bytes) fall on few cache sets and pages: they are packed.
const FAR: usize = 1024;
/// Packing pays from so many rows of A on.
const WORTH: usize = 16;

/// Element types with their best kernel on this machine, chosen once.
pub(crate) trait Element: Number {
    /// The kernel.
    fn kernel() -> Kernel<Self>;
}

impl Element for f32 {
    fn kernel() -> Kernel<f32> {
        static CHOICE: OnceLock<Kernel<f32>> = OnceLock::new();
        *CHOICE.get_or_init(|| kernels_f32()[0])
    }
}

/// Every kernel this machine can run, best first.
fn kernels_f32() -> Vec<Kernel<f32>> {
    let mut all = vec![];
    #[cfg(target_arch = "x86_64")]
    all.extend(x86::kernels());
    all.push(micro::portable::<f32>());
    all
}

macro_rules! portable {
    ($($T:ty),*) => {$(
        impl Element for $T {
            fn kernel() -> Kernel<$T> {
                static CHOICE: OnceLock<Kernel<$T>> = OnceLock::new();
                *CHOICE.get_or_init(micro::fastest::<$T>)
            }
        }
    )*};
}
portable! { f64, i8, u8, i16, u16, i32, u32, i64, u64, bool }

/// Buffers that products reuse.
#[derive(Debug)]
pub(crate) struct Packing<T> {
    a: Vec<T>,
    b: Vec<T>,
    c: Vec<T>,
}

impl<T> Default for Packing<T> {
    fn default() -> Self {
        Packing { a: vec![], b: vec![], c: vec![] }
    }
}

/// `C (+)= A · B`; rows of C are `ldc` apart, its columns adjacent. With `k = 0` C becomes zero, or stays.
///
/// # Safety
/// A, B and C hold these extents at these strides; C overlaps neither A nor B.
pub(crate) unsafe fn dot<T: Element>(
    extents: Extents,
    a: Matrix<T>,
    b: Matrix<T>,
    c: *mut T,
    ldc: isize,
    accumulate: bool,
    packing: &mut Packing<T>,
) {
    // SAFETY: the caller's.
    unsafe { dot_with(T::kernel(), extents, a, b, c, ldc, accumulate, packing) }
}

/// [`dot`] with a given kernel.
///
/// # Safety
/// As [`dot`], and the machine runs the kernel.
unsafe fn dot_with<T: Element>(
    kernel: Kernel<T>,
    Extents { m, n, k }: Extents,
    a: Matrix<T>,
    b: Matrix<T>,
    c: *mut T,
    ldc: isize,
    accumulate: bool,
    packing: &mut Packing<T>,
) {
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !accumulate {
            // SAFETY: C has m rows of n elements.
            (0..m).for_each(|i| unsafe { std::slice::from_raw_parts_mut(c.offset(i as isize * ldc), n).fill(T::ZERO) });
        }
        return;
    }
    for p in (0..k).step_by(KC) {
        for j in (0..n).step_by(NC) {
            let part = Extents { m, n: NC.min(n - j), k: KC.min(k - p) };
            // SAFETY: the part lies inside of the caller's extents.
            unsafe {
                let a = a.at(0, p);
                let b = b.at(p, j);
                block(kernel, part, a, b, c.add(j), ldc, accumulate || p > 0, packing);
            }
        }
    }
}

/// One block of k and columns.
///
/// # Safety
/// As [`dot_with`]; `k` is at most [`KC`], `n` at most [`NC`].
unsafe fn block<T: Element>(
    kernel: Kernel<T>,
    extents: Extents,
    a: Matrix<T>,
    b: Matrix<T>,
    c: *mut T,
    ldc: isize,
    accumulate: bool,
    packing: &mut Packing<T>,
) {
    let Extents { m, n, k } = extents;
    let (mr, nr) = (kernel.mr, kernel.nr);
    let Packing { a: a_buffer, b: b_buffer, c: c_buffer } = packing;
    let far = b.row.unsigned_abs() * size_of::<T>() > FAR;
    let in_place = b.col == 1 && !(far && m >= WORTH);
    let whole = n / nr;
    let packed_from = if in_place { whole } else { 0 };
    let panels = n.div_ceil(nr) - packed_from;
    reserve(b_buffer, panels * k * nr);
    for panel in 0..panels {
        let j = (packed_from + panel) * nr;
        // SAFETY: columns j.. of B exist, and the buffer holds every panel.
        unsafe { pack(b.at(0, j), k, nr.min(n - j), nr, b_buffer.as_mut_ptr().add(panel * k * nr)) };
    }
    // Rows of A that lie a page apart fall on one cache set: copied side by side once, read by every panel.
    let pack_a = n >= 2 * nr && m >= mr && a.row.unsigned_abs() * size_of::<T>() > FAR;
    if pack_a {
        reserve(a_buffer, m.next_multiple_of(mr) * k);
        for i in (0..m).step_by(mr) {
            // SAFETY: rows i.. of A exist; transposed, they are columns.
            unsafe { pack(a.at(i, 0).transposed(), k, mr.min(m - i), mr, a_buffer.as_mut_ptr().add(i * k)) };
        }
    }
    reserve(c_buffer, mr * nr);
    for panel in 0..n.div_ceil(nr) {
        let j = panel * nr;
        let width = nr.min(n - j);
        // SAFETY: the panel is in place or in the buffer; rows and columns are inside of the extents.
        unsafe {
            let (b, b_row) = match panel.checked_sub(packed_from) {
                Some(packed) => (b_buffer.as_ptr().add(packed * k * nr), nr as isize),
                None => (b.at(0, j).start, b.row),
            };
            for i in (0..m).step_by(mr) {
                let rows = mr.min(m - i);
                let a = if pack_a {
                    Matrix { start: a_buffer.as_ptr().add(i * k), row: 1, col: mr as isize }
                } else {
                    a.at(i, 0)
                };
                let c = c.offset(i as isize * ldc).add(j);
                if width == nr {
                    (kernel.run)(rows, k, a, b, b_row, c, ldc, accumulate);
                } else {
                    let sums = c_buffer.as_mut_ptr();
                    (kernel.run)(rows, k, a, b, b_row, sums, nr as isize, false);
                    for r in 0..rows {
                        let to = std::slice::from_raw_parts_mut(c.offset(r as isize * ldc), width);
                        let from = std::slice::from_raw_parts(sums.add(r * nr), width);
                        if accumulate {
                            to.iter_mut().zip(from).for_each(|(c, &s)| *c = T::add(*c, s));
                        } else {
                            to.copy_from_slice(from);
                        }
                    }
                }
            }
        }
    }
}

/// Room for `n` elements.
fn reserve<T: Number>(buffer: &mut Vec<T>, n: usize) {
    if buffer.len() < n {
        buffer.resize(n, T::ZERO);
    }
}

/// Copies `k` rows of `width` columns into a panel of `nr` columns; the rest is zero.
///
/// # Safety
/// The matrix holds `k` x `width` elements, the panel `k * nr`.
unsafe fn pack<T: Number>(from: Matrix<T>, k: usize, width: usize, nr: usize, to: *mut T) {
    // SAFETY: the caller's.
    unsafe {
        if width < nr {
            std::slice::from_raw_parts_mut(to, k * nr).fill(T::ZERO);
        }
        if from.col == 1 {
            for p in 0..k {
                std::ptr::copy_nonoverlapping(from.start.offset(p as isize * from.row), to.add(p * nr), width);
            }
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if size_of::<T>() == 4 && from.row == 1 && x86::has_avx2() {
            return x86::pack_transposed(from.start.cast(), from.col, k, width, nr, to.cast());
        }
        for j in 0..width {
            let column = from.at(0, j);
            (0..k).for_each(|p| *to.add(p * nr + j) = *column.start.offset(p as isize * column.row));
        }
    }
}

impl<T> Matrix<T> {
    /// The matrix from element (i, j) on.
    ///
    /// # Safety
    /// The element exists.
    unsafe fn at(self, i: usize, j: usize) -> Self {
        // SAFETY: the caller's.
        let start = unsafe { self.start.offset(i as isize * self.row + j as isize * self.col) };
        Matrix { start, ..self }
    }
    /// The same memory as elements of another type.
    pub(crate) fn cast<U>(self) -> Matrix<U> {
        Matrix { start: self.start.cast(), row: self.row, col: self.col }
    }
    /// Rows as columns.
    pub(crate) fn transposed(self) -> Self {
        Matrix { start: self.start, row: self.col, col: self.row }
    }
}

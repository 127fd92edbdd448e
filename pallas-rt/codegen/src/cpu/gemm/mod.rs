//! Products of tiles: `C[m, n] (+)= A[m, k] · B[k, n]` over strided memory.
//!
//! ```text
//! for each block of KC along k
//!     for each block of NC columns of B             read in place where its columns are adjacent and its rows near
//!         for each block of MC rows of A            stays in the second level cache; packed where rows are far
//!             for each panel of NR columns of B
//!                 for each MR rows of A             broadcast in place: any strides
//!                     micro-kernel: MR x NR sums in registers
//! ```
//!
//! A last panel narrower than `NR` is padded with zeros, and its sums go through a small buffer, since the
//! micro-kernels compute whole panels only. [`portable_microkernel`] is the kernel for every element type,
//! [`avx_microkernels`] has those for `f32` with AVX2 and AVX-512, [`pairwise_dot`] products of bytes and of `bf16`,
//! [`amx`] those of `bf16` on processors with tile registers, [`few_rows`] those with few rows or columns, [`tiny`]
//! those of a few elements.

/// Defines a micro-kernel `$entry` that calls `$fixed` with the number of rows as a constant.
#[cfg(target_arch = "x86_64")]
macro_rules! of_rows {
    ($entry:ident<$T:ty> = $fixed:ident, $features:literal, [$($rows:literal)*]) => {
        /// Calls the micro-kernel for this number of rows.
        ///
        /// # Safety
        /// See [`super::MicroKernelFn`].
        #[target_feature(enable = $features)]
        unsafe fn $entry(rows: usize, k: usize, a: Matrix<$T>, b: Matrix<$T>, c: OutputMatrix<$T>) {
            // SAFETY: the caller's.
            unsafe {
                match rows {
                    $($rows => $fixed::<$rows>(k, a, b, c),)*
                    _ => unreachable!("a kernel is called with at most its own rows"),
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx_microkernels;
pub(crate) mod few_rows;
pub(crate) mod pairwise_dot;
mod portable_microkernel;
#[cfg(test)]
mod tests;
pub(crate) mod tiny;

pub(super) use portable_microkernel::{Number, vectorized_kernel};

use crate::raw;
use std::sync::OnceLock;

/// A matrix in memory: element (i, j) lies at `start + i * row + j * col`, counted in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<T> {
    /// Element (0, 0).
    pub(crate) start: *const T,
    /// Distance between rows, in elements.
    pub row: isize,
    /// Distance between columns, in elements.
    pub col: isize,
}

/// The matrix that a product is written to, or added to; elements of a row are adjacent.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputMatrix<T> {
    /// Element (0, 0).
    pub(crate) start: *mut T,
    /// Distance between rows, in elements.
    pub row: isize,
    /// True if the product is added to the existing elements.
    pub add: bool,
}

/// The extents of a matrix product `[m, k]·[k, n]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extents {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
}

/// A micro-kernel's function; its arguments are `rows`, `k`, A, a panel of B, and C.
///
/// # Safety
/// A holds `rows` x `k` elements, B `k` rows of whole panels with adjacent columns, C `rows` rows of whole panels;
/// `rows` is at most the kernel's `mr`; the processor has the kernel's features.
type MicroKernelFn<T> = unsafe fn(usize, usize, Matrix<T>, Matrix<T>, OutputMatrix<T>);

/// A micro-kernel and the shape of its panels: `mr` rows of C by `nr` columns.
#[derive(Clone, Copy)]
pub(super) struct MicroKernel<T> {
    #[cfg_attr(not(test), allow(dead_code, reason = "tests name the kernel that failed"))]
    name: &'static str,
    mr: usize,
    nr: usize,
    /// The kernel needs `k` to be a multiple of this. If it is more than 1, columns of A are adjacent, and a multiple
    /// of this many rows can be read.
    k_multiple: usize,
    run: MicroKernelFn<T>,
    /// A kernel for narrow products, with the same rows and the first columns of a panel: its number of columns, and
    /// its function.
    half: Option<(usize, MicroKernelFn<T>)>,
}

/// Rows of B that one pass over C takes. A panel of 32 columns of `f32` then comes from the second-level cache, which
/// is fast enough; half as many rows, which fit the first level, would read and write C twice as often.
const KC: usize = 512;
/// Columns of B packed at a time; each block of A is packed again for each of these parts.
const NC: usize = 1024;
/// Rows of A that are multiplied with all panels of B in turn: their part of A, 256 KiB of `f32`, stays in the
/// second-level cache.
const MC: usize = 128;
/// Distance of rows of B, in bytes, above which they are packed: they would fall on few cache sets and pages.
const MAX_UNPACKED_STRIDE_BYTES: usize = 1024;
/// Minimum rows of A for which packing B pays off.
const MIN_A_ROWS_TO_PACK_B: usize = 16;

/// Returns the fastest kernel for `f32` that this machine can run.
pub(super) fn fastest_f32_kernel() -> MicroKernel<f32> {
    static FASTEST_KERNEL: OnceLock<MicroKernel<f32>> = OnceLock::new();
    *FASTEST_KERNEL.get_or_init(|| supported_f32_kernels()[0])
}

impl MicroKernel<f32> {
    /// Returns true if rows of B at this distance (in elements) are near enough for panels to be read as fast as whole
    /// rows. A panel of AVX2 is one cache line of each row; lines at large distances fall on few cache sets.
    pub(crate) fn can_read_panels_fast(self, row_stride: isize) -> bool {
        self.nr >= 32 || row_stride.unsigned_abs() <= 512
    }
}

/// Returns every kernel for `f32` that this machine can run, fastest first.
fn supported_f32_kernels() -> Vec<MicroKernel<f32>> {
    let mut all = vec![];
    #[cfg(target_arch = "x86_64")]
    all.extend(avx_microkernels::supported_kernels());
    all.push(portable_microkernel::portable_kernel::<f32>());
    all
}

/// Buffers that products reuse: packed parts of A and B, and sums.
#[derive(Debug, Default)]
pub(super) struct PackingBuffers<T> {
    a: Vec<T>,
    b: Vec<T>,
    c: Vec<T>,
}

/// Computes `C (+)= A · B`. With `k = 0`, C is set to zero, or left as it is if the product is added to it.
///
/// # Safety
/// A, B and C hold these extents at these strides; C overlaps neither A nor B; the machine runs the kernel.
pub(super) unsafe fn dot<T: Number>(
    kernel: MicroKernel<T>,
    Extents { m, n, k }: Extents,
    a: Matrix<T>,
    b: Matrix<T>,
    c: OutputMatrix<T>,
    packing: &mut PackingBuffers<T>,
) {
    if [m, n, k].contains(&0) {
        // SAFETY: C has m rows of n elements.
        return unsafe { c.zero_unless_adding(m, n) };
    }
    for p in (0..k).step_by(KC) {
        for j in (0..n).step_by(NC) {
            let part = Extents { m, n: NC.min(n - j), k: KC.min(k - p) };
            // SAFETY: the part lies inside of the caller's extents.
            unsafe {
                let c = OutputMatrix { add: c.add || p > 0, ..c.submatrix_at(0, j) };
                compute_block(kernel, part, a.submatrix_at(0, p), b.submatrix_at(p, j), c, packing);
            }
        }
    }
}

/// Computes the part of a product for one block of columns and of k.
///
/// # Safety
/// As [`dot`]; `k` is at most [`KC`], `n` at most [`NC`].
unsafe fn compute_block<T: Number>(
    kernel: MicroKernel<T>,
    extents: Extents,
    a: Matrix<T>,
    b: Matrix<T>,
    c: OutputMatrix<T>,
    packing: &mut PackingBuffers<T>,
) {
    let Extents { m, n, k } = extents;
    // Calls of about as many rows each: a few rows at the end would wait for their own sums.
    let kernel = MicroKernel { mr: m.div_ceil(m.div_ceil(kernel.mr)), ..kernel };
    let (mr, nr) = (kernel.mr, kernel.nr);
    let PackingBuffers { a: a_buffer, b: b_buffer, c: c_buffer } = packing;
    let far = b.row.unsigned_abs() * size_of::<T>() > MAX_UNPACKED_STRIDE_BYTES;
    let in_place = b.col == 1 && !(far && m >= MIN_A_ROWS_TO_PACK_B);
    let whole = n / nr;
    let fits_half = kernel.half.is_some_and(|half| n % nr == half.0);
    let packed_from = if in_place { whole + usize::from(fits_half) } else { 0 };
    let panels = n.div_ceil(nr) - packed_from;
    ensure_buffer_length(b_buffer, panels * k * nr);
    for panel in 0..panels {
        let j = (packed_from + panel) * nr;
        // SAFETY: columns j.. of B exist, and the buffer holds every panel.
        unsafe {
            pack_zero_padded_panel(
                b.submatrix_at(0, j),
                k,
                nr.min(n - j),
                nr,
                b_buffer.as_mut_ptr().add(panel * k * nr),
            )
        };
    }
    // Rows of A that are a page apart fall on one cache set: they are packed once, and read by every panel.
    let pack_a = n >= 2 * nr && m >= mr && a.row.unsigned_abs() * size_of::<T>() > MAX_UNPACKED_STRIDE_BYTES;
    let height = if m > MC { MC / mr * mr } else { m };
    ensure_buffer_length(a_buffer, if pack_a { height.next_multiple_of(mr) * k } else { 0 });
    ensure_buffer_length(c_buffer, mr * nr);
    for first in (0..m).step_by(height) {
        let m = height.min(m - first);
        // SAFETY: rows first.. exist.
        let (a, c) = unsafe { (a.submatrix_at(first, 0), c.submatrix_at(first, 0)) };
        for i in (0..m).step_by(mr).filter(|_| pack_a) {
            // SAFETY: rows i.. of A exist; transposed, they are columns.
            unsafe {
                pack_zero_padded_panel(
                    a.submatrix_at(i, 0).transposed(),
                    k,
                    mr.min(m - i),
                    mr,
                    a_buffer.as_mut_ptr().add(i * k),
                )
            };
        }
        for panel in 0..n.div_ceil(nr) {
            let j = panel * nr;
            // SAFETY: the panel is in place or in the buffer; rows and columns are inside of the extents.
            unsafe {
                let b = match panel.checked_sub(packed_from) {
                    Some(packed) => Matrix { start: b_buffer.as_ptr().add(packed * k * nr), row: nr as isize, col: 1 },
                    None => b.submatrix_at(0, j),
                };
                let rows = |i: usize| match pack_a {
                    true => Matrix { start: a_buffer.as_ptr().add(i * k), row: 1, col: mr as isize },
                    false => a.submatrix_at(i, 0),
                };
                compute_panel(kernel, m, nr.min(n - j), k, rows, b, c.submatrix_at(0, j), c_buffer.as_mut_ptr());
            }
        }
    }
}

/// Computes the columns of C that belong to a panel of B. If the panel is wider than these, the sums go through a
/// buffer.
///
/// # Safety
/// `rows_of_a` gives as many rows of A from a given one as a kernel takes, or as are left; B is a whole panel, C has
/// `m` rows of `width` elements, the buffer holds whole rows of a panel for one call of the kernel; the machine runs
/// the kernel.
#[allow(clippy::too_many_arguments, reason = "a product has this many")]
#[inline(always)]
unsafe fn compute_panel<T: Number>(
    kernel: MicroKernel<T>,
    m: usize,
    width: usize,
    k: usize,
    rows_of_a: impl Fn(usize) -> Matrix<T>,
    b: Matrix<T>,
    c: OutputMatrix<T>,
    sum_buffer: *mut T,
) {
    let MicroKernel { mr, nr, .. } = kernel;
    let (whole, run) = kernel.half.filter(|half| width <= half.0).unwrap_or((nr, kernel.run));
    for i in (0..m).step_by(mr) {
        let rows = mr.min(m - i);
        // SAFETY: the caller's.
        unsafe {
            let c = c.submatrix_at(i, 0);
            if width == whole {
                run(rows, k, rows_of_a(i), b, c);
                continue;
            }
            run(rows, k, rows_of_a(i), b, OutputMatrix { start: sum_buffer, row: nr as isize, add: false });
            let OutputMatrix { start, row, add } = c;
            for r in 0..rows {
                let to = raw::slice_mut(start.offset(r as isize * row), width);
                let from = raw::slice(sum_buffer.add(r * nr), width);
                if add {
                    to.iter_mut().zip(from).for_each(|(c, &s)| *c = T::add(*c, s));
                } else {
                    to.copy_from_slice(from);
                }
            }
        }
    }
}

/// Grows a buffer with zeros to a minimum length; leaves it as it is if it is long enough.
fn ensure_buffer_length<T: Number>(buffer: &mut Vec<T>, min_length: usize) {
    if buffer.len() < min_length {
        buffer.resize(min_length, T::default());
    }
}

/// Packs `k` rows of `width` columns into a panel of `nr` columns; columns from `width` on are zero.
///
/// # Safety
/// The matrix holds `k` x `width` elements, the panel `k * nr`.
unsafe fn pack_zero_padded_panel<T: Number>(from: Matrix<T>, k: usize, width: usize, nr: usize, to: *mut T) {
    // SAFETY: the caller's.
    unsafe {
        if width < nr {
            raw::slice_mut(to, k * nr).fill(T::default());
        }
        if from.col == 1 {
            #[cfg(target_arch = "x86_64")]
            if size_of::<T>() == 4 && width == nr && nr.is_multiple_of(8) && super::strips::has_avx2() {
                return avx_microkernels::pack_rows(from.start.cast(), from.row, k, nr, to.cast());
            }
            for p in 0..k {
                std::ptr::copy_nonoverlapping(from.start.offset(p as isize * from.row), to.add(p * nr), width);
            }
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if size_of::<T>() == 4 && from.row == 1 && super::strips::has_avx2() {
            return avx_microkernels::pack_transposed(from.start.cast(), from.col, k, width, nr, to.cast());
        }
        for j in 0..width {
            let column = from.submatrix_at(0, j);
            (0..k).for_each(|p| *to.add(p * nr + j) = *column.start.offset(p as isize * column.row));
        }
    }
}

/// Transposes a matrix of elements of four bytes: `to[i, j] = from[j, i]` for `i` below `rows` and `j` below
/// `columns`. Returns false, having done nothing, on machines without AVX2.
///
/// # Safety
/// Both hold these elements, aligned, and do not overlap.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "other processors have none"))]
pub(super) unsafe fn try_transpose_words(
    from: *const u32,
    from_row_stride: isize,
    to: *mut u32,
    to_row_stride: usize,
    [rows, columns]: [usize; 2],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if super::strips::has_avx2() {
        // SAFETY: the caller's; only bits are moved.
        unsafe {
            avx_microkernels::pack_transposed(from.cast(), from_row_stride, rows, columns, to_row_stride, to.cast())
        };
        return true;
    }
    false
}

impl<T> Matrix<T> {
    /// Returns the submatrix that begins at element (i, j).
    ///
    /// # Safety
    /// The element exists.
    unsafe fn submatrix_at(self, i: usize, j: usize) -> Self {
        // SAFETY: the caller's.
        let start = unsafe { self.start.offset(i as isize * self.row + j as isize * self.col) };
        Matrix { start, ..self }
    }
    /// Returns the same memory as a matrix of elements of another type.
    pub(super) fn cast<U>(self) -> Matrix<U> {
        Matrix { start: self.start.cast(), row: self.row, col: self.col }
    }
    /// Returns the transposed matrix, in the same memory.
    pub(super) fn transposed(self) -> Self {
        Matrix { start: self.start, row: self.col, col: self.row }
    }
}

impl<T: Number> OutputMatrix<T> {
    /// Returns the submatrix that begins at element (i, j).
    ///
    /// # Safety
    /// The element exists.
    unsafe fn submatrix_at(self, i: usize, j: usize) -> Self {
        // SAFETY: the caller's.
        OutputMatrix { start: unsafe { self.start.offset(i as isize * self.row).add(j) }, ..self }
    }
    /// Sets `m` rows of `n` elements to zero, unless the product is added to what they hold.
    ///
    /// # Safety
    /// The matrix has at least `m` rows and `n` columns.
    pub(super) unsafe fn zero_unless_adding(self, m: usize, n: usize) {
        for i in (0..m).filter(|_| !self.add) {
            // SAFETY: the caller's.
            unsafe { raw::slice_mut(self.submatrix_at(i, 0).start, n).fill(T::default()) };
        }
    }
}

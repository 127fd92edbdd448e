//! Products with few rows, as when a language model generates one token: B is read once, and reading it takes most of
//! the time.
//!
//! The general micro-kernels read a line or two of each row of a panel, and the rest of the row has left the cache
//! when the next panel needs it. Here B is taken in blocks of whole rows, in B's own type. A block is in the
//! second-level cache when it is multiplied, since it was prefetched, row after row, while the block before it was
//! multiplied:
//!
//! ```text
//! rows of B adjacent      C[i, panel] += Σ_p A[i, p] · B[p, panel]         for p of a block; sums in registers
//! columns of B adjacent   C[i, j]     += A[i, ..] · B[.., j]               for a few i and j; sums in registers
//! ```
//! An element of B is converted to f32 in a register, once for up to eight rows of A.
use super::{Extents, Matrix, OutputMatrix, PackingBuffers, ensure_buffer_length};
use crate::raw;
use pallas_ir::DType;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
mod avx;
mod pack;
mod short_rows;

use pack::pack_rows;

/// Maximum rows of A for which the kernels for few rows are used: up to here, reading B takes longer than multiplying.
pub(crate) const MAX_NARROW_ROWS: usize = 16;

/// The function of a [`NarrowKernel`]; its arguments are the extents, A, B in parts, and C, which becomes the product,
/// or to which it is added.
///
/// # Safety
/// The matrices hold these extents, B in the kernel's element type; rows of A are adjacent elements, those of both
/// halves columns; so are the rows or the columns of B; the processor has the kernel's features.
type NarrowKernelFn = unsafe fn(Extents, Matrix<f32>, MatrixParts<'_>, OutputMatrix<f32>);

/// Matrix B in memory as one part, or as several parts of equal extents, each with the next rows of B if the elements
/// of a row are adjacent, else with the next columns.
#[derive(Clone, Copy)]
struct MatrixParts<'a> {
    starts: &'a [*const u8],
    row: isize,
    col: isize,
}

impl MatrixParts<'_> {
    /// Returns the parts to prefetch while the parts `first..last` are multiplied; none if B has one part only.
    fn parts_to_prefetch(&self, first: usize, last: usize) -> &[*const u8] {
        let most = self.starts.len() - 1;
        // The last part has been prefetched already.
        if most == 0 {
            &[]
        } else {
            &self.starts[most.min(first + PREFETCH_DISTANCE_PARTS)..=most.min(last - 1 + PREFETCH_DISTANCE_PARTS)]
        }
    }
}

/// A kernel for products of a few rows of f32 with a matrix B of some element type.
#[derive(Clone, Copy)]
pub(crate) struct NarrowKernel {
    run: NarrowKernelFn,
    /// Bytes of an element of B.
    bytes: usize,
    #[cfg_attr(not(test), allow(dead_code, reason = "tests name the kernel that failed"))]
    pub(super) name: &'static str,
}

/// The bit mask of kernels that multiply whole elements of B, not one 4-bit half of each byte.
pub(crate) const WHOLE_ELEMENT_MASK: u8 = 0xff;
/// The bit mask of kernels that multiply the low 4-bit half of each byte of B.
pub(crate) const LOW_NIBBLE_MASK: u8 = 0x0f;
/// The bit mask of kernels that multiply the high 4-bit half of each byte of B.
pub(crate) const HIGH_NIBBLE_MASK: u8 = 0xf0;

/// Returns this machine's fastest kernel for a matrix B of this element type, of whose elements only the bits in the
/// mask count; `None` if it has none. Masks of less than whole elements exist for the 4-bit halves of `u8` only.
pub(crate) fn fastest_narrow_kernel(dtype: DType, bit_mask: u8) -> Option<NarrowKernel> {
    static KERNELS: OnceLock<Vec<(DType, u8, NarrowKernel)>> = OnceLock::new();
    KERNELS.get_or_init(supported_narrow_kernels).iter().find(|k| (k.0, k.1) == (dtype, bit_mask)).map(|k| k.2)
}

/// Returns this machine's fastest kernel for a matrix of bytes with a 4-bit number in each half, which multiplies f32
/// rows with both numbers of a byte in one pass; `None` if it has none.
pub(crate) fn fastest_nibble_kernel() -> Option<NarrowKernel> {
    static KERNELS: OnceLock<Vec<NarrowKernel>> = OnceLock::new();
    KERNELS.get_or_init(supported_nibble_kernels).first().copied()
}

/// Returns every kernel for both halves of bytes that this machine can run, fastest first.
pub(super) fn supported_nibble_kernels() -> Vec<NarrowKernel> {
    #[allow(unused_mut, reason = "other processors have none")]
    let mut all = vec![];
    #[cfg(target_arch = "x86_64")]
    avx::push_nibble_kernels(&mut all);
    all
}

/// Returns every kernel that this machine can run, fastest first, with its element type and mask.
pub(super) fn supported_narrow_kernels() -> Vec<(DType, u8, NarrowKernel)> {
    #[allow(unused_mut, reason = "other processors have none")]
    let mut all = vec![];
    #[cfg(target_arch = "x86_64")]
    avx::push_narrow_kernels(&mut all);
    all
}

/// Computes `C (+)= A · B` for few rows. With `k = 0`, C is set to zero, or left as it is if the product is added to
/// it.
///
/// # Safety
/// A, B and C hold these extents at these strides, B in the kernel's element type; C overlaps neither.
pub(crate) unsafe fn dot(
    kernel: NarrowKernel,
    extents: Extents,
    a: Matrix<f32>,
    b: Matrix<u8>,
    c: OutputMatrix<f32>,
    packing: &mut PackingBuffers<f32>,
) {
    let Extents { m, n, k } = extents;
    // SAFETY: the caller's; the buffers hold A and B.
    unsafe {
        let (mut a, mut b) = (a, b);
        if a.col != 1 {
            ensure_buffer_length(&mut packing.a, m * k);
            pack_rows(a, [m, k], packing.a.as_mut_ptr(), k);
            a = Matrix { start: packing.a.as_ptr(), row: k as isize, col: 1 };
        }
        // A row of few columns would fill a small part of a vector only, and so would a short column.
        let by_columns = should_pack_columns(n, k);
        let is_packed = if b.row == 1 {
            b.col != 1 && n > MAX_PACKED_COLUMNS && is_copying_to_rows_faster(kernel, m, k)
        } else {
            b.col != 1 || by_columns
        };
        if is_packed {
            let from = if by_columns { b.transposed() } else { b };
            let lines = if by_columns { [n, k] } else { [k, n] };
            // Rows whose distance is a power of two would fall on the same cache sets.
            let far = lines[1] + 64 / kernel.bytes;
            ensure_buffer_length(&mut packing.b, lines[0] * far);
            let to = packing.b.as_mut_ptr().cast::<u8>();
            match kernel.bytes {
                1 => pack_rows::<u8>(from.cast(), lines, to.cast(), far),
                2 => pack_rows::<u16>(from.cast(), lines, to.cast(), far),
                _ => pack_rows::<u32>(from.cast(), lines, to.cast(), far),
            }
            let packed = Matrix { start: to.cast_const(), row: far as isize, col: 1 };
            b = if by_columns { packed.transposed() } else { packed };
        }
        if n == 1 && b.row == 1 {
            // One column must not be read as rows of one element each.
            b.col = k as isize + 1;
        }
        (kernel.run)(extents, a, MatrixParts { starts: &[b.start], row: b.row, col: b.col }, c);
    }
}

/// Computes `C (+)= A · L + H · U` for few rows: A is `a_low`, H is `a_high`, L are the low halves of B's bytes, and U
/// the high halves in place, and so 16 times as large. `nibble_kernel` multiplies both halves at once.
///
/// # Safety
/// As [`dot`], A and H of the same extents.
pub(crate) unsafe fn dot_nibbles(
    nibble_kernel: NarrowKernel,
    extents: Extents,
    [a_low, a_high]: [Matrix<f32>; 2],
    b: Matrix<u8>,
    c: OutputMatrix<f32>,
    packing: &mut PackingBuffers<f32>,
) {
    let Extents { m, n, k } = extents;
    // SAFETY: the caller's; the buffer holds A and H, whose columns take turns.
    unsafe {
        if b.col != 1 || should_pack_columns(n, k) {
            // The machine has kernels for one half where it has one for both.
            let [low, upper] =
                [LOW_NIBBLE_MASK, HIGH_NIBBLE_MASK].map(|bits| fastest_narrow_kernel(DType::U8, bits).expect("it has"));
            dot(low, extents, a_low, b, c, packing);
            return dot(upper, extents, a_high, b, OutputMatrix { add: true, ..c }, packing);
        }
        // Columns of A and of H alternate; the elements of a column, which are read together, are adjacent.
        ensure_buffer_length(&mut packing.a, m * 2 * k);
        let columns: *mut f32 = packing.a.as_mut_ptr();
        pack_rows(a_low.transposed(), [k, m], columns, 2 * m);
        pack_rows(a_high.transposed(), [k, m], columns.wrapping_add(m), 2 * m);
        let turns = Matrix { start: columns.cast_const(), row: 1, col: m as isize };
        (nibble_kernel.run)(extents, turns, MatrixParts { starts: &[b.start], row: b.row, col: b.col }, c);
    }
}

/// Number of parts of B (such as pages) from the one that is multiplied to the one that is prefetched meanwhile.
const PREFETCH_DISTANCE_PARTS: usize = 4;

/// A matrix B whose rows (columns if `are_columns`) are in pages at these addresses, the same number in each page, one
/// after the other.
#[derive(Clone, Copy)]
pub(crate) struct PagedMatrix<'a> {
    pub(crate) starts: &'a [*const u8],
    pub are_columns: bool,
}

/// Returns true if a product with `m` rows should read the pages of B in place, each row of which (column if
/// `are_columns`) has `row_elements` adjacent elements. Returns false if `m` is too large, or if these rows or columns
/// are so short that copying them first is faster.
pub(crate) fn can_read_pages_in_place(kernel: NarrowKernel, m: usize, row_elements: usize, are_columns: bool) -> bool {
    m <= MAX_NARROW_ROWS
        && if are_columns {
            !is_copying_to_rows_faster(kernel, m, row_elements)
        } else {
            row_elements > MAX_PACKED_COLUMNS
        }
}

/// Computes `C (+)= A · B` for few rows, with B in pages.
///
/// # Safety
/// As [`dot`]; each page holds its rows, of more than one element.
pub(crate) unsafe fn dot_paged(
    kernel: NarrowKernel,
    extents: Extents,
    a: Matrix<f32>,
    pages: PagedMatrix<'_>,
    c: OutputMatrix<f32>,
    packing: &mut PackingBuffers<f32>,
) {
    let (Extents { m, n, k }, PagedMatrix { starts, are_columns }, mut a) = (extents, pages, a);
    // SAFETY: the caller's; the buffer holds A.
    unsafe {
        if starts.is_empty() {
            return c.zero_unless_adding(m, n);
        }
        if a.col != 1 {
            ensure_buffer_length(&mut packing.a, m * k);
            pack_rows(a, [m, k], packing.a.as_mut_ptr(), k);
            a = Matrix { start: packing.a.as_ptr(), row: k as isize, col: 1 };
        }
        let [row, col] = if are_columns { [1, k] } else { [n, 1] }.map(|distance| distance as isize);
        (kernel.run)(extents, a, MatrixParts { starts, row, col }, c);
    }
}

/// Minimum elements of a column that is always multiplied in place; shorter ones may be copied to rows first.
const MIN_IN_PLACE_COLUMN_ELEMENTS: usize = 128;

/// Returns true if columns of `k` elements take longer to multiply with `m` rows in place than to be copied to rows
/// and multiplied then. The costs are quarters of a nanosecond, as measured on a Zen 4.
fn is_copying_to_rows_faster(kernel: NarrowKernel, m: usize, k: usize) -> bool {
    let by_columns = m * (7 + k.div_ceil(16));
    let copied = match kernel.bytes {
        1 => 30,
        2 => 24,
        _ => 9,
    };
    k < MIN_IN_PLACE_COLUMN_ELEMENTS && k * (copied + m) < 12 * by_columns
}

/// Maximum columns of B for which a product with many rows is computed as the transposed product, which has few, so
/// that A is read once; with more columns, the general kernels compute it.
pub(crate) const MAX_FEW_COLUMNS: usize = 8;

/// Returns true if B's columns should be copied so that each has adjacent elements: its rows would fill a small part
/// of a vector.
pub(crate) fn should_pack_columns(columns: usize, k: usize) -> bool {
    columns <= MAX_PACKED_COLUMNS && k >= MIN_LONG_COLUMN_ELEMENTS
}

/// Maximum columns of B that are copied so that each has adjacent elements; more columns stay in rows.
const MAX_PACKED_COLUMNS: usize = 4;
/// Minimum elements of a long column of B; shorter ones are not copied to adjacent elements, since they fill too small
/// a part of a vector.
const MIN_LONG_COLUMN_ELEMENTS: usize = 32;
/// Rows of A, if short, whose transposed product is computed at a time, so that it is still in the first-level cache
/// when it is transposed back.
const TRANSPOSED_ROWS_AT_ONCE: usize = 1024;

/// Computes `C (+)= A · B` for few columns, as the transposed product with few rows.
///
/// # Safety
/// As [`dot`], with A in the kernel's element type.
pub(crate) unsafe fn dot_few_columns(
    kernel: NarrowKernel,
    extents: Extents,
    a: Matrix<u8>,
    b: Matrix<f32>,
    c: OutputMatrix<f32>,
    packing: &mut PackingBuffers<f32>,
) {
    let Extents { m, n, k } = extents;
    if kernel.bytes == DType::F32.bytes() && short_rows::is_thin_product_faster(extents, a.col) {
        // SAFETY: the caller's: A holds f32.
        return unsafe { short_rows::fastest_thin_product()(extents, a.cast(), b, c) };
    }
    let mut sums = std::mem::take(&mut packing.c);
    let together = if k < MIN_LONG_COLUMN_ELEMENTS { TRANSPOSED_ROWS_AT_ONCE.min(m) } else { m }.max(1);
    ensure_buffer_length(&mut sums, together * n);
    for i in (0..m).step_by(together) {
        let rows = together.min(m - i);
        let start = a.start.wrapping_offset(i as isize * a.row * kernel.bytes as isize);
        let turned = OutputMatrix { start: sums.as_mut_ptr(), row: rows as isize, add: false };
        // SAFETY: the caller's; the buffer holds the transposed product.
        unsafe {
            let rows_of_a = Matrix { start, ..a }.transposed();
            dot(kernel, Extents { m: n, n: rows, k }, b.transposed(), rows_of_a, turned, packing);
            let (to, columns) = (c.submatrix_at(i, 0), Matrix { start: sums.as_ptr(), row: 1, col: rows as isize });
            match n {
                _ if c.add => add_sums(columns, [rows, n], to),
                2 => interleave_columns::<2>(columns, rows, to),
                3 => interleave_columns::<3>(columns, rows, to),
                _ => pack_rows(columns, [rows, n], to.start, to.row as usize),
            }
        }
    }
    packing.c = sums;
}

/// Adds a matrix of sums to C.
///
/// # Safety
/// Both have these numbers of rows and columns.
unsafe fn add_sums(sums: Matrix<f32>, [rows, columns]: [usize; 2], c: OutputMatrix<f32>) {
    for i in 0..rows {
        for j in 0..columns {
            // SAFETY: the caller's.
            unsafe { *c.submatrix_at(i, j).start += *sums.submatrix_at(i, j).start };
        }
    }
}

/// Writes a matrix of `N` columns, whose elements are adjacent along columns, to C.
///
/// # Safety
/// Both have `rows` rows.
unsafe fn interleave_columns<const N: usize>(from: Matrix<f32>, rows: usize, c: OutputMatrix<f32>) {
    // SAFETY: the caller's.
    let columns: [&[f32]; N] = std::array::from_fn(|j| unsafe { raw::slice(from.submatrix_at(0, j).start, rows) });
    let put = |i: usize, row: isize| {
        let to = c.start.wrapping_offset(i as isize * row);
        for (j, column) in columns.iter().enumerate() {
            // SAFETY: the caller's.
            unsafe { to.add(j).write(column[i]) };
        }
    };
    // Rows at a distance that is known are written as vectors.
    match c.row == N as isize {
        true => (0..rows).for_each(|i| put(i, N as isize)),
        false => (0..rows).for_each(|i| put(i, c.row)),
    }
}

//! Products of a few rows, as when a language model makes one token: B is read once, so their time is that of reading it.
//!
//! Micro-kernels walk down a panel of B, a line or two of each row, and the rest of the row is out of the cache when the
//! next panel wants it. Here a block of rows of B is taken at a time, in the type that they have: it lies in the second level
//! cache, since it was fetched, row after row, while the block before it was multiplied:
//!
//! ```text
//! rows side by side       C[i, panel] += Σ_p A[i, p] · B[p, panel]         for p of a block; sums in registers
//! columns side by side    C[i, j]     += A[i, ..] · B[.., j]               for a few i and j; sums in registers
//! ```
//! An element of B becomes f32 in a register, once for up to eight rows of A.
use super::{Extents, Matrix, Packing, Target, reserve};
use crate::raw;
use pallas_ir::DType;
use std::sync::OnceLock;

mod pack;
mod thin;
#[cfg(target_arch = "x86_64")]
mod x86;

use pack::pack;

/// Rows of A up to which reading B takes longer than multiplying.
pub(crate) const ROWS: usize = 16;

/// A, B, and C, which the product is added to.
///
/// # Safety
/// The matrices hold these extents, B in the kernel's element type; rows of A are adjacent elements, those of both halves
/// columns; so are the rows or the columns of B; the processor has the kernel's features.
type NarrowFn = unsafe fn(Extents, Matrix<f32>, Parts<'_>, Target<f32>);

/// B in one part or several of equal extents, one behind the other: its rows if those are adjacent elements, or its columns.
#[derive(Clone, Copy)]
struct Parts<'a> {
    starts: &'a [*const u8],
    row: isize,
    col: isize,
}

impl Parts<'_> {
    /// The parts that are fetched while those from one to another are multiplied; none if there is one: what lies behind.
    fn ahead(&self, first: usize, last: usize) -> &[*const u8] {
        let most = self.starts.len() - 1;
        // There is nothing to fetch behind the last one: it is there already.
        if most == 0 { &[] } else { &self.starts[most.min(first + AHEAD)..=most.min(last - 1 + AHEAD)] }
    }
}

/// A product of f32 rows with a matrix of some element type.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    run: NarrowFn,
    /// Bytes of an element of B.
    bytes: usize,
    #[cfg_attr(not(test), allow(dead_code, reason = "tests name the kernel that failed"))]
    pub(super) name: &'static str,
}

/// Bits of elements of which all count, and the halves of a byte.
pub(crate) const ALL: u8 = 0xff;
pub(crate) const LOW: u8 = 0x0f;
pub(crate) const HIGH: u8 = 0xf0;

/// This machine's kernel for matrices of an element type, of which these bits count: other than all the halves of `u8` alone.
pub(crate) fn kernel(dtype: DType, bits: u8) -> Option<Kernel> {
    static KERNELS: OnceLock<Vec<(DType, u8, Kernel)>> = OnceLock::new();
    KERNELS.get_or_init(kernels).iter().find(|k| (k.0, k.1) == (dtype, bits)).map(|k| k.2)
}

/// This machine's kernel for both halves of bytes.
pub(crate) fn halves_kernel() -> Option<Kernel> {
    static KERNELS: OnceLock<Vec<Kernel>> = OnceLock::new();
    KERNELS.get_or_init(halves_kernels).first().copied()
}

/// Every kernel for both halves of bytes that this machine can run, best first.
pub(super) fn halves_kernels() -> Vec<Kernel> {
    #[allow(unused_mut, reason = "other processors have none")]
    let mut all = vec![];
    #[cfg(target_arch = "x86_64")]
    x86::halves_kernels(&mut all);
    all
}

/// Every kernel this machine can run, best first.
pub(super) fn kernels() -> Vec<(DType, u8, Kernel)> {
    #[allow(unused_mut, reason = "other processors have none")]
    let mut all = vec![];
    #[cfg(target_arch = "x86_64")]
    x86::kernels(&mut all);
    all
}

/// `C (+)= A · B` for few rows. With `k = 0` C is set to zero, or unchanged if it is added to.
///
/// # Safety
/// A, B and C hold these extents at these strides, B in the kernel's element type; C overlaps neither.
pub(crate) unsafe fn dot(
    kernel: Kernel,
    extents: Extents,
    a: Matrix<f32>,
    b: Matrix<u8>,
    c: Target<f32>,
    packing: &mut Packing<f32>,
) {
    let Extents { m, n, k } = extents;
    // SAFETY: the caller's; the buffers hold A and B.
    unsafe {
        c.begin(m, n);
        let (mut a, mut b) = (a, b);
        if a.col != 1 {
            reserve(&mut packing.a, m * k);
            pack(a, [m, k], packing.a.as_mut_ptr(), k);
            a = Matrix { start: packing.a.as_ptr(), row: k as isize, col: 1 };
        }
        // A row of a few columns would fill a small part of a vector, and so would a short column.
        let by_columns = are_columns_lines(n, k);
        let is_packed = if b.row == 1 {
            b.col != 1 && n > COLUMNS && are_rows_faster(kernel, m, k)
        } else {
            b.col != 1 || by_columns
        };
        if is_packed {
            let from = if by_columns { b.transposed() } else { b };
            let lines = if by_columns { [n, k] } else { [k, n] };
            // Lines that are powers of two apart would fall on the same sets of a cache.
            let far = lines[1] + 64 / kernel.bytes;
            reserve(&mut packing.b, lines[0] * far);
            let to = packing.b.as_mut_ptr().cast::<u8>();
            match kernel.bytes {
                1 => pack::<u8>(from.cast(), lines, to.cast(), far),
                2 => pack::<u16>(from.cast(), lines, to.cast(), far),
                _ => pack::<u32>(from.cast(), lines, to.cast(), far),
            }
            let packed = Matrix { start: to.cast_const(), row: far as isize, col: 1 };
            b = if by_columns { packed.transposed() } else { packed };
        }
        if n == 1 && b.row == 1 {
            // A column is not read as rows of one element each.
            b.col = k as isize + 1;
        }
        (kernel.run)(extents, a, Parts { starts: &[b.start], row: b.row, col: b.col }, c);
    }
}

/// `C (+)= A · L + H · U` for few rows, where L are the low halves of B's bytes, and U the high ones, 16 times as large. The
/// kernel is one for both halves.
///
/// # Safety
/// As [`dot`], A and H of the same extents.
pub(crate) unsafe fn halves(
    both: Kernel,
    extents: Extents,
    [a, high]: [Matrix<f32>; 2],
    b: Matrix<u8>,
    c: Target<f32>,
    packing: &mut Packing<f32>,
) {
    let Extents { m, n, k } = extents;
    // SAFETY: the caller's; the buffer holds A and H, whose columns take turns.
    unsafe {
        if b.col != 1 || are_columns_lines(n, k) {
            // The machine has kernels for one half where it has one for both.
            let [low, upper] = [LOW, HIGH].map(|bits| kernel(DType::U8, bits).expect("it has"));
            dot(low, extents, a, b, c, packing);
            return dot(upper, extents, high, b, Target { add: true, ..c }, packing);
        }
        c.begin(m, n);
        // Columns of A and of H take turns; those of a few rows, which are read together, are adjacent.
        reserve(&mut packing.a, m * 2 * k);
        let columns: *mut f32 = packing.a.as_mut_ptr();
        for i in 0..m {
            for p in 0..k {
                let to = columns.add(2 * p * m + i);
                to.write(*a.at(i, p).start);
                to.add(m).write(*high.at(i, p).start);
            }
        }
        let turns = Matrix { start: columns.cast_const(), row: 1, col: m as isize };
        (both.run)(extents, turns, Parts { starts: &[b.start], row: b.row, col: b.col }, c);
    }
}

/// Parts of B between the one that is multiplied and the one that is fetched.
const AHEAD: usize = 4;

/// Rows of B that lie in pages of as many each, one behind the other: columns of the product's B if `are_columns`.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    pub(crate) starts: &'a [*const u8],
    pub are_columns: bool,
}

/// True if `m` rows are multiplied with pages as they lie, whose rows have so many elements.
pub(crate) fn reads_pages(kernel: Kernel, m: usize, row: usize, are_columns: bool) -> bool {
    m <= ROWS && if are_columns { !are_rows_faster(kernel, m, row) } else { row > COLUMNS }
}

/// `C (+)= A · B` for few rows, of a B in pages.
///
/// # Safety
/// As [`dot`]; each page holds its rows, of more than one element.
pub(crate) unsafe fn paged(
    kernel: Kernel,
    extents: Extents,
    a: Matrix<f32>,
    pages: Pages<'_>,
    c: Target<f32>,
    packing: &mut Packing<f32>,
) {
    let (Extents { m, n, k }, Pages { starts, are_columns }, mut a) = (extents, pages, a);
    // SAFETY: the caller's; the buffer holds A.
    unsafe {
        c.begin(m, n);
        if a.col != 1 {
            reserve(&mut packing.a, m * k);
            pack(a, [m, k], packing.a.as_mut_ptr(), k);
            a = Matrix { start: packing.a.as_ptr(), row: k as isize, col: 1 };
        }
        if !starts.is_empty() {
            let [row, col] = if are_columns { [1, k] } else { [n, 1] }.map(|distance| distance as isize);
            (kernel.run)(extents, a, Parts { starts, row, col }, c);
        }
    }
}

/// Most elements of a column that is a part of rows while it is multiplied.
const SHORT: usize = 128;

/// True if columns of so few elements take longer to multiply with `m` rows as they lie than to be copied to rows and
/// multiplied then. Costs of a column are in quarters of a nanosecond, as measured on a Zen 4.
fn are_rows_faster(kernel: Kernel, m: usize, k: usize) -> bool {
    let by_columns = m * (7 + k.div_ceil(16));
    let copied = match kernel.bytes {
        1 => 30,
        2 => 24,
        _ => 9,
    };
    k < SHORT && k * (copied + m) < 12 * by_columns
}

/// Columns of B up to which A is read once, as the other side of a product of a few rows.
pub(crate) const FEW_COLUMNS: usize = 8;

/// True if B's columns are made lines of adjacent elements: its rows would fill a small part of a vector.
pub(crate) fn are_columns_lines(columns: usize, k: usize) -> bool {
    columns <= COLUMNS && k >= DEEP
}

/// Most columns that are lines, and fewest elements that they have.
const COLUMNS: usize = 4;
const DEEP: usize = 32;
/// Rows of short ones whose product is turned while the first level cache holds it; long ones are read whole.
const TURNED: usize = 1024;

/// `C (+)= A · B` for few columns.
///
/// # Safety
/// As [`dot`], with A in the kernel's element type.
pub(crate) unsafe fn few_columns(
    kernel: Kernel,
    extents: Extents,
    a: Matrix<u8>,
    b: Matrix<f32>,
    c: Target<f32>,
    packing: &mut Packing<f32>,
) {
    let Extents { m, n, k } = extents;
    if kernel.bytes == DType::F32.bytes() && thin::pays(extents, a.col) {
        // SAFETY: the caller's: A holds f32.
        return unsafe { thin::fastest()(extents, a.cast(), b, c) };
    }
    let mut sums = std::mem::take(&mut packing.c);
    let together = if k < DEEP { TURNED.min(m) } else { m }.max(1);
    reserve(&mut sums, together * n);
    for i in (0..m).step_by(together) {
        let rows = together.min(m - i);
        let start = a.start.wrapping_offset(i as isize * a.row * kernel.bytes as isize);
        let turned = Target { start: sums.as_mut_ptr(), row: rows as isize, add: false };
        // SAFETY: the caller's; the buffer holds the transposed product.
        unsafe {
            let rows_of_a = Matrix { start, ..a }.transposed();
            dot(kernel, Extents { m: n, n: rows, k }, b.transposed(), rows_of_a, turned, packing);
            let (to, columns) = (c.at(i, 0), Matrix { start: sums.as_ptr(), row: 1, col: rows as isize });
            match n {
                _ if c.add => add(columns, [rows, n], to),
                2 => interleave::<2>(columns, rows, to),
                3 => interleave::<3>(columns, rows, to),
                _ => pack(columns, [rows, n], to.start, to.row as usize),
            }
        }
    }
    packing.c = sums;
}

/// Adds a matrix to C.
///
/// # Safety
/// Both have so many rows and columns.
unsafe fn add(sums: Matrix<f32>, [rows, columns]: [usize; 2], c: Target<f32>) {
    for i in 0..rows {
        for j in 0..columns {
            // SAFETY: the caller's.
            unsafe { *c.at(i, j).start += *sums.at(i, j).start };
        }
    }
}

/// Writes a matrix of `N` columns, each of adjacent elements, to C.
///
/// # Safety
/// Both have so many rows.
unsafe fn interleave<const N: usize>(from: Matrix<f32>, rows: usize, c: Target<f32>) {
    // SAFETY: the caller's.
    let columns: [&[f32]; N] = std::array::from_fn(|j| unsafe { raw::slice(from.at(0, j).start, rows) });
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

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
use pallas_ir::DType;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
mod x86;

/// Rows of A up to which reading B takes longer than multiplying.
pub(crate) const ROWS: usize = 16;

/// A, B, and C, which the product is added to.
///
/// # Safety
/// The matrices hold these extents, B in the kernel's element type; the columns of A are adjacent, and so are the rows
/// or the columns of B; the processor has the kernel's features.
type NarrowFn = unsafe fn(Extents, Matrix<f32>, Matrix<u8>, Target<f32>);

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
const LOW: u8 = 0x0f;
const HIGH: u8 = 0xf0;

/// This machine's kernel for matrices of an element type, of which these bits count: other than all the halves of `u8` alone.
pub(crate) fn kernel(dtype: DType, bits: u8) -> Option<Kernel> {
    static KERNELS: OnceLock<Vec<(DType, u8, Kernel)>> = OnceLock::new();
    KERNELS.get_or_init(kernels).iter().find(|k| (k.0, k.1) == (dtype, bits)).map(|k| k.2)
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
            pack(a, [m, k], packing.a.as_mut_ptr().cast());
            a = Matrix { start: packing.a.as_ptr(), row: k as isize, col: 1 };
        }
        // A row of a few columns would fill a small part of a vector.
        let by_columns = n <= COLUMNS && k >= DEEP;
        if b.row != 1 && (b.col != 1 || by_columns) {
            reserve(&mut packing.b, k * n);
            let to = packing.b.as_mut_ptr().cast::<u8>();
            let from = if by_columns { b.transposed() } else { b };
            let lines = if by_columns { [n, k] } else { [k, n] };
            match kernel.bytes {
                1 => pack::<u8>(from.cast(), lines, to),
                2 => pack::<u16>(from.cast(), lines, to),
                _ => pack::<u32>(from.cast(), lines, to),
            }
            let packed = Matrix { start: to.cast_const(), row: lines[1] as isize, col: 1 };
            b = if by_columns { packed.transposed() } else { packed };
        }
        if n == 1 && b.row == 1 {
            // A column is not read as rows of one element each.
            b.col = k as isize + 1;
        }
        (kernel.run)(extents, a, b, c);
    }
}

/// Copies the rows of a matrix side by side.
///
/// # Safety
/// It has so many rows and columns, and `to` as many elements.
unsafe fn pack<T: Copy>(from: Matrix<T>, [rows, columns]: [usize; 2], to: *mut u8) {
    let mut to = to.cast::<T>();
    for i in 0..rows as isize {
        let mut at = from.start.wrapping_offset(i * from.row);
        for _ in 0..columns {
            // SAFETY: the caller's.
            unsafe { to.write(at.read()) };
            at = at.wrapping_offset(from.col);
            to = to.wrapping_add(1);
        }
    }
}

/// Columns of B up to which A is read once, as the other side of a product of a few rows, and fewest elements of its rows.
pub(crate) const COLUMNS: usize = 4;
pub(crate) const DEEP: usize = 32;

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
    let mut sums = std::mem::take(&mut packing.c);
    reserve(&mut sums, m * n);
    // SAFETY: the caller's; the buffer holds the transposed product.
    unsafe {
        let turned = Target { start: sums.as_mut_ptr(), row: m as isize, add: false };
        dot(kernel, Extents { m: n, n: m, k }, b.transposed(), a.transposed(), turned, packing);
        for i in 0..m {
            let to = c.at(i, 0).start;
            for j in 0..n {
                let sum = sums[j * m + i];
                *to.add(j) = if c.add { *to.add(j) + sum } else { sum };
            }
        }
    }
    packing.c = sums;
}

//! Very small products, of which a batch has many: sums are kept in registers, nothing is packed, and rows need no
//! calls.
use super::super::strips::compiled;
use super::{Extents, Matrix, Number, OutputMatrix};

/// Maximum multiply-adds of a tiny product, which is computed without packing or micro-kernels: for larger ones, their
/// preparation pays off.
pub(crate) const MAX_TINY_MULTIPLY_ADDS: usize = 512;
/// Maximum terms of the sums of a tiny product that is not one of a batch: the additions of a longer sum would wait
/// for each other.
pub(crate) const MAX_SINGLE_PRODUCT_TERMS: usize = 16;

/// A batch of products: their number, and the distances, in elements, from A, B and C of one product to those of the
/// next.
#[derive(Clone, Copy)]
pub(crate) struct ProductBatch {
    pub count: usize,
    pub apart: [isize; 3],
}

compiled! {
    /// Returns the function that computes `C (+)= A · B` for each product of a batch, compiled for this machine's
    /// vectors.
    ///
    /// # Safety
    /// A, B and C hold the extents at these strides; C overlaps neither A nor B.
    pub(crate) fastest_tiny_products<T: Number>() = compute_tiny_products(batch: ProductBatch, extents: Extents, a: Matrix<T>, b: Matrix<T>, c: OutputMatrix<T>)
}

/// Computes each product of a batch.
///
/// # Safety
/// See [`fastest_tiny_products`].
#[inline(always)]
unsafe fn compute_tiny_products<T: Number>(
    batch: ProductBatch,
    extents: Extents,
    a: Matrix<T>,
    b: Matrix<T>,
    c: OutputMatrix<T>,
) {
    let is_adjacent = b.col == 1;
    for i in 0..batch.count as isize {
        let [to_a, to_b, to_c] = batch.apart.map(|apart| i * apart);
        // SAFETY: the caller's.
        unsafe {
            let a = Matrix { start: a.start.offset(to_a), ..a };
            let b = Matrix { start: b.start.offset(to_b), ..b };
            let c = OutputMatrix { start: c.start.offset(to_c), ..c };
            if is_adjacent {
                compute_tiny_product::<T, true>(extents, a, b, c)
            } else {
                compute_tiny_product::<T, false>(extents, a, b, c)
            }
        }
    }
}

/// Computes one product, row by row.
///
/// # Safety
/// As [`fastest_tiny_products`] for one product; `ADJACENT` if the elements of each row of B are adjacent.
#[inline(always)]
unsafe fn compute_tiny_product<T: Number, const ADJACENT: bool>(
    extents: Extents,
    a: Matrix<T>,
    b: Matrix<T>,
    c: OutputMatrix<T>,
) {
    let Extents { m, n, k } = extents;
    for i in 0..m {
        let mut j = 0;
        // SAFETY: the caller's: the row and the columns exist.
        unsafe {
            let a = a.submatrix_at(i, 0);
            macro_rules! columns {
                ($width:literal) => {
                    compute_row_elements::<T, $width, ADJACENT>(k, a, b.submatrix_at(0, j), c.submatrix_at(i, j));
                    j += $width;
                };
            }
            while j + 8 <= n {
                columns!(8);
            }
            if j + 4 <= n {
                columns!(4);
            }
            if j + 2 <= n {
                columns!(2);
            }
            if j < n {
                compute_row_elements::<T, 1, ADJACENT>(k, a, b.submatrix_at(0, j), c.submatrix_at(i, j));
            }
        }
    }
}

/// Computes `W` elements of a row of C.
///
/// # Safety
/// As [`compute_tiny_product`], of one row and `W` columns.
#[inline(always)]
unsafe fn compute_row_elements<T: Number, const W: usize, const ADJACENT: bool>(
    k: usize,
    a: Matrix<T>,
    b: Matrix<T>,
    c: OutputMatrix<T>,
) {
    let mut sums = [T::default(); W];
    // SAFETY: the caller's.
    unsafe {
        for p in 0..k {
            let (x, row) = (*a.submatrix_at(0, p).start, b.submatrix_at(p, 0));
            for (j, sum) in sums.iter_mut().enumerate() {
                let y = if ADJACENT { *row.start.add(j) } else { *row.submatrix_at(0, j).start };
                *sum = T::multiply_add(*sum, x, y);
            }
        }
        let to = &mut *c.start.cast::<[T; W]>();
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = if c.add { T::add(*to, sum) } else { sum };
        }
    }
}

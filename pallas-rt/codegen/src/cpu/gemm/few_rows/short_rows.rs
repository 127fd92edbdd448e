//! Products of rows with few elements and a matrix with few columns: each row of the matrix is one vector, and the
//! vectors are summed for several rows at a time.
use super::super::super::strips::compiled;
use super::super::{Extents, Matrix, Number, OutputMatrix};
use super::{MAX_FEW_COLUMNS, MIN_LONG_COLUMN_ELEMENTS};

/// Rows whose sums are computed together in registers, since each addition waits for the one before it.
const ROWS_AT_ONCE: usize = 4;

/// Rows of the right side, each padded to a vector.
type PaddedRightSide = [[f32; MAX_FEW_COLUMNS]; MIN_LONG_COLUMN_ELEMENTS];

/// Returns true if [`fastest_thin_product`] is faster than the transposed product: B has few columns, and rows of A
/// have few elements, which are adjacent. Sums of 3 and 7 columns are compiled to parts of vectors, which are slow.
pub(super) fn is_thin_product_faster(Extents { n, k, .. }: Extents, a_column_stride: isize) -> bool {
    a_column_stride == 1 && k < MIN_LONG_COLUMN_ELEMENTS && n <= MAX_FEW_COLUMNS && !matches!(n, 3 | 7)
}

compiled! {
    /// Returns the function that computes `C (+)= A · B` where [`is_thin_product_faster`] is true, compiled for this
    /// machine's vectors.
    ///
    /// # Safety
    /// A, B and C hold the extents at these strides; C overlaps neither A nor B.
    pub(super) fastest_thin_product<>() = compute_thin_product(extents: Extents, a: Matrix<f32>, b: Matrix<f32>, c: OutputMatrix<f32>)
}

/// Copies the right side to rows of whole vectors, and computes the product.
///
/// # Safety
/// See [`fastest_thin_product`].
#[inline(always)]
unsafe fn compute_thin_product(extents: Extents, a: Matrix<f32>, b: Matrix<f32>, c: OutputMatrix<f32>) {
    let mut right: PaddedRightSide = [[0.0; MAX_FEW_COLUMNS]; MIN_LONG_COLUMN_ELEMENTS];
    for (p, row) in right[..extents.k].iter_mut().enumerate() {
        for (j, to) in row[..extents.n].iter_mut().enumerate() {
            // SAFETY: the caller's.
            *to = unsafe { *b.submatrix_at(p, j).start };
        }
    }
    // SAFETY: the caller's.
    unsafe {
        match extents.n {
            1 => compute_fixed_columns::<1>(extents, a, &right, c),
            2 => compute_fixed_columns::<2>(extents, a, &right, c),
            4 => compute_fixed_columns::<4>(extents, a, &right, c),
            5 => compute_fixed_columns::<5>(extents, a, &right, c),
            6 => compute_fixed_columns::<6>(extents, a, &right, c),
            _ => compute_fixed_columns::<MAX_FEW_COLUMNS>(extents, a, &right, c),
        }
    }
}

/// Computes all rows of a product with `N` columns, several rows at a time.
///
/// # Safety
/// See [`fastest_thin_product`], of `N` columns.
#[inline(always)]
unsafe fn compute_fixed_columns<const N: usize>(
    Extents { m, k, .. }: Extents,
    a: Matrix<f32>,
    right: &PaddedRightSide,
    c: OutputMatrix<f32>,
) {
    let whole = m / ROWS_AT_ONCE * ROWS_AT_ONCE;
    // SAFETY: the caller's: these rows exist.
    unsafe {
        for i in (0..whole).step_by(ROWS_AT_ONCE) {
            compute_fixed_rows::<N, ROWS_AT_ONCE>(k, a.submatrix_at(i, 0), right, c.submatrix_at(i, 0));
        }
        for i in whole..m {
            compute_fixed_rows::<N, 1>(k, a.submatrix_at(i, 0), right, c.submatrix_at(i, 0));
        }
    }
}

/// Computes `R` rows of a product with `N` columns.
///
/// # Safety
/// As [`compute_fixed_columns`], of `R` rows.
#[inline(always)]
unsafe fn compute_fixed_rows<const N: usize, const R: usize>(
    k: usize,
    a: Matrix<f32>,
    right: &PaddedRightSide,
    c: OutputMatrix<f32>,
) {
    let mut sums = [[0.0f32; MAX_FEW_COLUMNS]; R];
    // SAFETY: the caller's.
    unsafe {
        for (p, &row) in right[..k].iter().enumerate() {
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = *a.submatrix_at(i, p).start;
                for (sum, y) in sums.iter_mut().zip(row) {
                    *sum = f32::multiply_add(*sum, x, y);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let to = &mut *c.submatrix_at(i, 0).start.cast::<[f32; N]>();
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = if c.add { *to + sum } else { *sum };
            }
        }
    }
}

//! Products of rows with few elements and a matrix with few columns: each row of the matrix is one vector, and the
//! vectors are summed for several rows at a time.
use super::super::super::strips::compiled;
use super::super::{Extents, Matrix, Number, Target};
use super::{DEEP, FEW_COLUMNS};

/// Rows whose sums are computed together in registers, since each addition waits for the one before it.
const ROWS: usize = 4;

/// Rows of the right side, each padded to a vector.
type Right = [[f32; FEW_COLUMNS]; DEEP];

/// Returns true if a product is faster this way than transposed: rows of A have few adjacent elements. Sums of 3 and 7
/// columns are compiled to parts of vectors, which are slow.
pub(super) fn pays(Extents { n, k, .. }: Extents, col: isize) -> bool {
    col == 1 && k < DEEP && n <= FEW_COLUMNS && !matches!(n, 3 | 7)
}

compiled! {
    /// Returns the function that computes `C (+)= A · B` where [`pays`] is true, compiled for this machine's vectors.
    ///
    /// # Safety
    /// A, B and C hold the extents at these strides; C overlaps neither A nor B.
    pub(super) fastest<>() = all(extents: Extents, a: Matrix<f32>, b: Matrix<f32>, c: Target<f32>)
}

/// Copies the right side to rows of whole vectors, and computes the product.
///
/// # Safety
/// See [`fastest`].
#[inline(always)]
unsafe fn all(extents: Extents, a: Matrix<f32>, b: Matrix<f32>, c: Target<f32>) {
    let mut right: Right = [[0.0; FEW_COLUMNS]; DEEP];
    for (p, row) in right[..extents.k].iter_mut().enumerate() {
        for (j, to) in row[..extents.n].iter_mut().enumerate() {
            // SAFETY: the caller's.
            *to = unsafe { *b.at(p, j).start };
        }
    }
    // SAFETY: the caller's.
    unsafe {
        match extents.n {
            1 => columns::<1>(extents, a, &right, c),
            2 => columns::<2>(extents, a, &right, c),
            4 => columns::<4>(extents, a, &right, c),
            5 => columns::<5>(extents, a, &right, c),
            6 => columns::<6>(extents, a, &right, c),
            _ => columns::<FEW_COLUMNS>(extents, a, &right, c),
        }
    }
}

/// Computes all rows of a product with `N` columns, several rows at a time.
///
/// # Safety
/// See [`fastest`], of `N` columns.
#[inline(always)]
unsafe fn columns<const N: usize>(Extents { m, k, .. }: Extents, a: Matrix<f32>, right: &Right, c: Target<f32>) {
    let whole = m / ROWS * ROWS;
    // SAFETY: the caller's: these rows exist.
    unsafe {
        for i in (0..whole).step_by(ROWS) {
            rows::<N, ROWS>(k, a.at(i, 0), right, c.at(i, 0));
        }
        for i in whole..m {
            rows::<N, 1>(k, a.at(i, 0), right, c.at(i, 0));
        }
    }
}

/// Computes `R` rows of a product with `N` columns.
///
/// # Safety
/// As [`columns`], of `R` rows.
#[inline(always)]
unsafe fn rows<const N: usize, const R: usize>(k: usize, a: Matrix<f32>, right: &Right, c: Target<f32>) {
    let mut sums = [[0.0f32; FEW_COLUMNS]; R];
    // SAFETY: the caller's.
    unsafe {
        for (p, &row) in right[..k].iter().enumerate() {
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = *a.at(i, p).start;
                for (sum, y) in sums.iter_mut().zip(row) {
                    *sum = f32::step(*sum, x, y);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let to = &mut *c.at(i, 0).start.cast::<[f32; N]>();
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = if c.add { *to + sum } else { *sum };
            }
        }
    }
}

//! Copies of matrices to adjacent rows; columns of adjacent elements are transposed to rows in registers, square by
//! square.
use super::super::Matrix;

/// Copies a matrix so that the elements of each row are adjacent, and rows begin at a given distance, in elements.
///
/// # Safety
/// The matrix has these rows and columns, and there is room for them at `to`.
pub(super) unsafe fn pack_rows<T: Copy>(from: Matrix<T>, [rows, columns]: [usize; 2], to: *mut T, row_stride: usize) {
    let (wide, high) = (16 / size_of::<T>(), 4);
    let has_squares = cfg!(target_arch = "x86_64") && matches!(size_of::<T>(), 2 | 4);
    if has_squares && from.row == 1 && rows >= high && columns >= wide {
        // The last square overlaps the one before.
        for j in (0..columns).step_by(wide).map(|j| j.min(columns - wide)) {
            for p in (0..rows).step_by(high).map(|p| p.min(rows - high)) {
                // SAFETY: the caller's.
                unsafe { transpose_square(from.submatrix_at(p, j), to.add(p * row_stride + j), row_stride) };
            }
        }
        return;
    }
    for i in 0..rows {
        let (mut at, to) = (from.start.wrapping_offset(i as isize * from.row), to.wrapping_add(i * row_stride));
        for j in 0..columns {
            // SAFETY: the caller's.
            unsafe { to.add(j).write(at.read()) };
            at = at.wrapping_offset(from.col);
        }
    }
}

/// Transposes a square: four elements of each of as many columns as fill a 16-byte register.
///
/// # Safety
/// The elements have two or four bytes and exist, and `to` has room for them in rows at this distance.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn transpose_square<T: Copy>(from: Matrix<T>, to: *mut T, to_row_stride: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's; every x86-64 has these instructions.
    unsafe {
        let column = |j: usize| from.submatrix_at(0, j).start;
        // After this step, pairs of 2-byte elements are moved as 4-byte elements.
        let parts = [0, 1, 2, 3].map(|i| match size_of::<T>() {
            2 => {
                let [a, b] = [2 * i, 2 * i + 1].map(|j| _mm_loadl_epi64(column(j).cast()));
                _mm_unpacklo_epi16(a, b)
            }
            _ => _mm_loadu_si128(column(i).cast()),
        });
        let [a, b, c, d] = parts;
        let (low, high) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
        let (more_low, more_high) = (_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
        let all = [
            _mm_unpacklo_epi64(low, more_low),
            _mm_unpackhi_epi64(low, more_low),
            _mm_unpacklo_epi64(high, more_high),
            _mm_unpackhi_epi64(high, more_high),
        ];
        for (p, elements) in all.into_iter().enumerate() {
            _mm_storeu_si128(to.add(p * to_row_stride).cast(), elements);
        }
    }
}

/// Stands for the function of x86-64 on other processors, which never call it.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn transpose_square<T: Copy>(_: Matrix<T>, _: *mut T, _: usize) {
    unreachable!("only x86-64 has squares");
}

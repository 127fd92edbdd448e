//! Micro-kernels for `f32` with AVX2 and AVX-512, and the packing of transposed matrices.
use super::super::strips::has_avx2;
use super::{Matrix, MicroKernel, OutputMatrix};
use std::arch::x86_64::*;

/// Returns the micro-kernels for `f32` products that this machine supports, fastest first.
pub(super) fn supported_kernels() -> Vec<MicroKernel<f32>> {
    let mut all = vec![];
    if is_x86_feature_detected!("avx512f") {
        all.push(MicroKernel {
            name: "avx512 14x32",
            mr: 14,
            nr: 32,
            k_multiple: 1,
            run: avx512,
            half: Some((16, avx512_half)),
        });
    }
    if has_avx2() {
        all.push(MicroKernel {
            name: "avx2 6x16",
            mr: 6,
            nr: 16,
            k_multiple: 1,
            run: avx2,
            half: Some((8, avx2_half)),
        });
    }
    all
}

/// Defines a micro-kernel for a vector type: `R` rows of `V` vectors of sums. If the rows or the columns of A are
/// adjacent, its elements are read at constant distances; else each step computes the address of every row.
macro_rules! micro {
    ($steps:ident, $fixed:ident, $entry:ident, $features:literal, $lanes:literal, $vectors:literal, [$($rows:literal)*],
     $zero:ident, $load:ident, $store:ident, $splat:ident, $fma:ident, $add:ident) => {
        /// Computes `R` rows of a panel of C, with A's strides as constants where rows or columns are adjacent.
        ///
        /// # Safety
        /// See [`super::MicroKernelFn`].
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $fixed<const R: usize>(k: usize, a: Matrix<f32>, b: Matrix<f32>, c: OutputMatrix<f32>) {
            // SAFETY: the caller's.
            unsafe {
                match (a.row, a.col) {
                    (1, _) => $steps::<R, true, false>(k, a, b, c),
                    (_, 1) => $steps::<R, false, true>(k, a, b, c),
                    _ => $steps::<R, false, false>(k, a, b, c),
                }
            }
        }

        /// Computes `R` rows of a panel of C.
        ///
        /// # Safety
        /// See [`super::MicroKernelFn`]; `ROWS` if rows of A are adjacent, `COLUMNS` if its columns are.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $steps<const R: usize, const ROWS: bool, const COLUMNS: bool>(
            k: usize,
            a: Matrix<f32>,
            b: Matrix<f32>,
            c: OutputMatrix<f32>,
        ) {
            const V: usize = $vectors;
            let mut sums = [[$zero(); V]; R];
            // SAFETY: the caller's: every offset is inside of the extents.
            unsafe {
                let (mut a_at, mut b_at) = (a.start, b.start);
                let a = Matrix { row: if ROWS { 1 } else { a.row }, col: if COLUMNS { 1 } else { a.col }, ..a };
                for i in 0..R {
                    for v in 0..V {
                        _mm_prefetch::<_MM_HINT_T0>(c.submatrix_at(i, v * $lanes).start.cast());
                    }
                }
                let mut step = |a_at: *const f32, b_at: *const f32| {
                    let mut row = [$zero(); V];
                    for v in 0..V {
                        row[v] = $load(b_at.add(v * $lanes));
                        // The columns that the next panel reads in place.
                        _mm_prefetch::<_MM_HINT_T1>(b_at.wrapping_add((V + v) * $lanes).cast());
                    }
                    for i in 0..R {
                        let x = $splat(*a_at.offset(i as isize * a.row));
                        for v in 0..V {
                            sums[i][v] = $fma(x, row[v], sums[i][v]);
                        }
                    }
                };
                // Of rows at other distances, elements of several steps would be loaded early, into more registers
                // than there are.
                let fours = if COLUMNS { 0 } else { k / 4 };
                for _ in 0..fours {
                    step(a_at, b_at);
                    step(a_at.offset(a.col), b_at.offset(b.row));
                    step(a_at.offset(2 * a.col), b_at.offset(2 * b.row));
                    step(a_at.offset(3 * a.col), b_at.offset(3 * b.row));
                    (a_at, b_at) = (a_at.wrapping_offset(4 * a.col), b_at.wrapping_offset(4 * b.row));
                }
                for _ in 4 * fours..k {
                    step(a_at, b_at);
                    (a_at, b_at) = (a_at.wrapping_offset(a.col), b_at.wrapping_offset(b.row));
                }
                for i in 0..R {
                    for v in 0..V {
                        let at = c.submatrix_at(i, v * $lanes).start;
                        $store(at, if c.add { $add($load(at), sums[i][v]) } else { sums[i][v] });
                    }
                }
            }
        }
        of_rows! { $entry<f32> = $fixed, $features, [$($rows)*] }
    };
}
micro! {
    avx512_steps, avx512_rows, avx512, "avx512f", 16, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14],
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps
}
micro! {
    avx512_half_steps, avx512_half_rows, avx512_half, "avx512f", 16, 1, [1 2 3 4 5 6 7 8 9 10 11 12 13 14],
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps
}
micro! {
    avx2_half_steps, avx2_half_rows, avx2_half, "avx2,fma", 8, 1, [1 2 3 4 5 6],
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps
}
micro! {
    avx2_steps, avx2_rows, avx2, "avx2,fma", 8, 2, [1 2 3 4 5 6],
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps
}

/// Packs `width` columns, each of `k` adjacent elements, into a panel of `nr` columns, by transposing 8x8 blocks: a
/// cache line of each of eight columns at a time, which is read once, so that rows of the panel are written in order.
///
/// # Safety
/// Columns begin at the given distance, in elements; the panel holds `k * nr` elements of 4 bytes; the machine has
/// AVX2.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn pack_transposed(
    from: *const f32,
    column_stride: isize,
    k: usize,
    width: usize,
    nr: usize,
    to: *mut f32,
) {
    // SAFETY: the caller's; blocks of 8 stay inside of both.
    unsafe {
        if width < 8 || k < 8 {
            for j in 0..width {
                (0..k).for_each(|p| *to.add(p * nr + j) = *from.offset(j as isize * column_stride).add(p));
            }
            return;
        }
        for line in (0..k).step_by(16) {
            // The last block overlaps the one before.
            for j in (0..width).step_by(8).map(|j| j.min(width - 8)) {
                let column = from.offset(j as isize * column_stride);
                for p in [line, line + 8].into_iter().filter(|&p| p < k).map(|p| p.min(k - 8)) {
                    transpose_8x8(column.add(p), column_stride, to.add(p * nr + j), nr);
                }
            }
        }
    }
}

/// Packs `k` rows of `nr` adjacent elements, a multiple of 8, into a panel.
///
/// # Safety
/// Rows begin at the given distance, in elements; the panel holds `k * nr` elements of 4 bytes; the machine has AVX2.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn pack_rows(from: *const f32, row_stride: isize, k: usize, nr: usize, to: *mut f32) {
    for p in 0..k {
        // SAFETY: the caller's.
        unsafe {
            let (from, to) = (from.offset(p as isize * row_stride), to.add(p * nr));
            (0..nr).step_by(8).for_each(|j| _mm256_storeu_ps(to.add(j), _mm256_loadu_ps(from.add(j))));
        }
    }
}

/// Transposes an 8x8 block of f32.
///
/// # Safety
/// Both places hold eight rows of eight elements, at these row strides; the machine has AVX2.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn transpose_8x8(from: *const f32, from_row_stride: isize, to: *mut f32, to_row_stride: usize) {
    // SAFETY: the caller's.
    unsafe {
        // Rows i and i + 4 in one register: the two halves then transpose side by side.
        let pair = |i: isize, at: usize| {
            let low = _mm256_castps128_ps256(_mm_loadu_ps(from.offset(i * from_row_stride).add(at)));
            _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(from.offset((i + 4) * from_row_stride).add(at)))
        };
        for half in [0, 4] {
            let (r0, r1, r2, r3) = (pair(0, half), pair(1, half), pair(2, half), pair(3, half));
            let (t0, t1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
            let (t2, t3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
            _mm256_storeu_ps(to.add(half * to_row_stride), _mm256_shuffle_ps::<0x44>(t0, t2));
            _mm256_storeu_ps(to.add((half + 1) * to_row_stride), _mm256_shuffle_ps::<0xee>(t0, t2));
            _mm256_storeu_ps(to.add((half + 2) * to_row_stride), _mm256_shuffle_ps::<0x44>(t1, t3));
            _mm256_storeu_ps(to.add((half + 3) * to_row_stride), _mm256_shuffle_ps::<0xee>(t1, t3));
        }
    }
}

//! Products whose elements are multiplied in pairs: two neighbours along k form a 32-bit word, and one instruction
//! multiplies two words element by element and adds both products to a sum. `i8` is widened to pairs of `i16` with
//! `i32` sums, which is exact: two products of bytes fit an `i32`, whose sums wrap. `bf16` has `f32` sums; elements
//! below 2^-126 count as zero there.
//!
//! Both sides are packed into buffers of words: A by rows, or by pairs of columns if its columns are adjacent in
//! memory; B as panels, with a row of words for each pair of its rows.
use super::super::strips::has_avx2;
use super::few_rows::MAX_NARROW_ROWS;
use super::{
    Extents, Matrix, MicroKernel, Number, OutputMatrix, PackingBuffers, compute_panel, ensure_buffer_length,
    pack_zero_padded_panel,
};
use crate::raw;
use half::bf16;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Maximum number of terms, along k, that one pass over C multiplies and adds.
const KC: usize = 512;
/// Columns of B packed at a time.
const NC: usize = 512;

/// An element type of products whose terms are taken in pairs: one instruction multiplies two pairs and adds both
/// products to a sum.
pub(crate) trait PairedElement: Copy {
    /// The type of sums, which has the size of a word.
    type Sum: Number;
    /// The element 0, which stands for missing elements of packed pairs.
    const ZERO: Self;
    /// True if a word consists of the bytes of its two elements, so that rows can be copied to rows of words.
    const CAN_COPY_PAIRS: bool;
    /// Returns two neighbours along k as one word.
    fn pack_pair(first: Self, second: Self) -> Self::Sum;
    /// Returns every kernel that this machine can run, fastest first.
    fn supported_kernels() -> Vec<MicroKernel<Self::Sum>>;
}

impl PairedElement for i8 {
    type Sum = i32;
    const ZERO: i8 = 0;
    const CAN_COPY_PAIRS: bool = false;
    #[inline(always)]
    fn pack_pair(first: i8, second: i8) -> i32 {
        i32::from(first) & 0xffff | i32::from(second) << 16
    }
    fn supported_kernels() -> Vec<MicroKernel<i32>> {
        #[allow(unused_mut, reason = "other processors have none")]
        let mut all = vec![];
        #[cfg(target_arch = "x86_64")]
        {
            if has_avx2() && is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512f") {
                all.push(MicroKernel { name: "avx512 vnni 8x32", mr: 8, nr: 32, k_multiple: 1, run: vnni, half: None });
            }
            if has_avx2() {
                all.push(MicroKernel { name: "avx2 6x16", mr: 6, nr: 16, k_multiple: 1, run: avx2, half: None });
            }
        }
        all
    }
}

impl PairedElement for bf16 {
    type Sum = f32;
    const ZERO: bf16 = bf16::ZERO;
    const CAN_COPY_PAIRS: bool = cfg!(target_endian = "little");
    #[inline(always)]
    fn pack_pair(first: bf16, second: bf16) -> f32 {
        f32::from_bits(u32::from(first.to_bits()) | u32::from(second.to_bits()) << 16)
    }
    fn supported_kernels() -> Vec<MicroKernel<f32>> {
        #[allow(unused_mut, reason = "other processors have none")]
        let mut all = vec![];
        #[cfg(target_arch = "x86_64")]
        all.extend(super::amx::bf16_kernel());
        #[cfg(target_arch = "x86_64")]
        if has_avx2() && is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512f") {
            all.push(MicroKernel {
                name: "avx512 bf16 8x32",
                mr: 8,
                nr: 32,
                k_multiple: 1,
                run: bf16_avx512,
                half: None,
            });
        }
        all
    }
}

/// Returns this machine's fastest kernel for bytes; without one, bytes are widened and multiplied as `i32`.
pub(crate) fn fastest_i8_kernel() -> Option<MicroKernel<i32>> {
    static FASTEST_KERNEL: OnceLock<Option<MicroKernel<i32>>> = OnceLock::new();
    *FASTEST_KERNEL.get_or_init(|| i8::supported_kernels().first().copied())
}

/// Returns this machine's fastest kernel for `bf16`; without one, they are widened and multiplied as `f32`.
pub(crate) fn fastest_bf16_kernel() -> Option<MicroKernel<f32>> {
    static FASTEST_KERNEL: OnceLock<Option<MicroKernel<f32>>> = OnceLock::new();
    *FASTEST_KERNEL.get_or_init(|| bf16::supported_kernels().first().copied())
}

/// Returns true if a product of bf16 is faster in pairs than by the kernels for few rows, which widen the right side
/// in registers.
///
/// The limits of rows and terms are measured on a Zen 4. Columns with adjacent elements are pairs already, and long
/// enough for one pass; the kernels for few rows read 16 terms of them at a time.
pub(crate) fn is_pairwise_dot_faster(
    rows: usize,
    columns: usize,
    terms: usize,
    has_adjacent_column_elements: bool,
) -> bool {
    let least = match terms {
        0..16 => MAX_NARROW_ROWS + 1,
        16..=128 if has_adjacent_column_elements => 2,
        129..=512 if has_adjacent_column_elements => 4,
        _ => 12,
    };
    rows >= least && columns >= MAX_NARROW_ROWS
}

/// Computes `C (+)= A · B`. With `k = 0`, C is set to zero, or left as it is if the product is added to it.
///
/// # Safety
/// A, B and C hold these extents at these strides; C overlaps neither; the machine runs the kernel.
pub(crate) unsafe fn dot<E: PairedElement>(
    kernel: MicroKernel<E::Sum>,
    Extents { m, n, k }: Extents,
    a: Matrix<E>,
    b: Matrix<E>,
    c: OutputMatrix<E::Sum>,
    packing: &mut PackingBuffers<E::Sum>,
) {
    let MicroKernel { mr, nr, k_multiple: deep, .. } = kernel;
    if [m, n, k].contains(&0) {
        // SAFETY: C has m rows of n elements.
        return unsafe { c.zero_unless_adding(m, n) };
    }
    let turns = a.row == 1 && deep > 1;
    ensure_buffer_length(&mut packing.c, (mr.max(KC / 2) * nr).max(if turns { m * KC / 2 } else { 0 }));
    for p in (0..k).step_by(KC) {
        let depth = KC.min(k - p);
        let words = depth.div_ceil(2).next_multiple_of(deep);
        ensure_buffer_length(&mut packing.a, m.next_multiple_of(deep) * words);
        let by_rows = a.row != 1 || turns;
        // SAFETY: columns p.. of A exist, and the buffers hold all of its words.
        unsafe {
            let (a, to) = (a.submatrix_at(0, p), packing.a.as_mut_ptr());
            if turns {
                let pairs = depth.div_ceil(2);
                pack_panel_in_pairs(a.transposed(), depth, pairs, m, m, packing.c.as_mut_ptr());
                let words_of_rows = Matrix { start: packing.c.as_ptr(), row: 1, col: m as isize };
                pack_zero_padded_panel(words_of_rows, m, pairs, words, to);
            } else if by_rows {
                pack_rows_in_pairs(a, m, depth, words, to);
            } else {
                pack_panel_in_pairs(a.transposed(), depth, words, m, m, to);
            }
        }
        let (row, col) = if by_rows { (words as isize, 1) } else { (1, m as isize) };
        let left = Matrix { start: packing.a.as_ptr(), row, col };
        for j in (0..n).step_by(NC) {
            let together = NC.min(n - j);
            ensure_buffer_length(&mut packing.b, together.next_multiple_of(nr) * words);
            for at in (0..together).step_by(nr) {
                let width = nr.min(together - at);
                let panel = packing.b[at * words..].as_mut_ptr();
                // SAFETY: the panel's columns exist, the buffer holds every panel; C's rows and columns are the
                // caller's.
                unsafe {
                    if b.row == 1 {
                        pack_rows_in_pairs(
                            b.submatrix_at(p, j + at).transposed(),
                            width,
                            depth,
                            words,
                            packing.c.as_mut_ptr(),
                        );
                        let columns_of_words = Matrix { start: packing.c.as_ptr(), row: 1, col: words as isize };
                        pack_zero_padded_panel(columns_of_words, words, width, nr, panel);
                    } else {
                        pack_panel_in_pairs(b.submatrix_at(p, j + at), depth, words, width, nr, panel);
                    }
                    let panel = Matrix { start: panel.cast_const(), row: nr as isize, col: 1 };
                    let c = OutputMatrix { add: c.add || p > 0, ..c.submatrix_at(0, j + at) };
                    compute_panel(
                        kernel,
                        m,
                        width,
                        words,
                        |i| left.submatrix_at(i, 0),
                        panel,
                        c,
                        packing.c.as_mut_ptr(),
                    );
                }
            }
        }
    }
}

/// Packs rows of A as rows of words; an odd last element is paired with zero, and the words after it are zero.
///
/// # Safety
/// The matrix holds `rows` x `k` elements, the buffer as many rows of words; a row has at least `k / 2` words.
unsafe fn pack_rows_in_pairs<E: PairedElement>(
    a: Matrix<E>,
    rows: usize,
    k: usize,
    words_per_row: usize,
    to: *mut E::Sum,
) {
    // SAFETY: the caller's.
    unsafe {
        for i in 0..rows {
            let to = raw::slice_mut(to.add(i * words_per_row), words_per_row);
            let row = a.submatrix_at(i, 0);
            let at = |p: usize| *row.start.offset(p as isize * row.col);
            if row.col == 1 && E::CAN_COPY_PAIRS {
                std::ptr::copy_nonoverlapping(row.start, to.as_mut_ptr().cast(), k / 2 * 2);
            } else if row.col == 1 {
                let row = raw::slice(row.start, k);
                to.iter_mut().zip(row.chunks_exact(2)).for_each(|(w, x)| *w = E::pack_pair(x[0], x[1]));
            } else {
                (0..k / 2).for_each(|p| to[p] = E::pack_pair(at(2 * p), at(2 * p + 1)));
            }
            if k % 2 == 1 {
                to[k / 2] = E::pack_pair(at(k - 1), E::ZERO);
            }
            to[k.div_ceil(2)..].fill(E::Sum::default());
        }
    }
}

/// Packs `width` columns of B as a panel of at least as many columns, with a row of words for each pair of rows;
/// missing elements are zero.
///
/// # Safety
/// The matrix holds `k` x `width` elements, the panel `words` rows of as many words as it has columns; `words` is at
/// least `k / 2`.
unsafe fn pack_panel_in_pairs<E: PairedElement>(
    b: Matrix<E>,
    k: usize,
    words: usize,
    width: usize,
    panel_columns: usize,
    to: *mut E::Sum,
) {
    // SAFETY: the caller's.
    unsafe {
        let panel = raw::slice_mut(to, words * panel_columns);
        let begun = if width < panel_columns { 0 } else { k.div_ceil(2) * panel_columns };
        panel[begun..].fill(E::Sum::default());
        let panel = &mut panel[..k.div_ceil(2) * panel_columns];
        if b.col == 1 {
            let row = |p: usize| raw::slice(b.submatrix_at(p, 0).start, width);
            for (p, words) in panel.chunks_exact_mut(panel_columns).enumerate() {
                if 2 * p + 1 < k {
                    let pairs = row(2 * p).iter().zip(row(2 * p + 1));
                    words.iter_mut().zip(pairs).for_each(|(w, (&x, &y))| *w = E::pack_pair(x, y));
                } else {
                    words.iter_mut().zip(row(2 * p)).for_each(|(w, &x)| *w = E::pack_pair(x, E::ZERO));
                }
            }
            return;
        }
        for j in 0..width {
            let at = |p: usize| *b.submatrix_at(p, j).start;
            (0..k / 2).for_each(|p| panel[p * panel_columns + j] = E::pack_pair(at(2 * p), at(2 * p + 1)));
            if k % 2 == 1 {
                panel[k / 2 * panel_columns + j] = E::pack_pair(at(k - 1), E::ZERO);
            }
        }
    }
}

/// Defines a micro-kernel for a vector type: `R` rows of two vectors of sums.
#[cfg(target_arch = "x86_64")]
macro_rules! micro {
    ($Sum:ty, $fixed:ident, $entry:ident, $features:literal, $lanes:literal, [$($rows:literal)*],
     $zero:ident, $load:ident, $store:ident, $splat:ident, $add:ident, |$s:ident, $x:ident, $y:ident| $step:expr) => {
        /// Computes `R` rows of a panel of C, from `words` words along k.
        ///
        /// # Safety
        /// See [`super::MicroKernelFn`]; the rows of the panel are adjacent.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $fixed<const R: usize>(words: usize, a: Matrix<$Sum>, b: Matrix<$Sum>, c: OutputMatrix<$Sum>) {
            let mut sums = [[$zero(); 2]; R];
            // SAFETY: the caller's: every offset is inside of the extents.
            unsafe {
                for p in 0..words {
                    let b = b.start.add(2 * p * $lanes);
                    let row = [$load(b.cast()), $load(b.add($lanes).cast())];
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let $x = $splat(*a.submatrix_at(i, p).start);
                        for ($s, $y) in sums.iter_mut().zip(row) {
                            *$s = $step;
                        }
                    }
                }
                for (i, sums) in sums.iter().enumerate() {
                    for (v, &sum) in sums.iter().enumerate() {
                        let at = c.submatrix_at(i, v * $lanes).start;
                        $store(at.cast(), if c.add { $add($load(at.cast()), sum) } else { sum });
                    }
                }
            }
        }
        of_rows! { $entry<$Sum> = $fixed, $features, [$($rows)*] }
    };
}
#[cfg(target_arch = "x86_64")]
micro! {
    i32, vnni_rows, vnni, "avx512f,avx512vnni", 16, [1 2 3 4 5 6 7 8],
    _mm512_setzero_si512, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_set1_epi32, _mm512_add_epi32,
    |s, x, y| _mm512_dpwssd_epi32(*s, x, y)
}
#[cfg(target_arch = "x86_64")]
micro! {
    i32, avx2_rows, avx2, "avx2", 8, [1 2 3 4 5 6],
    _mm256_setzero_si256, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_set1_epi32, _mm256_add_epi32,
    |s, x, y| _mm256_add_epi32(*s, _mm256_madd_epi16(x, y))
}
// SAFETY of the conversions: vectors of the same size, of which every pattern is a value.
#[cfg(target_arch = "x86_64")]
micro! {
    f32, bf16_rows, bf16_avx512, "avx512f,avx512bf16", 16, [1 2 3 4 5 6 7 8],
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_add_ps,
    |s, x, y| _mm512_dpbf16_ps(*s, std::mem::transmute::<__m512, __m512bh>(x), std::mem::transmute::<__m512, __m512bh>(y))
}

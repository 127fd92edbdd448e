//! `i8` products with `i32` sums: neighbours along k are a pair of `i16` in one word, and one instruction multiplies two
//! pairs and adds both products. Exact: two products of bytes fit an `i32`, whose sums wrap.
//!
//! Both sides are widened into buffers of words: A by rows, or by pairs of columns if it lies so; B as panels, a row of
//! words for each pair of its rows.
#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{Extents, Matrix, Packing, reserve};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// `rows`, words along k, A's words, a panel of B, C with its row distance, whether to add to C.
///
/// # Safety
/// A holds `rows` rows of words, B as many rows of a panel, C `rows` rows of a panel's width; `rows` is at most the
/// kernel's `mr`; the processor has the kernel's features.
type MicroFn = unsafe fn(usize, usize, Matrix<i32>, *const i32, *mut i32, isize, bool);

/// A micro-kernel and the shape of its panels.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    #[cfg_attr(not(test), allow(dead_code, reason = "tests name the kernel that failed"))]
    pub(super) name: &'static str,
    mr: usize,
    nr: usize,
    run: MicroFn,
}

/// Elements of k in one pass, and columns packed at a time.
const KC: usize = 512;
const NC: usize = 512;

/// The best kernel of this machine; without one, bytes are widened and multiplied as `i32`.
pub(crate) fn kernel() -> Option<Kernel> {
    static CHOICE: OnceLock<Option<Kernel>> = OnceLock::new();
    *CHOICE.get_or_init(|| kernels().first().copied())
}

/// Every kernel this machine can run, best first.
pub(super) fn kernels() -> Vec<Kernel> {
    #[allow(unused_mut, reason = "other processors have none")]
    let mut all = vec![];
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_avx2() && is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512f") {
            all.push(Kernel { name: "avx512 vnni 8x32", mr: 8, nr: 32, run: vnni });
        }
        if x86::has_avx2() {
            all.push(Kernel { name: "avx2 6x16", mr: 6, nr: 16, run: avx2 });
        }
    }
    all
}

/// `C (+)= A · B`; rows of C are `ldc` apart, its columns adjacent. With `k = 0` C becomes zero, or stays.
///
/// # Safety
/// A, B and C hold these extents at these strides; C overlaps neither; the machine runs the kernel.
#[allow(clippy::too_many_arguments, reason = "a product has this many")]
pub(crate) unsafe fn dot(
    kernel: Kernel,
    Extents { m, n, k }: Extents,
    a: Matrix<i8>,
    b: Matrix<i8>,
    c: *mut i32,
    ldc: isize,
    accumulate: bool,
    packing: &mut Packing<i32>,
) {
    let Kernel { mr, nr, run, .. } = kernel;
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 && !accumulate {
        // SAFETY: C has m rows of n elements.
        (0..m).for_each(|i| unsafe { std::slice::from_raw_parts_mut(c.offset(i as isize * ldc), n).fill(0) });
    }
    reserve(&mut packing.c, mr.max(KC / 2) * nr);
    for p in (0..k).step_by(KC) {
        let depth = KC.min(k - p);
        let words = depth.div_ceil(2);
        reserve(&mut packing.a, m * words);
        let by_rows = a.row != 1;
        // SAFETY: columns p.. of A exist, and the buffer holds all of its words.
        unsafe {
            match by_rows {
                true => pack_rows(a.at(0, p), m, depth, packing.a.as_mut_ptr()),
                false => pack_panel(a.at(0, p).transposed(), depth, m, m, packing.a.as_mut_ptr()),
            }
        }
        let (row, col) = if by_rows { (words as isize, 1) } else { (1, m as isize) };
        let left = Matrix { start: packing.a.as_ptr(), row, col };
        let accumulate = accumulate || p > 0;
        for j in (0..n).step_by(NC) {
            let columns = NC.min(n - j);
            reserve(&mut packing.b, columns.next_multiple_of(nr) * words);
            for at in (0..columns).step_by(nr) {
                let width = nr.min(columns - at);
                let panel = packing.b[at * words..].as_mut_ptr();
                // SAFETY: the panel's columns exist, the buffer holds every panel; C's rows and columns are the caller's.
                unsafe {
                    #[cfg(target_arch = "x86_64")]
                    if b.row == 1 {
                        pack_rows(b.at(p, j + at).transposed(), width, depth, packing.c.as_mut_ptr());
                        panel_of_rows(packing.c.as_ptr(), words, width, nr, panel);
                    } else {
                        pack_panel(b.at(p, j + at), depth, width, nr, panel);
                    }
                    #[cfg(not(target_arch = "x86_64"))]
                    pack_panel(b.at(p, j + at), depth, width, nr, panel);
                    for i in (0..m).step_by(mr) {
                        let rows = mr.min(m - i);
                        let left = left.at(i, 0);
                        let c = c.offset(i as isize * ldc).add(j + at);
                        if width == nr {
                            run(rows, words, left, panel, c, ldc, accumulate);
                            continue;
                        }
                        let sums = packing.c.as_mut_ptr();
                        run(rows, words, left, panel, sums, nr as isize, false);
                        for r in 0..rows {
                            let to = std::slice::from_raw_parts_mut(c.offset(r as isize * ldc), width);
                            let from = std::slice::from_raw_parts(sums.add(r * nr), width);
                            for (c, s) in to.iter_mut().zip(from) {
                                *c = if accumulate { c.wrapping_add(*s) } else { *s };
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Two neighbours along k as one word.
#[inline(always)]
fn pair(first: i8, second: i8) -> i32 {
    i32::from(first) & 0xffff | i32::from(second) << 16
}

/// Rows of A as rows of words; an odd last element is paired with zero.
///
/// # Safety
/// The matrix holds `rows` x `k` elements, the buffer as many rows of words.
unsafe fn pack_rows(a: Matrix<i8>, rows: usize, k: usize, to: *mut i32) {
    let words = k.div_ceil(2);
    // SAFETY: the caller's.
    unsafe {
        for i in 0..rows {
            let to = std::slice::from_raw_parts_mut(to.add(i * words), words);
            let row = a.at(i, 0);
            let at = |p: usize| *row.start.offset(p as isize * row.col);
            if row.col == 1 {
                let row = std::slice::from_raw_parts(row.start, k);
                to.iter_mut().zip(row.chunks_exact(2)).for_each(|(w, x)| *w = pair(x[0], x[1]));
            } else {
                (0..k / 2).for_each(|p| to[p] = pair(at(2 * p), at(2 * p + 1)));
            }
            if k % 2 == 1 {
                to[words - 1] = pair(at(k - 1), 0);
            }
        }
    }
}

/// `width` columns of B as a panel of `nr`: a row of words for each pair of rows; what is missing is zero.
///
/// # Safety
/// The matrix holds `k` x `width` elements, the panel as many rows of `nr` words.
unsafe fn pack_panel(b: Matrix<i8>, k: usize, width: usize, nr: usize, to: *mut i32) {
    let words = k.div_ceil(2);
    // SAFETY: the caller's.
    unsafe {
        let panel = std::slice::from_raw_parts_mut(to, words * nr);
        if width < nr {
            panel.fill(0);
        }
        if b.col == 1 {
            let row = |p: usize| std::slice::from_raw_parts(b.at(p, 0).start, width);
            for (p, words) in panel.chunks_exact_mut(nr).enumerate() {
                if 2 * p + 1 < k {
                    let pairs = row(2 * p).iter().zip(row(2 * p + 1));
                    words.iter_mut().zip(pairs).for_each(|(w, (&x, &y))| *w = pair(x, y));
                } else {
                    words.iter_mut().zip(row(2 * p)).for_each(|(w, &x)| *w = pair(x, 0));
                }
            }
            return;
        }
        for j in 0..width {
            let at = |p: usize| *b.at(p, j).start;
            (0..k / 2).for_each(|p| panel[p * nr + j] = pair(at(2 * p), at(2 * p + 1)));
            if k % 2 == 1 {
                panel[(words - 1) * nr + j] = pair(at(k - 1), 0);
            }
        }
    }
}

/// Rows of words, one for each column of B, as a panel.
///
/// # Safety
/// There are `width` rows, the panel holds `words` x `nr`; the machine has AVX2, as all with a kernel here.
#[cfg(target_arch = "x86_64")]
unsafe fn panel_of_rows(rows: *const i32, words: usize, width: usize, nr: usize, to: *mut i32) {
    // SAFETY: the caller's; a word is as large as the elements that are moved.
    unsafe {
        if width < nr {
            std::slice::from_raw_parts_mut(to, words * nr).fill(0);
        }
        x86::pack_transposed(rows.cast(), words as isize, words, width, nr, to.cast());
    }
}

/// One micro-kernel over a vector type: `R` rows of two vectors of sums.
#[cfg(target_arch = "x86_64")]
macro_rules! micro {
    ($fixed:ident, $entry:ident, $features:literal, $lanes:literal, [$($rows:literal)*],
     $zero:ident, $load:ident, $store:ident, $splat:ident, $add:ident, |$s:ident, $x:ident, $y:ident| $step:expr) => {
        /// # Safety
        /// See [`MicroFn`].
        #[inline]
        #[target_feature(enable = $features)]
        #[allow(clippy::too_many_arguments, reason = "a product has this many")]
        unsafe fn $fixed<const R: usize>(
            words: usize,
            a: Matrix<i32>,
            b: *const i32,
            c: *mut i32,
            cs: isize,
            add: bool,
        ) {
            let mut sums = [[$zero(); 2]; R];
            // SAFETY: the caller's: every offset is inside of the extents.
            unsafe {
                for p in 0..words {
                    let b = b.add(2 * p * $lanes);
                    let row = [$load(b.cast()), $load(b.add($lanes).cast())];
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let $x = $splat(*a.at(i, p).start);
                        for ($s, $y) in sums.iter_mut().zip(row) {
                            *$s = $step;
                        }
                    }
                }
                for (i, sums) in sums.iter().enumerate() {
                    for (v, &sum) in sums.iter().enumerate() {
                        let at = c.offset(i as isize * cs).add(v * $lanes);
                        $store(at.cast(), if add { $add($load(at.cast()), sum) } else { sum });
                    }
                }
            }
        }
        /// # Safety
        /// See [`MicroFn`].
        #[target_feature(enable = $features)]
        #[allow(clippy::too_many_arguments, reason = "a product has this many")]
        unsafe fn $entry(
            rows: usize,
            words: usize,
            a: Matrix<i32>,
            b: *const i32,
            c: *mut i32,
            cs: isize,
            add: bool,
        ) {
            // SAFETY: the caller's.
            unsafe {
                match rows {
                    $($rows => $fixed::<$rows>(words, a, b, c, cs, add),)*
                    _ => unreachable!("a kernel is called with at most its own rows"),
                }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
micro! {
    vnni_rows, vnni, "avx512f,avx512vnni", 16, [1 2 3 4 5 6 7 8],
    _mm512_setzero_si512, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_set1_epi32, _mm512_add_epi32,
    |s, x, y| _mm512_dpwssd_epi32(*s, x, y)
}
#[cfg(target_arch = "x86_64")]
micro! {
    avx2_rows, avx2, "avx2", 8, [1 2 3 4 5 6],
    _mm256_setzero_si256, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_set1_epi32, _mm256_add_epi32,
    |s, x, y| _mm256_add_epi32(*s, _mm256_madd_epi16(x, y))
}

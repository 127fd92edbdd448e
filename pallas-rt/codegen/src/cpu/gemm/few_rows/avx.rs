//! Kernels for AVX2 and AVX-512 of products with few rows.
use super::super::super::strips::has_avx2;
use super::super::{Extents, Matrix, OutputMatrix};
use super::{
    HIGH_NIBBLE_MASK, LOW_NIBBLE_MASK, MatrixParts, NarrowKernel, PREFETCH_DISTANCE_PARTS, WHOLE_ELEMENT_MASK,
    pack_rows,
};
use half::{bf16, f16};
use pallas_ir::DType;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

mod horizontal_sums;
mod row_prefetcher;
mod weights;

use horizontal_sums::{horizontal_sums_of_eight, horizontal_sums_of_sixteen};
use row_prefetcher::{CACHE_LINE_BYTES, RowPrefetcher};
use weights::{MaskedByte, NibblePair, WeightElement};

/// Bytes of a block of rows of B: the second-level cache holds it and the next one.
const BLOCK_BYTES: usize = 1 << 17;
/// Minimum rows of B in a block; as many are prefetched meanwhile.
const MIN_BLOCK_ROWS: usize = 8;
/// Minimum rows of A whose elements of a column are copied side by side, in blocks: the distance of the rows need not
/// be held in registers, of which more rows leave too few.
const MIN_INTERLEAVED_ROWS: usize = 8;
/// Columns of B that are read together, if they are short.
const SHORT_COLUMNS_AT_ONCE: usize = 16;
/// Minimum bytes of a column that the processor prefetches as a stream of its own.
const MIN_LONG_COLUMN_BYTES: usize = 2048;
/// Number of long columns of B that are read together.
const LONG_COLUMNS_AT_ONCE: usize = 4;

/// Returns true if the processor has all features that the AVX-512 kernels are compiled for.
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl")
}

/// Appends the kernels for both halves of bytes, fastest first.
pub(super) fn push_nibble_kernels(all: &mut Vec<NarrowKernel>) {
    let mut add = |run, name| all.push(NarrowKernel { run, bytes: 1, name });
    if has_avx2() && is_x86_feature_detected!("f16c") {
        if has_avx512() {
            add(avx512::<NibblePair>, "avx512");
        }
        add(avx2::<NibblePair>, "avx2");
    }
}

/// Appends the kernels for each element type and mask, fastest first.
pub(super) fn push_narrow_kernels(all: &mut Vec<(DType, u8, NarrowKernel)>) {
    macro_rules! of_types {
        ($entry:ident, $name:literal) => {
            of_types!(@ $entry, $name, WHOLE_ELEMENT_MASK F32 f32, WHOLE_ELEMENT_MASK F16 f16, WHOLE_ELEMENT_MASK Bf16 bf16, WHOLE_ELEMENT_MASK I8 i8, WHOLE_ELEMENT_MASK U8 MaskedByte<WHOLE_ELEMENT_MASK>,
                LOW_NIBBLE_MASK U8 MaskedByte<LOW_NIBBLE_MASK>, HIGH_NIBBLE_MASK U8 MaskedByte<HIGH_NIBBLE_MASK>)
        };
        (@ $entry:ident, $name:literal, $($bits:ident $V:ident $T:ty),*) => {
            all.extend([$((DType::$V, $bits, NarrowKernel { run: $entry::<$T>, bytes: size_of::<$T>(), name: $name })),*])
        };
    }
    if has_avx2() && is_x86_feature_detected!("f16c") {
        if has_avx512() {
            of_types!(avx512, "avx512");
        }
        of_types!(avx2, "avx2");
    }
}

/// Returns the first part and the first row of each block of B: a block has several whole parts, or several rows of
/// one part.
fn block_starts(
    parts: usize,
    parts_per_block: usize,
    rows: usize,
    rows_per_block: usize,
) -> impl Iterator<Item = (usize, usize)> {
    (0..parts)
        .step_by(parts_per_block)
        .flat_map(move |first| (0..rows).step_by(rows_per_block).map(move |p| (first, p)))
}

/// Defines a kernel whose blocks have up to `deep` rows of B: more rows need fewer passes of sums through memory,
/// fewer leave more lines of distant rows in the first-level cache.
macro_rules! narrow {
    ($entry:ident, $panel:ident, $panels:ident, $columns:ident, $by_columns:ident, $features:literal, $lanes:literal,
     $widen:ident $widen_all:ident $widen_some:ident [$($turned:ident $adjacent:ident)?],
     deep $deep:literal, wide $wide:literal, tall [$($tall:literal)?], columns $two:literal $four:literal,
     $zero:ident, $splat:ident, $load:ident, $store:ident, $fma:ident, $sums:ident) => {
        /// Adds to `R` rows of C, or to zeros if `is_first`, the product of as many rows of A with `depth` rows of
        /// each part of B, over `V` vectors of columns. As many bytes are prefetched with `ahead`, if given.
        ///
        /// # Safety
        /// See [`super::NarrowKernelFn`]; the matrices hold these extents, each part of B at an offset.
        #[allow(clippy::too_many_arguments, reason = "a product has this many")]
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $panel<W: WeightElement, const R: usize, const V: usize>(
            depth: usize,
            a: Matrix<f32>,
            b: MatrixParts<'_>,
            offset: isize,
            c: *mut f32,
            ldc: isize,
            is_first: bool,
            ahead: Option<&mut RowPrefetcher<'_>>,
        ) {
            // A copy of its own is in registers.
            let mut prefetcher = ahead.as_deref().copied();
            let mut sums = [[$zero(); V]; R];
            // SAFETY: the caller's: every offset is inside of the extents; what is fetched may be anywhere.
            unsafe {
                for (i, sums) in sums.iter_mut().enumerate().filter(|_| !is_first) {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = $load(c.offset(i as isize * ldc).add(v * $lanes));
                    }
                    $(*sums = W::$turned(*sums);)?
                }
                // One of the distances is 1: as a constant, it is known to the compiler.
                let mut line = match R {
                    _ if W::NUMBERS_PER_ELEMENT == 2 => Matrix { row: 1, ..a },
                    MIN_INTERLEAVED_ROWS.. => Matrix { row: 1, col: R as isize, ..a },
                    _ => Matrix { col: 1, ..a },
                };
                // Prefetches at least a line at a time, and hardly more: a burst would use line buffers that other
                // loads need.
                let bytes = V * $lanes * size_of::<W>();
                let turn = (CACHE_LINE_BYTES / bytes).max(1);
                for start in b.starts {
                    let mut from = start.cast::<W>().wrapping_offset(offset);
                    for p in 0..depth {
                        if p % turn == 0 && let Some(prefetcher) = &mut prefetcher {
                            prefetcher.prefetch_cache_lines(turn * bytes);
                        }
                        let row: [_; V] = W::$widen_all(from);
                        from = from.wrapping_offset(b.row);
                        for half in 0..W::NUMBERS_PER_ELEMENT {
                            for (i, sums) in sums.iter_mut().enumerate() {
                                let factor = $splat(*line.submatrix_at(i, half).start);
                                for (sum, x) in sums.iter_mut().zip(&row) {
                                    *sum = $fma(factor, x[half], *sum);
                                }
                            }
                        }
                        line.start = line.start.wrapping_offset(W::NUMBERS_PER_ELEMENT as isize * line.col);
                    }
                }
                if let (Some(ahead), Some(prefetcher)) = (ahead, prefetcher) {
                    *ahead = prefetcher;
                }
                for (i, sums) in sums.into_iter().enumerate() {
                    $(let sums = W::$adjacent(sums);)?
                    for (v, sum) in sums.into_iter().enumerate() {
                        $store(c.offset(i as isize * ldc).add(v * $lanes), sum);
                    }
                }
            }
        }

        /// Adds to `R` rows of C, or to zeros if `is_first`, the product of as many rows of A with `depth` rows of
        /// each part of B. The columns after the last whole vector are read from `rest`, which has a vector for each
        /// row, from `rest_at` on.
        ///
        /// # Safety
        /// As for a panel.
        #[allow(clippy::too_many_arguments, reason = "a product has this many")]
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $panels<W: WeightElement, const R: usize, const V: usize>(
            n: usize,
            depth: usize,
            a: Matrix<f32>,
            b: MatrixParts<'_>,
            offset: isize,
            (rest, rest_at): (MatrixParts<'_>, isize),
            c: *mut f32,
            ldc: isize,
            is_first: bool,
            mut ahead: Option<&mut RowPrefetcher<'_>>,
        ) {
            let width = V * $lanes;
            let wide = n / width * width;
            let whole = n / $lanes * $lanes;
            // SAFETY: the caller's.
            unsafe {
                for j in (0..wide).step_by(width) {
                    $panel::<W, R, V>(depth, a, b, offset + j as isize, c.add(j), ldc, is_first, ahead.as_deref_mut());
                }
                for j in (wide..whole).step_by($lanes) {
                    $panel::<W, R, 1>(depth, a, b, offset + j as isize, c.add(j), ldc, is_first, ahead.as_deref_mut());
                }
                if whole < n {
                    let row = |i: usize| c.offset(i as isize * ldc).add(whole);
                    let mut sums = [[0.0f32; $lanes]; R];
                    for (i, sums) in sums.iter_mut().enumerate().filter(|_| !is_first) {
                        row(i).copy_to_nonoverlapping(sums.as_mut_ptr(), n - whole);
                    }
                    let depth = b.starts.len() * depth / rest.starts.len();
                    $panel::<W, R, 1>(depth, a, rest, rest_at, sums.as_mut_ptr().cast(), $lanes, is_first, None);
                    for (i, sums) in sums.iter().enumerate() {
                        row(i).copy_from_nonoverlapping(sums.as_ptr(), n - whole);
                    }
                }
            }
        }

        /// Adds to `R` rows and `n` columns of C the inner products of A's rows and B's columns, `C` columns at a
        /// time; `R * C` is at most the number of lanes. Each time, `bytes` bytes are prefetched with `ahead`.
        ///
        /// # Safety
        /// See [`super::NarrowKernelFn`].
        #[allow(clippy::too_many_arguments, reason = "a product has this many")]
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $columns<W: WeightElement, const R: usize, const C: usize>(
            n: usize,
            k: usize,
            a: Matrix<f32>,
            b: Matrix<W>,
            c: *mut f32,
            ldc: isize,
            ahead: &mut RowPrefetcher<'_>,
            bytes: usize,
        ) {
            let whole = k / $lanes * $lanes;
            for j in (0..n).step_by(C) {
                let mut sums = [[$zero(); C]; R];
                let steps = whole / $lanes;
                // Prefetches step by step instead of at once, unless there would be less than two lines for each step.
                let each = if steps > 0 && bytes >= 2 * CACHE_LINE_BYTES * steps { bytes / steps } else { 0 };
                if each == 0 {
                    ahead.prefetch_cache_lines(bytes);
                }
                // SAFETY: the caller's: every offset is inside of the extents.
                unsafe {
                    // Columns after the last one read the last one again.
                    let mut columns = [b.start; C];
                    for (i, column) in columns.iter_mut().enumerate() {
                        *column = b.submatrix_at(0, (j + i).min(n - 1)).start;
                    }
                    let mut rows = [a.start; R];
                    for (i, row) in rows.iter_mut().enumerate() {
                        *row = a.submatrix_at(i, 0).start;
                    }
                    for p in (0..whole).step_by($lanes) {
                        if each > 0 {
                            ahead.prefetch_cache_lines(each);
                        }
                        let mut row = [$zero(); C];
                        for (x, column) in row.iter_mut().zip(&columns) {
                            *x = W::$widen(column.add(p))[0];
                        }
                        for (row_of_a, sums) in rows.iter().zip(&mut sums) {
                            let factors = $load(row_of_a.add(p));
                            for (sum, &x) in sums.iter_mut().zip(&row) {
                                *sum = $fma(factors, x, *sum);
                            }
                        }
                    }
                    if whole < k {
                        // Lanes after the end are zeros.
                        let mut row = [$zero(); C];
                        for (x, column) in row.iter_mut().zip(&columns) {
                            *x = W::$widen_some(column.add(whole), k - whole);
                        }
                        for (row_of_a, sums) in rows.iter().zip(&mut sums) {
                            let factors = f32::$widen_some(row_of_a.add(whole), k - whole);
                            for (sum, &x) in sums.iter_mut().zip(&row) {
                                *sum = $fma(factors, x, *sum);
                            }
                        }
                    }
                    let mut all = [$zero(); $lanes];
                    for (all, &sum) in all.iter_mut().zip(sums.as_flattened()) {
                        *all = sum;
                    }
                    let mut totals = [0.0f32; $lanes];
                    $store(totals.as_mut_ptr(), $sums(all));
                    let totals = &totals.as_chunks::<C>().0[..R];
                    let width = C.min(n - j);
                    for (i, totals) in totals.iter().enumerate() {
                        let to = c.offset(i as isize * ldc).add(j);
                        if width == C {
                            let to = &mut *to.cast::<[f32; C]>();
                            to.iter_mut().zip(totals).for_each(|(c, total)| *c += *total);
                        } else {
                            totals[..width].iter().enumerate().for_each(|(j, total)| *to.add(j) += total);
                        }
                    }
                }
            }
        }

        /// Computes the product with a B of adjacent columns: all rows of A see a few columns while in the cache.
        ///
        /// # Safety
        /// See [`super::NarrowKernelFn`].
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $by_columns<W: WeightElement>(
            Extents { m, n, k }: Extents,
            a: Matrix<f32>,
            b: Matrix<W>,
            c: *mut f32,
            ldc: isize,
            next: &[*const u8],
        ) {
            let long = k * size_of::<W>() >= MIN_LONG_COLUMN_BYTES;
            let together = if long { LONG_COLUMNS_AT_ONCE } else { SHORT_COLUMNS_AT_ONCE };
            // Multiplying bytes takes longer than fetching what follows, which the processor prefetches by itself.
            let fetches = !long && (!next.is_empty() || size_of::<W>() > 1);
            for j in (0..n).step_by(together) {
                let (width, mut i) = (together.min(n - j), 0);
                let behind = [b.start.wrapping_offset((j + together) as isize * b.col).cast()];
                let mut ahead = match next {
                    [] => RowPrefetcher::new::<W>(&behind, 0, 0, b.col, [width, k]),
                    _ => RowPrefetcher::new::<W>(next, PREFETCH_DISTANCE_PARTS - 1, j as isize * b.col, b.col, [width, k]),
                };
                while i < m {
                    macro_rules! rows {
                        ($R:literal, $C:literal) => {{
                            let bytes = if fetches { $C * k * size_of::<W>() * $R / m.max($R) } else { 0 };
                            // SAFETY: the caller's: rows and columns lie inside of the extents.
                            unsafe {
                                let (a, b, c) = (a.submatrix_at(i, 0), b.submatrix_at(0, j), c.offset(i as isize * ldc).add(j));
                                $columns::<W, $R, $C>(width, k, a, b, c, ldc, &mut ahead, bytes);
                            }
                            $R
                        }};
                    }
                    i += match m - i {
                        4.. => rows!(4, $four),
                        3 => rows!(3, $four),
                        2 if !long => rows!(2, $two),
                        2 => rows!(2, 4),
                        _ if !long => rows!(1, 8),
                        _ => rows!(1, 4),
                    };
                }
            }
        }

        /// Computes a product: block by block of B's rows, or by columns where these have adjacent elements.
        ///
        /// # Safety
        /// See [`super::NarrowKernelFn`].
        #[target_feature(enable = $features)]
        unsafe fn $entry<W: WeightElement>(extents: Extents, a: Matrix<f32>, b: MatrixParts<'_>, c: OutputMatrix<f32>) {
            let Extents { m, n: all, k: terms } = extents;
            let is_by_columns = const { W::NUMBERS_PER_ELEMENT == 1 } && b.col != 1;
            if is_by_columns || terms == 0 {
                // SAFETY: the caller's.
                unsafe { c.zero_unless_adding(m, all) };
            }
            let OutputMatrix { start: c, row: ldc, add } = c;
            // Bytes with two halves always have adjacent rows.
            if is_by_columns {
                let n = all / b.starts.len();
                for (i, start) in b.starts.iter().enumerate() {
                    let part = Matrix { start: start.cast::<W>(), row: b.row, col: b.col };
                    // SAFETY: the caller's.
                    unsafe { $by_columns(Extents { n, ..extents }, a, part, c.add(i * n), ldc, b.parts_to_prefetch(i, i + 1)) }
                }
                return;
            }
            // Prefetched lines of wide rows would leave the cache before they are read: a part at a time.
            let widest = BLOCK_BYTES / (MIN_BLOCK_ROWS * size_of::<W>());
            let wide = if all > 2 * widest { widest } else { all.max(1) };
            let mut rest = MaybeUninit::<[[W; $lanes]; $deep]>::uninit();
            let rest: *mut [W; $lanes] = rest.as_mut_ptr().cast();
            let mut interleaved = MaybeUninit::<[f32; MIN_INTERLEAVED_ROWS * $deep]>::uninit();
            let rows = terms / b.starts.len();
            for j in (0..all).step_by(wide) {
                let n = wide.min(all - j);
                let depth = (BLOCK_BYTES / (n * size_of::<W>())).clamp(MIN_BLOCK_ROWS, $deep);
                let whole = n / $lanes * $lanes;
                // As many whole parts as fit a block, or blocks of one part.
                let together = (depth / rows.max(1)).max(1);
                for (first, p) in block_starts(b.starts.len(), together, rows, depth) {
                    let last = b.starts.len().min(first + together);
                    // A part of the terms of these columns.
                    let (k, part) = (depth.min(rows - p), MatrixParts { starts: &b.starts[first..last], ..b });
                    let offset = p as isize * b.row + j as isize;
                    let is_first = !add && first == 0 && p == 0;
                    // In a matrix without gaps, the last vector reads into the next row: those sums are dropped.
                    let is_dense = b.row == n as isize && b.starts.len() == 1;
                    let in_place = is_dense && (p + k) * n + $lanes <= rows * n;
                    // SAFETY: the caller's: parts lie inside of the extents.
                    unsafe {
                        let (starts, row, rest_at) = match in_place {
                            true => (part.starts, b.row, offset + whole as isize),
                            false => (&[rest.cast::<u8>().cast_const()][..], $lanes, 0),
                        };
                        let copied = part.starts.iter().enumerate().filter(|_| whole < n && !in_place);
                        for (i, start) in copied {
                            for p in 0..k {
                                let (to, from) = (rest.add(i * k + p), p as isize * b.row + offset);
                                to.write([W::ZERO; $lanes]);
                                let from = start.cast::<W>().offset(from).add(whole);
                                from.copy_to_nonoverlapping(to.cast(), n - whole);
                            }
                        }
                        let rest = (MatrixParts { starts, row, col: 1 }, rest_at);
                        let behind = match p + k == terms && j + n < all {
                            true => [part.starts[0].cast::<W>().add(j + n).cast()],
                            false => [part.starts[0].cast::<W>().wrapping_offset(offset + k as isize * b.row).cast()],
                        };
                        let mut ahead = match b.parts_to_prefetch(first, last) {
                            [] => RowPrefetcher::new::<W>(&behind, 0, 0, b.row, [k, n]),
                            next => RowPrefetcher::new::<W>(next, PREFETCH_DISTANCE_PARTS - 1, offset, b.row, [k, n]),
                        };
                        let mut i = 0;
                        while i < m {
                            let once = (i == 0).then_some(&mut ahead);
                            let at = (first * rows + p) * W::NUMBERS_PER_ELEMENT;
                            let (a, c) = (a.submatrix_at(i, at), c.offset(i as isize * ldc).add(j));
                            macro_rules! rows {
                                ($R:literal, $V:expr) => {{
                                    let mut a = a;
                                    if W::NUMBERS_PER_ELEMENT == 1 && $R == MIN_INTERLEAVED_ROWS {
                                        let to: *mut f32 = interleaved.as_mut_ptr().cast();
                                        pack_rows(a.transposed(), [k * part.starts.len(), $R], to, $R);
                                        a = Matrix { start: to.cast_const(), row: 1, col: $R };
                                    }
                                    $panels::<W, $R, { $V }>(n, k, a, part, offset, rest, c, ldc, is_first, once);
                                    $R
                                }};
                            }
                            i += match m - i {
                                // More sums would be needed than there are registers.
                                $($tall.. => rows!($tall, 2),)?
                                4.. => rows!(4, $wide),
                                3 => rows!(3, 2 * $wide),
                                2 => rows!(2, 2 * $wide),
                                _ => rows!(1, 2 * $wide),
                            };
                        }
                    }
                }
            }
        }
    };
}
narrow! {
    avx512, avx512_panel, avx512_panels, avx512_columns, avx512_by_columns, "avx512f,avx512bw,avx512vl,avx2,fma,f16c", 16,
    load_sixteen_as_f32 load_sixteens_as_f32 load_partial_sixteen [permute_columns unpermute_columns], deep 64, wide 4, tall [8], columns 8 4,
    _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps, horizontal_sums_of_sixteen
}
narrow! {
    avx2, avx2_panel, avx2_panels, avx2_columns, avx2_by_columns, "avx2,fma,f16c", 8,
    load_eight_as_f32 load_eights_as_f32 load_partial_eight [], deep 16, wide 2, tall [], columns 4 2,
    _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps, horizontal_sums_of_eight
}

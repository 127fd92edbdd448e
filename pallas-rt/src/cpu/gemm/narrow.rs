//! Products of a few rows, as when a language model makes one token: B is read once, so their time is that of reading it.
//!
//! Micro-kernels walk down a panel of B, a line or two of each row, and the rest of the row is out of the cache when the
//! next panel wants it. Here a few rows of B are taken at a time, in the type that they have, and what comes next of each is
//! fetched meanwhile:
//!
//! ```text
//! rows side by side       C[i, panel] += Σ_p A[i, p] · B[p, panel]         for a few p; sums in registers
//! columns side by side    C[i, j]     += A[i, ..] · B[.., j]               sums in registers
//! ```
use super::{Extents, Matrix, Packing, Target, reserve};
use pallas_ir::DType;
use std::sync::OnceLock;

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
            for (at, x) in packing.a[..m * k].iter_mut().enumerate() {
                *x = *a.at(at / k, at % k).start;
            }
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

/// The kernels for AVX2 and AVX-512.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::super::strips::has_avx2;
    use super::super::{Extents, FAR, Matrix, Target};
    use super::{ALL, HIGH, Kernel, LOW};
    use half::{bf16, f16};
    use pallas_ir::DType;
    use pallas_ir::dtype::Half;
    use std::arch::x86_64::*;

    /// Rows of B that are read together: as many as stay in the first level cache, where rows that are far apart may all
    /// fall on one set.
    const DEPTH: usize = 16;
    const FAR_DEPTH: usize = 4;
    /// Bytes of a cache line.
    const LINE: usize = 64;
    /// Columns of B whose inner products are summed up together.
    const COLUMNS: usize = 4;
    /// Bytes of a column from which on it is a stream of its own: four of them are read at a time.
    const LONG: usize = 2048;

    pub(super) fn kernels(all: &mut Vec<(DType, u8, Kernel)>) {
        macro_rules! of_types {
            ($entry:ident, $name:literal) => {
                of_types!(@ $entry, $name, ALL F32 f32, ALL F16 f16, ALL Bf16 bf16, ALL I8 i8, ALL U8 Byte<ALL>,
                    LOW U8 Byte<LOW>, HIGH U8 Byte<HIGH>)
            };
            (@ $entry:ident, $name:literal, $($bits:ident $V:ident $T:ty),*) => {
                all.extend([$((DType::$V, $bits, Kernel { run: $entry::<$T>, bytes: size_of::<$T>(), name: $name })),*])
            };
        }
        if has_avx2() && is_x86_feature_detected!("f16c") {
            if is_x86_feature_detected!("avx512f") {
                of_types!(avx512, "avx512");
            }
            of_types!(avx2, "avx2");
        }
    }

    /// Bytes after which lines fall on the same set of the first level cache again.
    const PERIOD: usize = 4096;

    /// True if rows at this distance in bytes share few sets of the first level cache.
    fn crowds(distance: usize) -> bool {
        let common = 1 << distance.trailing_zeros().min(PERIOD.trailing_zeros());
        distance > FAR && common >= FAR
    }

    /// An element of B, as f32: exact.
    trait Weight: Copy {
        const ZERO: Self;
        fn wide(self) -> f32;
        /// # Safety
        /// Eight elements lie there; the processor has AVX2 and F16C.
        unsafe fn eight(from: *const Self) -> __m256;
        /// # Safety
        /// Sixteen elements lie there; the processor has AVX-512.
        unsafe fn sixteen(from: *const Self) -> __m512;
    }

    macro_rules! weights {
        ($([$($bits:tt)*] $T:ty, $zero:expr, |$x:ident| $wide:expr, |$p:ident| $eight:expr, $sixteen:expr;)*) => {$(
            impl<$($bits)*> Weight for $T {
                const ZERO: Self = $zero;
                #[inline(always)]
                fn wide(self) -> f32 {
                    let $x = self;
                    $wide
                }
                #[inline(always)]
                unsafe fn eight($p: *const Self) -> __m256 {
                    // SAFETY: the caller's.
                    unsafe { $eight }
                }
                #[inline(always)]
                unsafe fn sixteen($p: *const Self) -> __m512 {
                    // SAFETY: the caller's.
                    unsafe { $sixteen }
                }
            }
        )*};
    }
    weights! {
        [] f32, 0.0, |x| x, |p| _mm256_loadu_ps(p), _mm512_loadu_ps(p);
        [] f16, f16::ZERO, |x| Half::wide(x), |p| _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
            _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        [] bf16, bf16::ZERO, |x| Half::wide(x),
            |p| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))),
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
        [] i8, 0, |x| f32::from(x), |p| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))),
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
        [const MASK: u8] Byte<MASK>, Byte(0), |x| f32::from(x.0 & MASK),
            |p| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(counted::<MASK>(_mm_loadl_epi64(p.cast())))),
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(counted::<MASK>(_mm_loadu_si128(p.cast()))));
    }

    /// A byte of which some bits count.
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    struct Byte<const MASK: u8>(u8);

    /// Clears the bits of sixteen bytes that the mask leaves out.
    #[inline(always)]
    fn counted<const MASK: u8>(bytes: __m128i) -> __m128i {
        // SAFETY: every processor of this kind has SSE2.
        unsafe { _mm_and_si128(bytes, _mm_set1_epi8(MASK as i8)) }
    }

    /// The sums of four vectors' lanes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sums_of_eight(v: [__m256; COLUMNS]) -> __m128 {
        let half = |v| _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        _mm_hadd_ps(_mm_hadd_ps(half(v[0]), half(v[1])), _mm_hadd_ps(half(v[2]), half(v[3])))
    }
    /// The same.
    #[inline]
    #[target_feature(enable = "avx512f,avx2")]
    fn sums_of_sixteen(v: [__m512; COLUMNS]) -> __m128 {
        let half = |v| {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
            _mm256_add_ps(_mm512_castps512_ps256(v), high)
        };
        sums_of_eight(v.map(half))
    }

    macro_rules! narrow {
        ($entry:ident, $panel:ident, $panels:ident, $columns:ident, $features:literal, $lanes:literal, $widen:ident,
         wide $wide:literal, tall [$($tall:literal)?],
         $zero:ident, $splat:ident, $load:ident, $store:ident, $fma:ident, $sums:ident) => {
            /// `R` rows of C plus as many rows of A times `depth` rows of B, over `V` vectors of columns. What lies `ahead` of
            /// each row of B is fetched.
            ///
            /// # Safety
            /// See [`super::NarrowFn`]; the matrices hold these extents.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn $panel<W: Weight, const R: usize, const V: usize>(
                depth: usize,
                a: Matrix<f32>,
                b: Matrix<W>,
                c: *mut f32,
                ldc: isize,
                ahead: isize,
            ) {
                let mut sums = [[$zero(); V]; R];
                // SAFETY: the caller's: every offset is inside of the extents; what is fetched may be anywhere.
                unsafe {
                    for (i, sums) in sums.iter_mut().enumerate() {
                        for (v, sum) in sums.iter_mut().enumerate() {
                            *sum = $load(c.offset(i as isize * ldc).add(v * $lanes));
                        }
                    }
                    for p in 0..depth {
                        let from = b.at(p, 0).start;
                        for line in (0..V * $lanes * size_of::<W>()).step_by(LINE) {
                            let next = from.wrapping_offset(ahead).cast::<i8>().wrapping_add(line);
                            _mm_prefetch::<_MM_HINT_T0>(next);
                        }
                        let mut row = [$zero(); V];
                        for (v, x) in row.iter_mut().enumerate() {
                            *x = W::$widen(from.add(v * $lanes));
                        }
                        for (i, sums) in sums.iter_mut().enumerate() {
                            let factor = $splat(*a.at(i, p).start);
                            for (sum, &x) in sums.iter_mut().zip(&row) {
                                *sum = $fma(factor, x, *sum);
                            }
                        }
                    }
                    for (i, sums) in sums.iter().enumerate() {
                        for (v, &sum) in sums.iter().enumerate() {
                            $store(c.offset(i as isize * ldc).add(v * $lanes), sum);
                        }
                    }
                }
            }

            /// `R` rows of C plus as many rows of A times `depth` rows of B, of which the first panel of the next rows is
            /// fetched last. The columns behind the last whole vector are those of `rest`, in rows of a vector.
            ///
            /// # Safety
            /// As for a panel.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn $panels<W: Weight, const R: usize, const V: usize>(
                n: usize,
                depth: usize,
                a: Matrix<f32>,
                b: Matrix<W>,
                rest: &[[W; $lanes]; DEPTH],
                c: *mut f32,
                ldc: isize,
            ) {
                let width = V * $lanes;
                let wide = n / width * width;
                let whole = n / $lanes * $lanes;
                // SAFETY: the caller's.
                unsafe {
                    for j in (0..wide).step_by(width) {
                        let last = j + width == wide;
                        let ahead = if last { depth as isize * b.row - j as isize } else { width as isize };
                        $panel::<W, R, V>(depth, a, b.at(0, j), c.add(j), ldc, ahead);
                    }
                    for j in (wide..whole).step_by($lanes) {
                        $panel::<W, R, 1>(depth, a, b.at(0, j), c.add(j), ldc, depth as isize * b.row);
                    }
                    if whole < n {
                        let row = |i: usize| c.offset(i as isize * ldc).add(whole);
                        let mut sums = [[0.0f32; $lanes]; R];
                        for (i, sums) in sums.iter_mut().enumerate() {
                            row(i).copy_to_nonoverlapping(sums.as_mut_ptr(), n - whole);
                        }
                        let b = Matrix { start: rest.as_ptr().cast(), row: $lanes, col: 1 };
                        $panel::<W, R, 1>(depth, a, b, sums.as_mut_ptr().cast(), $lanes, 0);
                        for (i, sums) in sums.iter().enumerate() {
                            row(i).copy_from_nonoverlapping(sums.as_ptr(), n - whole);
                        }
                    }
                }
            }

            /// `R` rows of up to four columns of C plus inner products of A's rows and B's columns: long ones all at once, short
            /// ones, which follow each other closely, one after the other.
            ///
            /// # Safety
            /// See [`super::NarrowFn`].
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn $columns<W: Weight, const R: usize>(
                n: usize,
                k: usize,
                a: Matrix<f32>,
                b: Matrix<W>,
                c: *mut f32,
                ldc: isize,
            ) {
                let mut sums = [[$zero(); COLUMNS]; R];
                let whole = k / $lanes * $lanes;
                // SAFETY: the caller's: every offset is inside of the extents.
                unsafe {
                    // What lies behind the last column is the last column.
                    let columns: [*const W; COLUMNS] = std::array::from_fn(|j| b.at(0, j.min(n - 1)).start);
                    if k * size_of::<W>() >= LONG {
                        for p in (0..whole).step_by($lanes) {
                            let row = columns.map(|column| W::$widen(column.add(p)));
                            for (i, sums) in sums.iter_mut().enumerate() {
                                let factors = $load(a.at(i, p).start);
                                for (sum, &x) in sums.iter_mut().zip(&row) {
                                    *sum = $fma(factors, x, *sum);
                                }
                            }
                        }
                    } else {
                      for (j, column) in columns.iter().enumerate() {
                        let mut own = [$zero(); R];
                        for p in (0..whole).step_by($lanes) {
                            let x = W::$widen(column.add(p));
                            for (i, sum) in own.iter_mut().enumerate() {
                                *sum = $fma($load(a.at(i, p).start), x, *sum);
                            }
                        }
                        sums.iter_mut().zip(own).for_each(|(sums, own)| sums[j] = own);
                      }
                    }
                    for (i, &sums) in sums.iter().enumerate() {
                        let mut total = [0.0f32; COLUMNS];
                        _mm_storeu_ps(total.as_mut_ptr(), $sums(sums));
                        for j in 0..n {
                            let rest = (whole..k).map(|p| *a.at(i, p).start * (*columns[j].add(p)).wide());
                            *c.offset(i as isize * ldc).add(j) += total[j] + rest.sum::<f32>();
                        }
                    }
                }
            }

            /// # Safety
            /// See [`super::NarrowFn`].
            #[target_feature(enable = $features)]
            unsafe fn $entry<W: Weight>(
                Extents { m, n, k }: Extents,
                a: Matrix<f32>,
                b: Matrix<u8>,
                c: Target<f32>,
            ) {
                let (a, b, Target { start: c, row: ldc, .. }) = (Matrix { col: 1, ..a }, b.cast::<W>(), c);
                let by_columns = b.col != 1;
                let depth = if crowds(b.row.unsigned_abs() * size_of::<W>()) { FAR_DEPTH } else { DEPTH };
                let mut rest = [[W::ZERO; $lanes]; DEPTH];
                // SAFETY: the caller's: parts lie inside of the extents.
                unsafe {
                    let blocks = if by_columns { n.div_ceil(COLUMNS) } else { k.div_ceil(depth) };
                    for block in 0..blocks {
                        // Columns of C, or a part of the sums of all columns; A's rows see them while they are in the cache.
                        let (j, p) = if by_columns { (block * COLUMNS, 0) } else { (0, block * depth) };
                        let (n, k) = if by_columns { (COLUMNS.min(n - j), k) } else { (n, depth.min(k - p)) };
                        let (b, mut i) = (b.at(p, j), 0);
                        let whole = n / $lanes * $lanes;
                        if !by_columns && whole < n {
                            for (p, row) in rest[..k].iter_mut().enumerate() {
                                b.at(p, whole).start.copy_to_nonoverlapping(row.as_mut_ptr(), n - whole);
                            }
                        }
                        while i < m {
                            let (a, c) = (a.at(i, p), c.offset(i as isize * ldc).add(j));
                            macro_rules! rows {
                                ($R:literal, $V:expr) => {{
                                    if by_columns {
                                        $columns::<W, $R>(n, k, a, b, c, ldc);
                                    } else {
                                        $panels::<W, $R, { $V }>(n, k, a, b, &rest, c, ldc);
                                    }
                                    $R
                                }};
                            }
                            i += match m - i {
                                // More sums than there are registers.
                                $($tall.. if !(by_columns && k * size_of::<W>() >= LONG) => rows!($tall, 2),)?
                                4.. => rows!(4, $wide),
                                3 => rows!(3, 2 * $wide),
                                2 => rows!(2, 2 * $wide),
                                _ => rows!(1, 2 * $wide),
                            };
                        }
                    }
                }
            }
        };
    }
    narrow! {
        avx512, avx512_panel, avx512_panels, avx512_columns, "avx512f,avx2,fma,f16c", 16, sixteen, wide 4, tall [8],
        _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps, sums_of_sixteen
    }
    narrow! {
        avx2, avx2_panel, avx2_panels, avx2_columns, "avx2,fma,f16c", 8, eight, wide 2, tall [],
        _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps, sums_of_eight
    }
}

//! Products of a few rows, as when a language model makes one token: B is read once, so their time is that of reading it.
//!
//! Micro-kernels walk down a panel of B, a line or two of each row, and the rest of the row is out of the cache when the
//! next panel wants it. Here B is read in the order in which it lies, in the type that it has:
//!
//! ```text
//! rows side by side       C[i, ..] += Σ_q A[i, p + q] · B[p + q, ..]       C stays in the first level cache
//! columns side by side    C[i, j]  += A[i, ..] · B[.., j]                  sums in registers
//! ```
//! Where rows (or columns) of B are near each other they are one stream, read from end to end; where they lie apart several
//! are read at once, or each would end before the processor has begun to fetch ahead.
use super::{Extents, Matrix, Packing, reserve};
use pallas_ir::DType;
use std::sync::OnceLock;

/// Rows of A up to which reading B takes longer than multiplying.
pub(crate) const ROWS: usize = 8;

/// Rows of A and the distance between them, `k` elements side by side; B; rows of C and the distance between them.
///
/// # Safety
/// The matrices hold these extents, B in the kernel's element type; rows or columns of B are side by side; the processor
/// has the kernel's features.
type NarrowFn = unsafe fn(Extents, *const f32, isize, Matrix<u8>, *mut f32, isize);

/// A product of f32 rows with a matrix of some element type.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    run: NarrowFn,
    /// Bytes of an element of B.
    bytes: usize,
    #[cfg_attr(not(test), allow(dead_code, reason = "tests name the kernel that failed"))]
    pub(super) name: &'static str,
}

/// This machine's kernel for matrices of an element type.
pub(crate) fn kernel(dtype: DType) -> Option<Kernel> {
    static KERNELS: OnceLock<Vec<(DType, Kernel)>> = OnceLock::new();
    let of_type = |&&(d, _): &&(DType, Kernel)| d == dtype;
    KERNELS.get_or_init(kernels).iter().find(of_type).map(|k| k.1)
}

/// Every kernel this machine can run, best first.
pub(super) fn kernels() -> Vec<(DType, Kernel)> {
    #[allow(unused_mut, reason = "other processors have none")]
    let mut all = vec![];
    #[cfg(target_arch = "x86_64")]
    x86::kernels(&mut all);
    all
}

/// `C (+)= A · B` for few rows; rows of C are `ldc` apart, its columns adjacent. With `k = 0` C becomes zero, or stays.
///
/// # Safety
/// A, B and C hold these extents at these strides, B in the kernel's element type; C overlaps neither.
#[allow(clippy::too_many_arguments, reason = "a product has this many")]
pub(crate) unsafe fn dot(
    kernel: Kernel,
    extents: Extents,
    a: Matrix<f32>,
    b: Matrix<u8>,
    c: *mut f32,
    ldc: isize,
    accumulate: bool,
    packing: &mut Packing<f32>,
) {
    let Extents { m, n, k } = extents;
    // SAFETY: the caller's; the buffers hold A and B.
    unsafe {
        if !accumulate {
            (0..m).for_each(|i| std::slice::from_raw_parts_mut(c.offset(i as isize * ldc), n).fill(0.0));
        }
        let (mut a, mut b) = (a, b);
        if a.col != 1 {
            reserve(&mut packing.a, m * k);
            for (at, x) in packing.a[..m * k].iter_mut().enumerate() {
                *x = *a.at(at / k, at % k).start;
            }
            a = Matrix { start: packing.a.as_ptr(), row: k as isize, col: 1 };
        }
        if b.col != 1 && b.row != 1 {
            reserve(&mut packing.b, k * n);
            let (to, bytes) = (packing.b.as_mut_ptr().cast::<u8>(), kernel.bytes);
            for at in 0..k * n {
                let from = (at / n) as isize * b.row + (at % n) as isize * b.col;
                let from = b.start.offset(from * bytes as isize);
                std::ptr::copy_nonoverlapping(from, to.add(at * bytes), bytes);
            }
            b = Matrix { start: to.cast_const(), row: n as isize, col: 1 };
        }
        (kernel.run)(extents, a.start, a.row, b, c, ldc);
    }
}

/// The kernels for AVX2 and AVX-512.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::{Extents, FAR, Matrix, x86::has_avx2};
    use super::Kernel;
    use half::{bf16, f16};
    use pallas_ir::DType;
    use pallas_ir::dtype::Half;
    use std::arch::x86_64::*;

    /// Rows of A that are multiplied at once: their factors stay in registers.
    const HEIGHT: usize = 4;
    /// Columns of C that stay in the first level cache.
    const WIDTH: usize = 1024;
    /// Columns of B whose inner products are taken together.
    const COLUMNS: usize = 4;

    pub(super) fn kernels(all: &mut Vec<(DType, Kernel)>) {
        macro_rules! of_types {
            ($entry:ident, $name:literal, $($V:ident $T:ty),*) => {
                all.extend([$((DType::$V, Kernel { run: $entry::<$T>, bytes: size_of::<$T>(), name: $name })),*])
            };
        }
        if has_avx2() && is_x86_feature_detected!("f16c") {
            if is_x86_feature_detected!("avx512f") {
                of_types!(avx512, "avx512", F32 f32, F16 f16, Bf16 bf16, I8 i8, U8 u8);
            }
            of_types!(avx2, "avx2", F32 f32, F16 f16, Bf16 bf16, I8 i8, U8 u8);
        }
    }

    /// An element of B, as f32: exact.
    trait Weight: Copy {
        fn wide(self) -> f32;
        /// # Safety
        /// Eight elements lie there; the processor has AVX2 and F16C.
        unsafe fn eight(from: *const Self) -> __m256;
        /// # Safety
        /// Sixteen elements lie there; the processor has AVX-512.
        unsafe fn sixteen(from: *const Self) -> __m512;
    }

    macro_rules! weights {
        ($($T:ty, |$x:ident| $wide:expr, |$p:ident| $eight:expr, $sixteen:expr;)*) => {$(
            impl Weight for $T {
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
        f32, |x| x, |p| _mm256_loadu_ps(p), _mm512_loadu_ps(p);
        f16, |x| Half::wide(x), |p| _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
            _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        bf16, |x| Half::wide(x),
            |p| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))),
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
        i8, |x| f32::from(x), |p| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))),
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
        u8, |x| f32::from(x), |p| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))),
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())));
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
        ($entry:ident, $slab:ident, $rows:ident, $columns:ident, $features:literal, $lanes:literal, $widen:ident,
         $zero:ident, $splat:ident, $load:ident, $store:ident, $fma:ident, $sums:ident) => {
            /// `R` rows of C plus as many rows of A times `D` rows of B.
            ///
            /// # Safety
            /// See [`super::NarrowFn`]; `D` columns of A and rows of B, `n` columns of B and C.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn $rows<W: Weight, const R: usize, const D: usize>(
                n: usize,
                a: Matrix<f32>,
                b: Matrix<W>,
                c: *mut f32,
                ldc: isize,
            ) {
                let mut factors = [[$zero(); R]; D];
                // SAFETY: the caller's: every offset is inside of the extents.
                unsafe {
                    for (q, factors) in factors.iter_mut().enumerate() {
                        for (i, factor) in factors.iter_mut().enumerate() {
                            *factor = $splat(*a.at(i, q).start);
                        }
                    }
                    let whole = n / $lanes * $lanes;
                    for j in (0..whole).step_by($lanes) {
                        let mut sums = [$zero(); R];
                        for i in 0..R {
                            sums[i] = $load(c.offset(i as isize * ldc).add(j));
                        }
                        for q in 0..D {
                            let row = W::$widen(b.at(q, j).start);
                            for i in 0..R {
                                sums[i] = $fma(factors[q][i], row, sums[i]);
                            }
                        }
                        for i in 0..R {
                            $store(c.offset(i as isize * ldc).add(j), sums[i]);
                        }
                    }
                    for (i, j) in (0..R).flat_map(|i| (whole..n).map(move |j| (i, j))) {
                        let c = c.offset(i as isize * ldc).add(j);
                        for q in 0..D {
                            let x = (*b.at(q, j).start).wide();
                            *c = (*a.at(i, q).start).mul_add(x, *c);
                        }
                    }
                }
            }

            /// All rows of C plus as many rows of A times `D` rows of B; gives `D`.
            ///
            /// # Safety
            /// As for the rows.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn $slab<W: Weight, const D: usize>(
                m: usize,
                n: usize,
                a: Matrix<f32>,
                b: Matrix<W>,
                c: *mut f32,
                ldc: isize,
            ) -> usize {
                for i in (0..m).step_by(HEIGHT) {
                    // SAFETY: the caller's.
                    unsafe {
                        let (a, c) = (a.at(i, 0), c.offset(i as isize * ldc));
                        match m - i {
                            1 => $rows::<W, 1, D>(n, a, b, c, ldc),
                            2 => $rows::<W, 2, D>(n, a, b, c, ldc),
                            3 => $rows::<W, 3, D>(n, a, b, c, ldc),
                            _ => $rows::<W, HEIGHT, D>(n, a, b, c, ldc),
                        }
                    }
                }
                D
            }

            /// `R` rows of up to four columns of C plus inner products of A's rows and B's columns.
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
                    if b.col.unsigned_abs() * size_of::<W>() > FAR {
                        for p in (0..whole).step_by($lanes) {
                            let rows = columns.map(|column| W::$widen(column.add(p)));
                            for i in 0..R {
                                let x = $load(a.at(i, p).start);
                                for j in 0..COLUMNS {
                                    sums[i][j] = $fma(x, rows[j], sums[i][j]);
                                }
                            }
                        }
                    } else {
                        for j in 0..COLUMNS {
                            let mut own = [$zero(); R];
                            for p in (0..whole).step_by($lanes) {
                                let row = W::$widen(columns[j].add(p));
                                for i in 0..R {
                                    own[i] = $fma($load(a.at(i, p).start), row, own[i]);
                                }
                            }
                            for i in 0..R {
                                sums[i][j] = own[i];
                            }
                        }
                    }
                    for i in 0..R {
                        let mut total = [0.0f32; COLUMNS];
                        _mm_storeu_ps(total.as_mut_ptr(), $sums(sums[i]));
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
                a: *const f32,
                a_row: isize,
                b: Matrix<u8>,
                c: *mut f32,
                ldc: isize,
            ) {
                let b = Matrix { start: b.start.cast::<W>(), row: b.row, col: b.col };
                let a = Matrix { start: a, row: a_row, col: 1 };
                // SAFETY: the caller's: parts lie inside of the extents.
                unsafe {
                    if b.col != 1 {
                        for j in (0..n).step_by(COLUMNS) {
                            for i in (0..m).step_by(HEIGHT) {
                                let (n, b, c) = (COLUMNS.min(n - j), b.at(0, j), c.offset(i as isize * ldc).add(j));
                                match m - i {
                                    1 => $columns::<W, 1>(n, k, a.at(i, 0), b, c, ldc),
                                    2 => $columns::<W, 2>(n, k, a.at(i, 0), b, c, ldc),
                                    3 => $columns::<W, 3>(n, k, a.at(i, 0), b, c, ldc),
                                    _ => $columns::<W, HEIGHT>(n, k, a.at(i, 0), b, c, ldc),
                                }
                            }
                        }
                        return;
                    }
                    let far = b.row.unsigned_abs() * size_of::<W>() > FAR;
                    for j in (0..n).step_by(WIDTH) {
                        let (n, mut p) = (WIDTH.min(n - j), 0);
                        while p < k {
                            let (a, b, c) = (a.at(0, p), b.at(p, j), c.add(j));
                            p += match k - p {
                                4.. if far => $slab::<W, 4>(m, n, a, b, c, ldc),
                                2.. => $slab::<W, 2>(m, n, a, b, c, ldc),
                                _ => $slab::<W, 1>(m, n, a, b, c, ldc),
                            };
                        }
                    }
                }
            }
        };
    }
    narrow! {
        avx512, avx512_slab, avx512_rows, avx512_columns, "avx512f,avx2,fma,f16c", 16, sixteen,
        _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps, sums_of_sixteen
    }
    narrow! {
        avx2, avx2_slab, avx2_rows, avx2_columns, "avx2,fma,f16c", 8, eight,
        _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps, sums_of_eight
    }
}

//! Products of f32 tiles: `C (+)= A·B` with any strides of A and B.
//!
//! The micro-kernel keeps a block of C in vector registers and walks `k`: a row of B is read as vectors, elements of A are
//! broadcast in place. B with contiguous rows is read where it lies; transposed B is packed first. (The scheme of BLIS,
//! Van Zee & van de Geijn 2015, for operands that already sit in cache.)
use super::strips::{Level, level};

/// A matrix in memory: element (i, j) at `ptr + i * row + j * col`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub(super) ptr: *const f32,
    pub(super) row: usize,
    pub(super) col: usize,
}

/// Where a product goes: rows `ld` apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) ptr: *mut f32,
    pub(super) ld: usize,
}

/// Lanes of the widest vector.
const LANES: usize = 16;

/// `C[m, n] = A[m, k]·B[k, n]`, or `+=`.
///
/// # Safety
/// The matrices are readable in these extents and C is writable and overlaps none of them.
pub(super) unsafe fn gemm(
    [m, n, k]: [usize; 3],
    a: Matrix,
    b: Matrix,
    c: Target,
    accumulate: bool,
    pack: &mut Vec<f32>,
) {
    if m == 0 || n == 0 {
        return;
    }
    let mut b = b;
    if b.col != 1 {
        // Rows padded to whole vectors stay aligned with each other.
        let ld = n.next_multiple_of(LANES);
        pack.resize(pack.len().max(k * ld), 0.0);
        // SAFETY: `pack` holds k rows of ld elements; B is readable by the caller's word.
        unsafe { transpose(b, k, n, pack.as_mut_ptr(), ld) };
        b = Matrix { ptr: pack.as_ptr(), row: ld, col: 1 };
    }
    // SAFETY: the caller's; each variant runs only where its instructions exist.
    unsafe {
        match level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => x86::avx512([m, n, k], a, b, c, accumulate),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => x86::avx2([m, n, k], a, b, c, accumulate),
            _ => portable([m, n, k], a, b, c, accumulate),
        }
    }
}

/// Writes B, given with contiguous columns (or any strides), as rows `ld` apart.
unsafe fn transpose(b: Matrix, k: usize, n: usize, out: *mut f32, ld: usize) {
    const T: usize = 16;
    for p0 in (0..k).step_by(T) {
        for j0 in (0..n).step_by(T) {
            let (pe, je) = ((p0 + T).min(k), (j0 + T).min(n));
            for j in j0..je {
                for p in p0..pe {
                    // SAFETY: p < k and j < n.
                    unsafe { *out.add(p * ld + j) = *b.ptr.add(p * b.row + j * b.col) };
                }
            }
        }
    }
}

unsafe fn portable([m, n, k]: [usize; 3], a: Matrix, b: Matrix, c: Target, accumulate: bool) {
    for i in 0..m {
        // SAFETY: i < m, p < k and j < n in the caller's extents.
        unsafe {
            let row = std::slice::from_raw_parts_mut(c.ptr.add(i * c.ld), n);
            if !accumulate {
                row.fill(0.0);
            }
            for p in 0..k {
                let x = *a.ptr.add(i * a.row + p * a.col);
                let own = std::slice::from_raw_parts(b.ptr.add(p * b.row), n);
                for (y, z) in row.iter_mut().zip(own) {
                    *y += x * z;
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Matrix, Target};
    use std::arch::x86_64::*;

    /// Columns of C a block covers: rows of B of one block stay in the first-level cache over all rows of A.
    macro_rules! driver {
        ($(#[$meta:meta])* $name:ident $block:ident lanes $lanes:literal vectors $nv:literal rows $mr:literal) => {
            $(#[$meta])*
            pub(super) unsafe fn $name([m, n, k]: [usize; 3], a: Matrix, b: Matrix, c: Target, accumulate: bool) {
                let mut j = 0;
                while j < n {
                    let width = (n - j).min($lanes * $nv);
                    let vectors = width.div_ceil($lanes);
                    let mut i = 0;
                    while i < m {
                        let rows = (m - i).min($mr);
                        // SAFETY: the block lies inside of the caller's extents; the last vector is masked to `width`.
                        unsafe {
                            let a = Matrix { ptr: a.ptr.add(i * a.row), ..a };
                            let b = Matrix { ptr: b.ptr.add(j), ..b };
                            let c = Target { ptr: c.ptr.add(i * c.ld + j), ..c };
                            $block(rows, vectors, k, width, a, b, c, accumulate);
                        }
                        i += rows;
                    }
                    j += width;
                }
            }
        };
    }
    driver! {
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
        avx512 block512 lanes 16 vectors 4 rows 6
    }
    driver! {
        #[target_feature(enable = "avx2,fma")]
        avx2 block256 lanes 8 vectors 2 rows 6
    }

    /// Picks the micro-kernel of this many rows and vectors.
    macro_rules! choose {
        ($kernel:ident $rows:ident $vectors:ident $args:tt [$($r:literal)*] $v:tt) => {
            match $rows { $($r => choose!(@v $kernel $r $vectors $args $v),)* _ => unreachable!("rows are bounded") }
        };
        (@v $kernel:ident $r:literal $vectors:ident $args:tt [$($v:literal)*]) => {
            match $vectors { $($v => choose!(@call $kernel $r $v $args),)* _ => unreachable!("vectors are bounded") }
        };
        (@call $kernel:ident $r:literal $v:literal ($($args:expr),*)) => { $kernel::<$r, $v>($($args),*) };
    }

    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
    #[allow(clippy::too_many_arguments, reason = "a micro-kernel's interface")]
    unsafe fn block512(
        rows: usize,
        vectors: usize,
        k: usize,
        width: usize,
        a: Matrix,
        b: Matrix,
        c: Target,
        acc: bool,
    ) {
        // SAFETY: the driver's.
        unsafe { choose!(kernel512 rows vectors (k, width, a, b, c, acc) [1 2 3 4 5 6] [1 2 3 4]) }
    }
    #[target_feature(enable = "avx2,fma")]
    #[allow(clippy::too_many_arguments, reason = "a micro-kernel's interface")]
    unsafe fn block256(
        rows: usize,
        vectors: usize,
        k: usize,
        width: usize,
        a: Matrix,
        b: Matrix,
        c: Target,
        acc: bool,
    ) {
        // SAFETY: the driver's.
        unsafe { choose!(kernel256 rows vectors (k, width, a, b, c, acc) [1 2 3 4 5 6] [1 2]) }
    }

    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
    unsafe fn kernel512<const R: usize, const V: usize>(
        k: usize,
        width: usize,
        a: Matrix,
        b: Matrix,
        c: Target,
        acc: bool,
    ) {
        let last: __mmask16 = u16::MAX >> (V * 16 - width);
        let mask = |v: usize| if v + 1 == V { last } else { u16::MAX };
        let mut sum = [[_mm512_setzero_ps(); V]; R];
        // SAFETY: R rows of A, `width` columns of B and C, k steps: the driver's extents.
        unsafe {
            for p in 0..k {
                let row = b.ptr.add(p * b.row);
                let mut x = [_mm512_setzero_ps(); V];
                for (v, x) in x.iter_mut().enumerate() {
                    *x = if v + 1 == V {
                        _mm512_maskz_loadu_ps(last, row.add(v * 16))
                    } else {
                        _mm512_loadu_ps(row.add(v * 16))
                    };
                }
                for (i, sum) in sum.iter_mut().enumerate() {
                    let y = _mm512_set1_ps(*a.ptr.add(i * a.row + p * a.col));
                    for (s, x) in sum.iter_mut().zip(&x) {
                        *s = _mm512_fmadd_ps(y, *x, *s);
                    }
                }
            }
            for (i, sum) in sum.iter().enumerate() {
                for (v, s) in sum.iter().enumerate() {
                    let to = c.ptr.add(i * c.ld + v * 16);
                    let s = if acc { _mm512_add_ps(*s, _mm512_maskz_loadu_ps(mask(v), to)) } else { *s };
                    _mm512_mask_storeu_ps(to, mask(v), s);
                }
            }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn kernel256<const R: usize, const V: usize>(
        k: usize,
        width: usize,
        a: Matrix,
        b: Matrix,
        c: Target,
        acc: bool,
    ) {
        let left = width - (V - 1) * 8;
        let lanes: [i32; 8] = std::array::from_fn(|i| if i < left { -1 } else { 0 });
        let mut sum = [[_mm256_setzero_ps(); V]; R];
        // SAFETY: R rows of A, `width` columns of B and C, k steps: the driver's extents.
        unsafe {
            let last = _mm256_loadu_si256(lanes.as_ptr().cast());
            let whole = left == 8;
            for p in 0..k {
                let row = b.ptr.add(p * b.row);
                let mut x = [_mm256_setzero_ps(); V];
                for (v, x) in x.iter_mut().enumerate() {
                    let at = row.add(v * 8);
                    *x = if v + 1 < V || whole { _mm256_loadu_ps(at) } else { _mm256_maskload_ps(at, last) };
                }
                for (i, sum) in sum.iter_mut().enumerate() {
                    let y = _mm256_broadcast_ss(&*a.ptr.add(i * a.row + p * a.col));
                    for (s, x) in sum.iter_mut().zip(&x) {
                        *s = _mm256_fmadd_ps(y, *x, *s);
                    }
                }
            }
            for (i, sum) in sum.iter().enumerate() {
                for (v, s) in sum.iter().enumerate() {
                    let to = c.ptr.add(i * c.ld + v * 8);
                    if v + 1 < V || whole {
                        let s = if acc { _mm256_add_ps(*s, _mm256_loadu_ps(to)) } else { *s };
                        _mm256_storeu_ps(to, s);
                    } else {
                        let s = if acc { _mm256_add_ps(*s, _mm256_maskload_ps(to, last)) } else { *s };
                        _mm256_maskstore_ps(to, last, s);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every small size, both orientations of A and B, assigned and accumulated, against doubles.
    #[test]
    fn products_of_all_small_sizes() {
        let value = |i: usize| ((i * 7919 + 13) % 101) as f32 / 50.0 - 1.0;
        let sizes = [0, 1, 2, 3, 5, 6, 7, 8, 15, 16, 17, 33, 65];
        let mut pack = vec![];
        for m in [0, 1, 5, 6, 7, 13] {
            for n in sizes {
                for k in [0, 1, 2, 7, 16, 33] {
                    for flags in 0..8 {
                        let (ta, tb, accumulate) = (flags & 1 == 1, flags & 2 == 2, flags & 4 == 4);
                        let a: Vec<f32> = (0..m * k).map(value).collect();
                        let b: Vec<f32> = (0..k * n).map(|i| value(i + 5)).collect();
                        let ld = n + 3;
                        let mut c: Vec<f32> = (0..m * ld).map(|i| value(i + 9)).collect();
                        let before = c.clone();
                        let (ar, ac) = if ta { (1, m) } else { (k, 1) };
                        let (br, bc) = if tb { (1, k) } else { (n, 1) };
                        let (ma, mb) = (
                            Matrix { ptr: a.as_ptr(), row: ar, col: ac },
                            Matrix { ptr: b.as_ptr(), row: br, col: bc },
                        );
                        let target = Target { ptr: c.as_mut_ptr(), ld };
                        // SAFETY: the vectors have these extents.
                        unsafe { gemm([m, n, k], ma, mb, target, accumulate, &mut pack) };
                        for i in 0..m {
                            for j in 0..ld {
                                let start = if accumulate { f64::from(before[i * ld + j]) } else { 0.0 };
                                let sum: f64 = (0..k)
                                    .map(|p| {
                                        f64::from(a[i * ar + p * ac])
                                            * f64::from(if j < n { b[p * br + j * bc] } else { 0.0 })
                                    })
                                    .sum();
                                let want = if j < n { start + sum } else { f64::from(before[i * ld + j]) };
                                let got = f64::from(c[i * ld + j]);
                                assert!((got - want).abs() < 1e-4, "{m}x{n}x{k} {flags} at {i},{j}: {got} {want}");
                            }
                        }
                    }
                }
            }
        }
    }
}

//! The processor: chains of fused multiply-adds that wait for nothing but themselves, and copies and sums by all
//! threads of as many bytes as each cache holds.
#![allow(unsafe_code, reason = "the fastest loops of the machine")]
use pallas_rt::ir::DType;
use std::hint::black_box;
use std::time::Instant;

/// Enough that threads which begin on one processor spend most of the time on two.
const STEPS: usize = 2_000_000;
/// Independent chains: enough to fill two pipelines of any latency so far.
const CHAINS: usize = 12;

/// Sums of `CHAINS` chains over vectors of `N` floats, and the operations they took.
#[inline(always)]
fn chains<const N: usize>() -> f32 {
    let mut sums = [[1.0f32; N]; CHAINS];
    for _ in 0..black_box(STEPS) {
        for sum in &mut sums {
            for x in sum.iter_mut() {
                *x = x.mul_add(0.999, 1e-6);
            }
        }
    }
    sums.iter().flatten().sum()
}

/// The same with a vector type's own intrinsics.
macro_rules! chains_of {
    ($name:ident, $features:literal, $splat:ident, $fma:ident, $reduce:expr) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        fn $name() -> f32 {
            use std::arch::x86_64::*;
            let (factor, term) = ($splat(0.999), $splat(1e-6));
            let mut sums = [$splat(1.0); CHAINS];
            for _ in 0..black_box(STEPS) {
                for sum in &mut sums {
                    *sum = $fma(*sum, factor, term);
                }
            }
            sums.into_iter().map($reduce).sum()
        }
    };
}
chains_of!(chains_avx512, "avx512f", _mm512_set1_ps, _mm512_fmadd_ps, |x| _mm512_reduce_add_ps(x));
chains_of!(chains_avx2, "avx2,fma", _mm256_set1_ps, _mm256_fmadd_ps, |x| _mm256_cvtss_f32(x));

/// Multiply-adds of narrow elements, several in each lane of the sums.
macro_rules! narrow_chains {
    ($name:ident, $features:literal, $zero:expr, $factor:expr, $step:expr) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        fn $name() -> f32 {
            use std::arch::x86_64::*;
            let mut sums = [$zero; CHAINS];
            for _ in 0..black_box(STEPS) {
                for sum in &mut sums {
                    *sum = $step(*sum, $factor);
                }
            }
            black_box(sums);
            0.0
        }
    };
}
narrow_chains!(
    chains_bf16,
    "avx512f,avx512bf16",
    _mm512_set1_ps(1.0),
    _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5), _mm512_set1_ps(0.5)),
    |sum, x| _mm512_dpbf16_ps(sum, x, x)
);
narrow_chains!(chains_i8, "avx512f,avx512vnni", _mm512_set1_epi32(1), _mm512_set1_epi8(1), |sum, x| {
    _mm512_dpbusd_epi32(sum, x, x)
});

/// Operations a second of all threads on one element type that the processor multiplies faster than f32; none where it
/// does not, or has matrix units, which this does not measure.
pub fn narrow_flops(dtype: DType, threads: usize) -> Option<f64> {
    let _ = (dtype, threads);
    #[cfg(target_arch = "x86_64")]
    {
        if std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("amx_tile")) {
            return None;
        }
        if dtype == DType::Bf16 && is_x86_feature_detected!("avx512bf16") {
            // SAFETY: the feature is there.
            return Some(all_threads(|| unsafe { chains_bf16() }, 32, threads));
        }
        if dtype == DType::I8 && is_x86_feature_detected!("avx512vnni") {
            // SAFETY: the feature is there.
            return Some(all_threads(|| unsafe { chains_i8() }, 64, threads));
        }
    }
    None
}

/// Operations a second of chains with this number of multiply-adds a step.
fn all_threads(run: fn() -> f32, lanes: usize, threads: usize) -> f64 {
    let seconds = best(12, || {
        std::thread::scope(|s| {
            for _ in 0..threads {
                s.spawn(|| black_box(run()));
            }
        });
    });
    (threads * STEPS * CHAINS * lanes * 2) as f64 / seconds
}

/// Floating point operations a second of all threads, with the widest vectors there are.
pub fn flops(threads: usize) -> f64 {
    let scalar = (chains::<4> as fn() -> f32, 4);
    #[cfg(target_arch = "x86_64")]
    let (run, lanes) = if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature is there.
        ((|| unsafe { chains_avx512() }) as fn() -> f32, 16)
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the features are there.
        ((|| unsafe { chains_avx2() }) as fn() -> f32, 8)
    } else {
        scalar
    };
    #[cfg(not(target_arch = "x86_64"))]
    let (run, lanes) = scalar;
    all_threads(run, lanes, threads)
}

/// Bytes a second, read and written ones counted, of all threads on memory of this size: the faster of a copy within it
/// and a sum over it, each thread on its own part again and again.
pub fn bytes(size: usize, threads: usize) -> f64 {
    let n = (size / 4 / threads / 2).max(SUMS);
    // Long enough that the start of threads does not count.
    let times = (256 << 20) / (8 * n * threads) + 1;
    let run = |work: fn(&[f32], &mut [f32])| {
        let mut parts: Vec<_> = (0..threads).map(|_| (vec![1.0f32; n], vec![0.0f32; n])).collect();
        let seconds = best(6, || {
            std::thread::scope(|s| {
                for (from, to) in &mut parts {
                    s.spawn(move || (0..times).for_each(|_| work(black_box(from), black_box(to))));
                }
            });
        });
        (8 * n * threads * times) as f64 / seconds
    };
    let copied = run(|from, to| to.copy_from_slice(from));
    let summed = run(|x, y| y[0] = sum(x) + sum(y));
    copied.max(summed)
}

/// As many independent sums as hide an addition's latency, whatever the width of vectors.
const SUMS: usize = 128;

fn sum(part: &[f32]) -> f32 {
    let mut sums = [0.0f32; SUMS];
    for row in part.as_chunks::<SUMS>().0 {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    sums.iter().sum()
}

/// Seconds of the fastest of several runs.
fn best(runs: usize, mut run: impl FnMut()) -> f64 {
    let once = |()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    std::iter::repeat_n((), runs).map(once).fold(f64::INFINITY, f64::min)
}

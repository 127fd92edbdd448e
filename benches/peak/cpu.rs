//! The processor: chains of fused multiply-adds that wait for nothing but themselves, and a copy by all threads.
#![allow(unsafe_code, reason = "the fastest loops of the machine")]
use std::hint::black_box;
use std::time::Instant;

const STEPS: usize = 100_000;
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
    let seconds = best(40, || {
        std::thread::scope(|s| {
            for _ in 0..threads {
                s.spawn(|| black_box(run()));
            }
        });
    });
    (threads * STEPS * CHAINS * lanes * 2) as f64 / seconds
}

/// Seconds to copy `n` floats by all threads.
pub fn copy_seconds(n: usize, threads: usize) -> f64 {
    let (from, mut to) = (vec![1.0f32; n], vec![0.0f32; n]);
    let part = n.div_ceil(threads);
    best(10, || {
        std::thread::scope(|s| {
            for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                s.spawn(|| to.copy_from_slice(from));
            }
        });
        black_box(&mut to);
    })
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

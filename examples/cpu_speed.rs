//! Speed of the CPU backend as a share of what the machine can do: fused multiply-adds and copied memory, measured here.
//!
//! `cargo run --release --no-default-features --example cpu_speed [-- part of a line's name]`
use pallas_kernels::flash_attention::flash_attention_blocks;
use pallas_kernels::matmul::matmul_blocks;
use pallas_kernels::norm::layer_norm;
use pallas_kernels::softmax::softmax;
use pallas_rt::{Array, Client, Result};
use std::hint::black_box;
use std::time::Instant;

fn main() -> Result<()> {
    let client = Client::cpu();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let peak = peak_flops(threads);
    println!("{threads} threads: {:.0} GFLOP/s of fused multiply-adds in f32", peak / 1e9);

    let n = 1024;
    let (a, b) = (numbers(&client, &[1, n, n])?, numbers(&client, &[1, n, n])?);
    let flops = 2.0 * (n as f64).powi(3);
    let report = |what: &str, flops: f64, seconds: Option<f64>| {
        if let Some(seconds) = seconds {
            println!("{what:<44} {:8.3} ms  {:5.2} of peak", seconds * 1e3, flops / seconds / peak);
        }
    };
    macro_rules! products {
        ($($block:literal $depth:literal),*) => {$(
            let what = format!("matmul {n}, blocks {}x{}x{}", $block, $block, $depth);
            report(&what, flops, best(&what, || matmul_blocks::<f32, $block, $block, $depth>(&a, &b, |x| x))?);
        )*};
    }
    products!(64 64, 128 256, 256 256);

    let (heads, positions, width) = (8, 1024, 64);
    let operand = || numbers(&client, &[1, heads, positions, width]);
    let (q, k, v) = (operand()?, operand()?, operand()?);
    let lengths = client.array(&[positions as i32], &[1])?;
    let flops = 4.0 * (heads * positions * positions * width) as f64;
    macro_rules! attention {
        ($($block:literal),*) => {$(
            let what = format!("flash attention {heads}x{positions}x{width}, blocks {}x{}", $block, $block);
            let call = || flash_attention_blocks::<f32, $block, $block>(&q, &k, &v, &lengths, 0.125, false, false);
            report(&what, flops, best(&what, call)?);
        )*};
    }
    attention!(64, 128);

    let x = numbers(&client, &[4096, 1024])?;
    let (gamma, beta) = (numbers(&client, &[1024])?, numbers(&client, &[1024])?);
    let copy = copy_seconds(x.len(), threads);
    let rows = |what: &str, seconds: Option<f64>| {
        if let Some(seconds) = seconds {
            println!("{what:<44} {:8.3} ms  {:5.2} copies", seconds * 1e3, seconds / copy);
        }
    };
    rows("softmax 4096x1024", best("softmax", || softmax(&x))?);
    rows("layer norm 4096x1024", best("layer norm", || layer_norm(&x, &gamma, &beta, 1e-5))?);
    Ok(())
}

fn numbers(client: &Client, shape: &[usize]) -> Result<Array> {
    let n: usize = shape.iter().product();
    let x: Vec<f32> = (0..n).map(|i| (i.wrapping_mul(2_654_435_761) % 1009) as f32 / 1009.0 - 0.5).collect();
    client.array(&x, shape)
}

/// Seconds of the fastest call within a third of a second; `None` for lines that were not asked for.
fn best<T>(what: &str, mut call: impl FnMut() -> Result<T>) -> Result<Option<f64>> {
    if std::env::args().nth(1).is_some_and(|part| !what.contains(&part)) {
        return Ok(None);
    }
    call()?;
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    while start.elapsed().as_secs_f64() < 0.34 {
        let begin = Instant::now();
        black_box(call()?);
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Ok(Some(best))
}

/// Independent multiply-add chains on every thread: what no product can exceed.
fn peak_flops(threads: usize) -> f64 {
    const STEPS: usize = 200_000;
    #[inline(always)]
    fn chains(steps: usize) -> f32 {
        let mut sums = [[1.0f32; 8]; 12];
        for _ in 0..steps {
            for sum in &mut sums {
                for x in sum.iter_mut() {
                    *x = x.mul_add(0.999, 1e-6);
                }
            }
        }
        sums.iter().flatten().sum()
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn chains_avx2(steps: usize) -> f32 {
        chains(steps)
    }
    let run = || {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the features are there.
            return unsafe { chains_avx2(black_box(STEPS)) };
        }
        chains(black_box(STEPS))
    };
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let begin = Instant::now();
        std::thread::scope(|s| (0..threads).for_each(|_| drop(s.spawn(|| black_box(run())))));
        best = best.min(begin.elapsed().as_secs_f64());
    }
    (threads * STEPS * 12 * 8 * 2) as f64 / best
}

/// Seconds to copy `n` floats on every thread.
fn copy_seconds(n: usize, threads: usize) -> f64 {
    let (from, mut to) = (vec![1.0f32; n], vec![0.0f32; n]);
    let part = n.div_ceil(threads);
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let begin = Instant::now();
        std::thread::scope(|s| {
            for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                s.spawn(|| to.copy_from_slice(from));
            }
        });
        best = best.min(begin.elapsed().as_secs_f64());
        black_box(&mut to);
    }
    best
}

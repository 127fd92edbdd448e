//! Speed of the CPU backend as a share of what the machine can do: fused multiply-adds and copied memory, measured
//! here. What is compared runs in turn, at least 15 times each; the fastest run of each counts.
//!
//! `cargo run --release --no-default-features --example cpu_speed [-- part of a line's name]`
#[allow(dead_code, reason = "benches measure other peaks, too")]
#[path = "../benches/peak/cpu.rs"]
mod peak;
mod usage;

use pallas_kernels::flash_attention::{
    Causal, Options, flash_attention, flash_attention_in_blocks, flash_attention_with_lse,
};
use pallas_kernels::flash_attention_backward::{flash_attention_backward, gradients_in_blocks};
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_kernels::matmul::{Layout, matmul, matmul_blocks, matmul_with};
use pallas_kernels::norm::layer_norm;
use pallas_kernels::norm_backward::{layer_norm_backward, rms_norm_backward};
use pallas_kernels::softmax::softmax;
use pallas_rt::ir::DType;
use pallas_rt::prelude::*;
use std::hint::black_box;
use std::time::Instant;

/// The smallest of launches.
#[kernel(grid = (cdiv(M, 16)))]
fn add(
    #[block([M, N] => [16, 16], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [16, 16], |i| (i, 0))] y: In<f32>,
    #[block([M, N] => [16, 16], |i| (i, 0))] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}

fn main() -> Result<()> {
    usage::read(include_str!("cpu_speed.rs"), &[]);
    let client = Client::cpu();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let peak = peak::flops(threads);
    println!("{threads} threads: {:.0} GFLOP/s of fused multiply-adds in f32", peak / 1e9);

    let n = 1024;
    let (a, b) = (numbers(&client, &[1, n, n])?, numbers(&client, &[1, n, n])?);
    let flops = 2.0 * (n as f64).powi(3);
    let report = |what: &str, flops: f64, seconds: Option<f64>| {
        if let Some(seconds) = seconds {
            println!("{what:<44} {:8.3} ms  {:5.2} of peak", seconds * 1e3, flops / seconds / peak);
        }
    };
    for [block, depth] in [[64, 64], [128, 256], [256, 256], [512, 512]] {
        let what = format!("matmul {n}, blocks {block}x{block}x{depth}");
        report(&what, flops, best(&what, || matmul_blocks::<f32, f32>(&a, &b, |x| x, block, block, depth))?);
    }

    let (heads, positions, width) = (8, 1024, 64);
    let operand = || numbers(&client, &[1, heads, positions, width]);
    let (q, k, v) = (operand()?, operand()?, operand()?);
    let options = Options { scale: Some(0.125), ..Options::default() };
    let flops = 4.0 * (heads * positions * positions * width) as f64;
    macro_rules! attention {
        ($($block:literal),*) => {$(
            let what = format!("flash attention {heads}x{positions}x{width}, blocks {}x{}", $block, $block);
            let call = || flash_attention_in_blocks::<f32>(&q, &k, &v, &options, [$block, $block]);
            report(&what, flops, best(&what, call)?);
        )*};
    }
    attention!(64, 128);

    let side_by_side = |x: &Array| x.reshape(&[heads, positions, width]);
    let (q3, k3, v3) = (side_by_side(&q), side_by_side(&k), side_by_side(&v));
    let unfused = || {
        let by_rows = Layout { b_transposed: true, ..Layout::default() };
        matmul(&softmax(&matmul_with(&q3, &k3, by_rows, |x| x * 0.125)?)?, &v3)
    };
    compare("attention", ["as one kernel", "as three"], || flash_attention(&q, &k, &v, &options), unfused)?;
    let long = || numbers(&client, &[1, heads, 2048, width]);
    let (q, k, v) = (long()?, long()?, long()?);
    let causal = Options { causal: Causal::FromStart, ..options };
    let masks = ["causal", "full"];
    let full = || flash_attention(&q, &k, &v, &options);
    compare("attention 2048", masks, || flash_attention(&q, &k, &v, &causal), full)?;
    // Four sequences side by side: a quarter of the scores.
    let sequence: Vec<i32> = (0..2048).map(|i| i / 512).collect();
    let sequence = client.array(&sequence, &[1, 2048])?;
    let packed = Options { segments: Some([&sequence, &sequence]), ..options };
    compare("attention 2048", ["four packed", "full"], || flash_attention(&q, &k, &v, &packed), full)?;
    for (mask, options, part) in [(masks[0], causal, 0.5), (masks[1], options, 1.0)] {
        let (out, lse) = flash_attention_with_lse(&q, &k, &v, &options)?;
        let (operands, results) = ([&q, &k, &v], [&out, &lse]);
        let both = || {
            let (out, lse) = flash_attention_with_lse(&q, &k, &v, &options)?;
            flash_attention_backward(operands, [&out, &lse], &out, &options)
        };
        let what = format!("attention 2048, forward and backward, {mask}");
        // Two products forward, five backward, of four times as many scores.
        report(&what, part * 3.5 * 4.0 * flops, best(&what, both)?);
        let one = || resident_gradients::<f32>(operands, results, &out, &options, [128, 128]);
        let two = || gradients_in_blocks::<f32>(operands, results, &out, &options, [[128; 2]; 2]);
        compare(&format!("attention 2048, backward, {mask}"), ["in one pass", "in two"], one, two)?;
    }

    let n = 1024;
    let (a, b) = (numbers(&client, &[n, n])?, numbers(&client, &[n, n])?);
    for dtype in [DType::F16, DType::Bf16] {
        let [x, y] = [narrow(&a, dtype)?, narrow(&b, dtype)?];
        compare(&format!("matmul {n}"), [&dtype.to_string(), "f32"], || matmul(&x, &y), || matmul(&a, &b))?;
        let [x, y, z] = [narrow(&q, dtype)?, narrow(&k, dtype)?, narrow(&v, dtype)?];
        let half = || flash_attention(&x, &y, &z, &options);
        compare("attention 2048", [&dtype.to_string(), "f32"], half, full)?;
    }

    let x = numbers(&client, &[4096, 1024])?;
    let (gamma, beta) = (numbers(&client, &[1024])?, numbers(&client, &[1024])?);
    // Of a copy, which reads and writes each byte once.
    let bytes = 2 * 4 * x.len();
    let copy = bytes as f64 / peak::bytes(bytes, threads);
    let rows = |what: &str, seconds: Option<f64>| {
        if let Some(seconds) = seconds {
            println!("{what:<44} {:8.3} ms  {:5.2} copies", seconds * 1e3, seconds / copy);
        }
    };
    rows("softmax 4096x1024", best("softmax", || softmax(&x))?);
    rows("layer norm 4096x1024", best("layer norm", || layer_norm(&x, &gamma, &beta, 1e-5))?);
    let dy = numbers(&client, &[4096, 1024])?;
    let backward = || layer_norm_backward(&x, &gamma, &dy, 1e-5);
    rows("layer norm backward 4096x1024", best("layer norm backward", backward)?);
    rows("RMS norm backward 4096x1024", best("RMS norm backward", || rms_norm_backward(&x, &gamma, &dy, 1e-5))?);
    let small = numbers(&client, &[16, 16])?;
    if let Some(seconds) = best("launch of an addition, 16x16", || add(&small, &small))? {
        println!("{:<44} {:8.2} µs", "launch of an addition, 16x16", seconds * 1e6);
    }
    Ok(())
}

fn numbers(client: &Client, shape: &[usize]) -> Result<Array> {
    let n: usize = shape.iter().product();
    let x: Vec<f32> = (0..n).map(|i| (i.wrapping_mul(2_654_435_761) % 1009) as f32 / 1009.0 - 0.5).collect();
    client.array(&x, shape)
}

/// The numbers in a 16-bit type.
fn narrow(x: &Array, dtype: DType) -> Result<Array> {
    let x32 = x.to_vec::<f32>()?;
    match dtype {
        DType::F16 => x.client().array(&x32.into_iter().map(f16::from_f32).collect::<Vec<_>>(), x.shape()),
        _ => x.client().array(&x32.into_iter().map(bf16::from_f32).collect::<Vec<_>>(), x.shape()),
    }
}

/// True if a line was asked for.
fn asked(what: &str) -> bool {
    std::env::args().nth(1).is_none_or(|part| what.contains(&part))
}

/// Seconds of a call, until its results are there.
fn seconds<T>(call: &mut impl FnMut() -> Result<T>) -> Result<f64> {
    let begin = Instant::now();
    black_box(call()?);
    Client::cpu().block_until_ready()?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Seconds of the fastest call within a third of a second, of 15 at least; `None` for lines that were not asked for.
fn best<T>(what: &str, mut call: impl FnMut() -> Result<T>) -> Result<Option<f64>> {
    if !asked(what) {
        return Ok(None);
    }
    call()?;
    let (start, mut best, mut calls) = (Instant::now(), f64::INFINITY, 0);
    while calls < 15 || start.elapsed().as_secs_f64() < 0.34 {
        best = best.min(seconds(&mut call)?);
        calls += 1;
    }
    Ok(Some(best))
}

/// Two calls in turn, the fastest of 20 each, and their ratio.
fn compare<T>(
    what: &str,
    names: [&str; 2],
    mut one: impl FnMut() -> Result<T>,
    mut other: impl FnMut() -> Result<T>,
) -> Result<()> {
    if !asked(what) {
        return Ok(());
    }
    let mut best = [f64::INFINITY; 2];
    for _ in 0..21 {
        best[0] = best[0].min(seconds(&mut one)?);
        best[1] = best[1].min(seconds(&mut other)?);
    }
    let [one, other] = best.map(|seconds| seconds * 1e3);
    println!("{what}: {} {one:.3} ms, {} {other:.3} ms: {:.2} of it", names[0], names[1], one / other);
    Ok(())
}

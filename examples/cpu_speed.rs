//! Speed of the CPU backend as a share of what the machine can do: fused multiply-adds and copied memory, measured here.
//!
//! `cargo run --release --no-default-features --example cpu_speed [-- part of a line's name]`
#[path = "../benches/peak/cpu.rs"]
mod peak;

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
    let copy = peak::copy_seconds(x.len(), threads);
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

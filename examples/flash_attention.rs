//! Fused attention on the real operands of a sentence encoder's layer (all-MiniLM-L6-v2), held against its stored
//! result.
//!
//! `cargo run --release -p pallas-examples --example flash_attention [-- --device cpu|gpu|interpret] [-- --explain]`
mod data;
mod device;
mod usage;

use pallas_kernels::flash_attention::{Options, block_sizes, flash_attention};
use pallas_rt::{Error, explain};
use std::process::ExitCode;
use std::time::Instant;

const TOLERANCE: f32 = 1e-5;

fn main() -> ExitCode {
    usage::read(include_str!("flash_attention.rs"), &["--device", "--explain"]);
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, Error> {
    let client = device::client()?;
    let mut arrays = data::load(&client, "minilm_attention.safetensors")?;
    let mut operand = |name: &str| data::take(&mut arrays, name);
    let (q, k, v, lengths) = (operand("q")?, operand("k")?, operand("v")?, operand("lengths")?);
    let expected = operand("out")?;
    let options = Options { lengths: Some(&lengths), ..Options::default() };
    let attend = || flash_attention(&q, &k, &v, &options);
    if std::env::args().any(|a| a == "--explain") {
        println!("{}", explain(attend)?);
        return Ok(true);
    }

    let first = attend()?;
    first.block_until_ready()?;
    let repeats = if client.kind() == pallas_rt::DeviceKind::Cpu { 20 } else { 1 };
    let mut best = f64::INFINITY;
    for _ in 0..repeats {
        let start = Instant::now();
        attend()?.block_until_ready()?;
        best = best.min(start.elapsed().as_secs_f64());
    }

    let [batch, heads, positions, head_dim] = *q.shape() else {
        return Err(Error::Value { message: format!("q has shape {:?}, expected four dimensions", q.shape()) });
    };
    let live: usize = lengths.to_vec::<i32>()?.iter().map(|&n| n as usize).sum();
    let flops = 4.0 * (heads * positions * live * head_dim) as f64;
    let error = greatest_error(&first.to_vec::<f32>()?, &expected.to_vec::<f32>()?);
    println!("device      {}", client.why());
    let shape = [batch, heads, positions, head_dim];
    let [queries, keys] = block_sizes(client.target(), q.dtype(), shape, positions, &options);
    println!(
        "q, k, v     [{batch}, {heads}, {positions}, {head_dim}] f32, blocks of {queries} queries and {keys} keys"
    );
    println!("time        {:.3} ms, {:.2} GFLOP/s", best * 1e3, flops / best / 1e9);
    println!("error       {error:.2e} at most (allowed {TOLERANCE:.0e})");
    Ok(error <= TOLERANCE)
}

/// NaN counts as infinitely wrong.
fn greatest_error(found: &[f32], expected: &[f32]) -> f32 {
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |worst, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) })
}

//! The gradient of `mean(vmap(loss))` against that of the same loss written for a batch, on the CPU: results of drawn
//! pairs are compared, then calls take turns, and the minimum of their times counts. A line per pair, and its time
//! mapped over written.
//!
//! `cargo bench --bench batches [-- part of a name] [--small] [--pairs N] [--seed N] [--runs N]`; `--small` shows that
//! it works, and measures nothing of use.
#[path = "../pallas-rt/src/jit/tests/batches/pairs/mod.rs"]
#[allow(dead_code, reason = "the tests plan functions for types")]
mod pairs;

use pairs::{Pair, Scale, pair};
use pallas_rt::{Array, Client, Result, grad, jit};
use std::process::ExitCode;
use std::time::Instant;

/// Most of the time of the written form that the mapped form may take.
const MOST: f64 = 1.15;

/// Milliseconds of a call, until its results are there.
fn once(call: &dyn Fn() -> Result<Vec<Array>>) -> Result<f64> {
    let start = Instant::now();
    for array in call()? {
        array.block_until_ready()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Least times of the written and of the mapped form, of at least `runs` calls in turn and of a tenth of a second.
fn times(pair: &Pair, client: &Client, runs: usize) -> Result<[f64; 2]> {
    let (w, x) = pair.arrays(client)?;
    let (written, mapped) = (jit(grad(pair.written())), jit(grad(pair.mapped())));
    for (own, other) in written(&w, &x)?.iter().zip(&mapped(&w, &x)?) {
        let (own, other) = (own.to_vec::<f32>()?, other.to_vec::<f32>()?);
        let most = own.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
        let is_near = own.len() == other.len() && own.iter().zip(&other).all(|(a, b)| (a - b).abs() <= 1e-3 * most);
        assert!(is_near, "{}: results differ", pair.name);
    }
    let calls: [&dyn Fn() -> Result<Vec<Array>>; 2] = [&|| written(&w, &x), &|| mapped(&w, &x)];
    let mut least = [f64::INFINITY; 2];
    let start = Instant::now();
    let mut done = 0;
    while done < runs || runs > 1 && start.elapsed().as_secs_f64() < 0.1 {
        for (least, call) in least.iter_mut().zip(calls) {
            *least = least.min(once(call)?);
        }
        done += 1;
    }
    Ok(least)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| {
        let at = arguments.iter().position(|a| a == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    let small = arguments.iter().any(|a| a == "--small");
    let part = arguments.first().filter(|a| !a.starts_with("--")).cloned().unwrap_or_default();
    let (count, seed) = (number("--pairs").unwrap_or(60), number("--seed").unwrap_or(1));
    let runs = if small { 1 } else { number("--runs").unwrap_or(15) as usize };
    let client = Client::cpu();
    let (mut slower, mut all) = (0, 0);
    println!("{:52} {:>11} {:>11} {:>6}", "gradient of a mean loss", "written ms", "mapped ms", "ratio");
    for i in 0..count as usize {
        let pair = pair(i, seed, if small { Scale::Small } else { Scale::Large });
        if !pair.name.contains(&part) {
            continue;
        }
        match times(&pair, &client, runs) {
            Ok([written, mapped]) => {
                let ratio = mapped / written;
                (slower, all) = (slower + usize::from(ratio > MOST), all + 1);
                println!("{:52} {written:11.4} {mapped:11.4} {ratio:6.2}", pair.name);
            }
            Err(error) => {
                println!("{}: {error}", pair.name);
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{slower} of {all} above {MOST}");
    ExitCode::SUCCESS
}

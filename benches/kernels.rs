//! The shipped kernels on the CPU and on every GPU: FLOP/s and bytes/s, and their share of what the device can do, measured
//! in the same run. Software adapters only with `PALLAS_DEVICE=gpu`, on smaller arrays.
//!
//! `cargo bench [-- part of a name]`; plots in `target/criterion/report/index.html`.
mod peak;

use criterion::{BenchmarkId, Criterion, Throughput};
use pallas_kernels::flash_attention::{Options, flash_attention};
use pallas_kernels::matmul::{Layout, matmul, matmul_with};
use pallas_kernels::{norm::layer_norm, softmax::softmax};
use pallas_rt::{Array, Client, DeviceKind, Result, cost};
use peak::Peak;
use std::cell::Cell;
use std::time::{Duration, Instant};

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for client in clients() {
        let peak = peak::measure(&client);
        println!("\n{}", client.device());
        println!("    measured peaks: {:.0} GFLOP/s, {:.1} GB/s\n", peak.flops / 1e9, peak.bytes / 1e9);
        let mut bench = Bench { criterion: &mut criterion, client: &client, peak };
        bench.all().unwrap_or_else(|e| panic!("{e}"));
    }
    criterion.final_summary();
}

/// The CPU, and the adapters. A software adapter is no GPU, unless asked for.
fn clients() -> Vec<Client> {
    let asked = std::env::var("PALLAS_DEVICE").is_ok_and(|device| device.starts_with("gpu"));
    let gpus = Client::devices().into_iter().filter(|d| d.kind == DeviceKind::Gpu && (asked || !d.software));
    [Client::cpu()].into_iter().chain(gpus.filter_map(|d| Client::gpu(d.index).ok())).collect()
}

struct Bench<'a> {
    criterion: &'a mut Criterion,
    client: &'a Client,
    peak: Peak,
}

impl Bench<'_> {
    fn all(&mut self) -> Result<()> {
        let small = self.client.device().software;
        for n in if small { vec![128] } else { vec![256, 1024] } {
            let (a, b) = (self.numbers(&[n, n])?, self.numbers(&[n, n])?);
            self.one("matmul", &format!("{n}"), 2.0 * (n as f64).powi(3), 12 * n * n, || matmul(&a, &b))?;
        }

        let (rows, columns) = if small { (64, 256) } else { (4096, 1024) };
        let shape = format!("{rows}x{columns}");
        let x = self.numbers(&[rows, columns])?;
        let (gamma, beta) = (self.numbers(&[columns])?, self.numbers(&[columns])?);
        let elements = rows * columns;
        let flops = |f: &dyn Fn() -> Result<Array>| cost(f).map(|c| (c.flops + c.transcendentals) as f64);
        let call = || softmax(&x);
        self.one("softmax", &shape, flops(&call)?, 8 * elements, call)?;
        let call = || layer_norm(&x, &gamma, &beta, 1e-5);
        self.one("layer_norm", &shape, flops(&call)?, 8 * elements, call)?;

        let (heads, positions, d) = if small { (1, 64, 32) } else { (8, 1024, 64) };
        let operand = || self.numbers(&[1, heads, positions, d]);
        let (q, k, v) = (operand()?, operand()?, operand()?);
        let shape = format!("{heads}x{positions}x{d}");
        let (flops, bytes) = (4.0 * (heads * positions * positions * d) as f64, 16 * heads * positions * d);
        let options = Options { scale: Some(SCALE), ..Options::default() };
        let fused = self.one("attention fused", &shape, flops, bytes, || flash_attention(&q, &k, &v, &options))?;
        let unfused = self.one("attention unfused", &shape, flops, bytes, || unfused_attention(&q, &k, &v))?;
        if let (Some(fused), Some(unfused)) = (fused, unfused) {
            println!("    fused against three kernels: {:.2} times as fast\n", unfused / fused);
        }
        Ok(())
    }

    fn numbers(&self, shape: &[usize]) -> Result<Array> {
        let n: usize = shape.iter().product();
        let x: Vec<f32> = (0..n).map(|i| (i.wrapping_mul(2_654_435_761) % 1009) as f32 / 1009.0 - 0.5).collect();
        self.client.array(&x, shape)
    }

    /// Measures a call; prints its rates and their shares of the peaks; gives the seconds of the fastest sample, or nothing
    /// where it was not asked for.
    fn one(
        &mut self,
        name: &str,
        shape: &str,
        flops: f64,
        bytes: usize,
        call: impl Fn() -> Result<Array>,
    ) -> Result<Option<f64>> {
        // A mistake shows here, before criterion takes over.
        call()?.block_until_ready()?;
        let best = Cell::new(f64::INFINITY);
        let mut group = self.criterion.benchmark_group(name);
        group.throughput(Throughput::ElementsAndBytes { elements: flops as u64, bytes: bytes as u64 });
        group.bench_function(BenchmarkId::new(self.client.device().id(), shape), |b| {
            b.iter_custom(|times| {
                let start = Instant::now();
                for _ in 0..times {
                    call().expect("it ran before");
                }
                // A GPU computes behind the calls.
                self.client.block_until_ready().expect("it ran before");
                let took = start.elapsed();
                best.set(best.get().min(took.as_secs_f64() / times as f64));
                took
            });
        });
        group.finish();
        let seconds = best.get();
        if !seconds.is_finite() {
            return Ok(None);
        }
        let (flops, bytes) = (flops / seconds, bytes as f64 / seconds);
        println!(
            "    {name} {shape} on {}: {:.3} ms, {:.1} GFLOP/s ({:.0} % of the peak), {:.1} GB/s ({:.0} %)\n",
            self.client.device().id(),
            seconds * 1e3,
            flops / 1e9,
            100.0 * flops / self.peak.flops,
            bytes / 1e9,
            100.0 * bytes / self.peak.bytes,
        );
        Ok(Some(seconds))
    }
}

/// 1 / sqrt(64).
const SCALE: f32 = 0.125;

/// The same mathematics as three kernels, with the matrix of scores in memory between them.
fn unfused_attention(q: &Array, k: &Array, v: &Array) -> Result<Array> {
    let [_, heads, positions, d] = *q.shape() else { unreachable!("made above") };
    let flat = |x: &Array| x.reshape(&[heads, positions, d]);
    let scores = matmul_with(&flat(q)?, &flat(k)?, Layout { b_transposed: true, ..Layout::default() }, |s| s * SCALE)?;
    matmul(&softmax(&scores)?, &flat(v)?)
}

//! The shipped kernels on the CPU and on every GPU: FLOP/s and bytes/s, and their share of what the device can do,
//! measured in the same run. Software adapters only with `PALLAS_DEVICE=gpu`, on smaller arrays.
//!
//! `cargo bench [-- part of a name] [--small]`; plots in `target/criterion/report/index.html`. `--small` calls each
//! case once on small arrays: it shows that it works, and measures nothing.
mod cases;
mod peak;
#[path = "../kernels/cases/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "tests read the rest")]
mod registry;

use cases::Case;
use criterion::{BenchmarkId, Criterion, Throughput};
use pallas_rt::{Client, DeviceKind, Result};
use peak::Peak;
use std::cell::Cell;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    if std::env::args().any(|arg| arg == "--small") {
        return match clients().iter().try_for_each(once) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut impossible = vec![];
    for client in clients() {
        let peak = peak::measure(&client);
        println!("\n{}", client.device());
        println!("    measured peaks: {:.0} GFLOP/s, {:.1} GB/s\n", peak.flops / 1e9, peak.bytes / 1e9);
        let mut bench = Bench { criterion: &mut criterion, client: &client, peak, impossible: vec![] };
        bench.all().unwrap_or_else(|e| panic!("{e}"));
        impossible.append(&mut bench.impossible);
    }
    criterion.final_summary();
    for line in &impossible {
        eprintln!("above the machine's limit, so it is measured wrongly: {line}");
    }
    if impossible.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The CPU, and the adapters. A software adapter is no GPU, unless one is asked for and there is no other.
fn clients() -> Vec<Client> {
    let asked = std::env::var("PALLAS_DEVICE").is_ok_and(|device| device.starts_with("gpu"));
    let gpus = || Client::devices().into_iter().filter(|d| d.kind == DeviceKind::Gpu);
    let software = asked && gpus().all(|d| d.software);
    let gpus = gpus().filter(|d| software || !d.software);
    [Client::cpu()].into_iter().chain(gpus.filter_map(|d| Client::gpu(d.index).ok())).collect()
}

/// Calls each case on small arrays.
fn once(client: &Client) -> Result<()> {
    let cases = cases::all(client, true)?;
    for case in &cases {
        case.run()?;
    }
    client.block_until_ready()?;
    println!("{} kernels on {}", cases.len(), client.device());
    Ok(())
}

/// Factor by which a figure may be above a limit that was measured at another moment.
const NOISE: f64 = 1.2;

struct Bench<'a> {
    criterion: &'a mut Criterion,
    client: &'a Client,
    peak: Peak,
    /// Lines of cases that are faster than the device.
    impossible: Vec<String>,
}

impl Bench<'_> {
    fn all(&mut self) -> Result<()> {
        let mut seconds = vec![];
        for case in cases::all(self.client, false)? {
            seconds.push((case.name.clone(), self.one(&case)?));
        }
        let of = |name: &str| seconds.iter().find(|(n, _)| n == name).and_then(|(_, seconds)| *seconds);
        for (fused, kernels) in [("attention", "attention unfused"), ("cross-entropy", "cross-entropy unfused")] {
            if let (Some(a), Some(b)) = (of(fused), of(kernels)) {
                println!("    {fused}: {:.2} times as fast as several kernels\n", b / a);
            }
        }
        Ok(())
    }

    /// Measures a call; prints its rates and their shares of the peaks; gives the seconds of the fastest sample, or
    /// nothing where it was not asked for.
    fn one(&mut self, case: &Case) -> Result<Option<f64>> {
        let Case { name, shape, flops, .. } = case;
        // A mistake shows here, before criterion takes over.
        let outputs = case.run()?;
        self.client.block_until_ready()?;
        let bytes = case.bytes(&outputs);
        let best = Cell::new(f64::INFINITY);
        let mut group = self.criterion.benchmark_group(name);
        group.throughput(Throughput::ElementsAndBytes { elements: *flops as u64, bytes: bytes as u64 });
        group.bench_function(BenchmarkId::new(self.client.device().id(), shape), |b| {
            b.iter_custom(|times| {
                let start = Instant::now();
                for _ in 0..times {
                    case.run().expect("it ran before");
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
        let dtype = case.inputs[0].dtype();
        let (limit, memory) = (self.peak.flops_of(dtype), self.peak.bytes_of(bytes));
        let (flops, rate) = (flops / seconds, bytes as f64 / seconds);
        let share = limit.map_or(String::new(), |limit| format!(" ({:.0} % of {dtype}'s peak)", 100.0 * flops / limit));
        let line = format!(
            "{name} {shape} on {}: {:.3} ms, {:.1} GFLOP/s{share}, {:.1} GB/s ({:.0} % of what {} KiB have)",
            self.client.device().id(),
            seconds * 1e3,
            flops / 1e9,
            rate / 1e9,
            100.0 * rate / memory,
            bytes >> 10,
        );
        println!("    {line}\n");
        if limit.is_some_and(|limit| flops > NOISE * limit) || rate > NOISE * memory {
            self.impossible.push(line);
        }
        Ok(Some(seconds))
    }
}

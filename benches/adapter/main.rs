//! The shipped kernels on the present adapter against WGSL written by hand for the same wgpu device, and against CubeK.
//!
//! `cargo bench --bench adapter [-- part of a case's name] [--cubek] [--runs=15] [--json] [--small]` prints a line a
//! case and peer: the peer's wall time over ours, that of the processors' time, which is what counts on a software
//! adapter, and that of the first results, compilation included, caches empty. More than 1 is ahead. `--json` prints
//! JSON lines. `--cubek` builds the crate `benches/cubek`, which takes ten minutes, and runs it at the other end of a
//! pipe; `--cubek=PATH` takes a program that was built before. `--small` shows that it works, and measures nothing of
//! use.
mod clock;
mod cubek;
mod hand;
#[path = "../peak/mod.rs"]
#[expect(dead_code, reason = "limits by element type and size are for kernels.rs")]
mod peak;

use clock::Took;
use cubek::CubeK;
use hand::Hand;
use pallas_kernels::flash_attention::{Causal, Options, flash_attention};
use pallas_kernels::matmul::matmul;
use pallas_rt::{Array, Client, DeviceKind, Error, Result};

/// Case that is computed.
#[derive(Clone, Copy)]
enum Case {
    Matmul { n: usize },
    Attention { heads: usize, positions: usize, causal: bool },
}

/// Size of a head.
const HEAD: usize = 64;

impl Case {
    const ALL: [Case; 4] = [
        Case::Matmul { n: 1024 },
        Case::Matmul { n: 512 },
        Case::Attention { heads: 8, positions: 512, causal: false },
        Case::Attention { heads: 8, positions: 512, causal: true },
    ];

    const SMALL: [Case; 3] = [
        Case::Matmul { n: 128 },
        Case::Attention { heads: 1, positions: 128, causal: false },
        Case::Attention { heads: 1, positions: 128, causal: true },
    ];

    fn name(self) -> String {
        match self {
            Case::Matmul { n } => format!("matmul/{n}"),
            Case::Attention { heads, positions, causal } => {
                let mask = if causal { "causal" } else { "full" };
                format!("attention_{mask}/{heads}x{positions}x{HEAD}")
            }
        }
    }
    fn flops(self) -> f64 {
        match self {
            Case::Matmul { n } => 2.0 * (n as f64).powi(3),
            Case::Attention { heads, positions, causal } => {
                let seen = positions * if causal { positions + 1 } else { 2 * positions } / 2;
                4.0 * (heads * seen * HEAD) as f64
            }
        }
    }
    /// Shape of each operand.
    fn operands(self) -> Vec<Vec<usize>> {
        match self {
            Case::Matmul { n } => vec![vec![n, n]; 2],
            Case::Attention { heads, positions, .. } => vec![vec![1, heads, positions, HEAD]; 3],
        }
    }
    fn call(self, x: &[Array]) -> Result<Array> {
        match self {
            Case::Matmul { .. } => matmul(&x[0], &x[1]),
            Case::Attention { causal, .. } => {
                let causal = if causal { Causal::FromStart } else { Causal::No };
                flash_attention(&x[0], &x[1], &x[2], &Options { causal, ..Options::default() })
            }
        }
    }
}

/// The same numbers for every program: those of an operand.
fn numbers(elements: usize, operand: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7 + operand * 3 + 1).wrapping_mul(2_654_435_761) % 1009) as f32 / 1009.0 - 0.5;
    (0..elements).map(number).collect()
}

/// One that computes a case.
trait Peer {
    fn name(&self) -> String;
    /// The first run, compilation included.
    fn first(&mut self) -> Result<Took>;
    fn run(&mut self) -> Result<Took>;
    fn result(&mut self) -> Result<Vec<f32>>;
}

/// The shipped kernel.
struct Ours {
    client: Client,
    case: Case,
    operands: Vec<Array>,
    result: Option<Array>,
}

impl Ours {
    fn new(client: &Client, case: Case) -> Result<Ours> {
        let array = |(i, shape): (usize, &Vec<usize>)| client.array(&numbers(shape.iter().product(), i), shape);
        let operands = case.operands().iter().enumerate().map(array).collect::<Result<_>>()?;
        client.block_until_ready()?;
        Ok(Ours { client: client.clone(), case, operands, result: None })
    }
}

impl Peer for Ours {
    fn name(&self) -> String {
        "ours".into()
    }
    fn first(&mut self) -> Result<Took> {
        self.run()
    }
    fn run(&mut self) -> Result<Took> {
        clock::time(|| {
            self.result = Some(self.case.call(&self.operands)?);
            self.client.block_until_ready()
        })
    }
    fn result(&mut self) -> Result<Vec<f32>> {
        self.result.as_ref().expect("it ran").to_vec()
    }
}

fn main() -> Result<()> {
    clock::without_caches();
    let arguments = std::env::args().skip(1).filter(|a| a != "--bench");
    let (mut part, mut runs, mut cubek, mut json, mut cases) = (String::new(), 15, None, false, &Case::ALL[..]);
    for argument in arguments {
        match argument.split_once('=').unwrap_or((&argument, "")) {
            ("--runs", n) => runs = n.parse().unwrap_or(runs),
            ("--json", _) => json = true,
            ("--small", _) => (runs, cases) = (1, &Case::SMALL),
            ("--cubek", path) => cubek = Some(path.to_string()),
            _ => part = argument,
        }
    }
    let Some(device) = Client::devices().into_iter().find(|d| d.kind == DeviceKind::Gpu) else {
        eprintln!("no adapter: nothing to compare");
        return Ok(());
    };
    let client = Client::gpu(device.index)?;
    let peak::Peak { flops, bytes, .. } = peak::measure(&client);
    eprintln!("measured peaks: {:.0} GFLOP/s, {:.1} GB/s", flops / 1e9, bytes / 1e9);
    if !json {
        println!("{:28}{:>12}{:>9}  {:14}{:>8}{:>8}{:>8}", "case", "ms", "of peak", "peer", "wall", "cpu", "first");
    }
    let cubek = cubek.and_then(|path| cubek::program(&path).inspect_err(|e| eprintln!("CubeK is left out: {e}")).ok());
    for &case in cases.iter().filter(|c| c.name().contains(&part)) {
        let mut peers: Vec<Box<dyn Peer>> = vec![];
        peers.extend(Hand::all(&client, case).into_iter().map(|h| Box::new(h) as Box<dyn Peer>));
        if let Some(program) = &cubek {
            peers.push(Box::new(CubeK::start(program, case).map_err(|e| message(&e))?));
        }
        compare(&client, case, &mut peers, Report { runs, flops, json })?;
    }
    Ok(())
}

fn message(e: &dyn std::fmt::Display) -> Error {
    Error::Value { message: e.to_string() }
}

/// Measured and printed numbers of a case.
#[derive(Clone, Copy)]
struct Report {
    runs: usize,
    /// The adapter's peak.
    flops: f64,
    json: bool,
}

/// Runs a case and its peers in turn, and prints their lines.
fn compare(client: &Client, case: Case, peers: &mut [Box<dyn Peer>], report: Report) -> Result<()> {
    let mut ours = Ours::new(client, case)?;
    let first = ours.first()?;
    let expected = ours.result()?;
    let mut first_of = vec![];
    for peer in peers.iter_mut() {
        first_of.push(peer.first()?);
        let far = |(x, y): (&f32, &f32)| (x - y).abs() > 1e-3 * (1.0 + x.abs());
        let got = peer.result()?;
        if got.len() != expected.len() || expected.iter().zip(&got).any(far) {
            return Err(message(&format!("{} and ours differ on {}", peer.name(), case.name())));
        }
    }
    let mut best = Took::MOST;
    let mut best_of = vec![Took::MOST; peers.len()];
    for _ in 0..report.runs {
        best = best.least(ours.run()?);
        for (best, peer) in best_of.iter_mut().zip(peers.iter_mut()) {
            *best = best.least(peer.run()?);
        }
    }
    let (name, device) = (case.name(), client.device());
    let share = case.flops() / (best.wall * 1e-3) / report.flops;
    if !report.json {
        println!("{name:28}{:>12.3}{:>8.1}%", best.wall, 100.0 * share);
        for ((peer, took), cold) in peers.iter().zip(&best_of).zip(&first_of) {
            let ratios = [took.wall / best.wall, took.cpu / best.cpu, cold.wall / first.wall];
            println!("{:51}{:14}{:>8.2}{:>8.2}{:>8.2}", "", peer.name(), ratios[0], ratios[1], ratios[2]);
        }
        return Ok(());
    }
    println!(
        "{{\"case\": \"{name}\", \"device\": \"{}\", {}, {}, \"share_of_peak\": {share:.3}}}",
        device.name,
        best.json("ours"),
        first.json("ours_first")
    );
    for ((peer, took), cold) in peers.iter().zip(&best_of).zip(&first_of) {
        println!(
            "{{\"case\": \"{name}\", \"device\": \"{}\", {}, \"peer\": \"{}\", {}, {}, \"ratio\": {:.3}, \"cpu_ratio\": {:.3}, \
             \"first_ratio\": {:.3}, \"share_of_peak\": {share:.3}}}",
            device.name,
            best.json("ours"),
            peer.name(),
            took.json("peer"),
            cold.json("peer_first"),
            took.wall / best.wall,
            took.cpu / best.cpu,
            cold.wall / first.wall
        );
    }
    Ok(())
}

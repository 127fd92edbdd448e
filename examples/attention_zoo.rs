//! Every option of flash attention on the operands of a sentence encoder's layer: its time, and the largest error
//! against plain attention in double precision.
//!
//! `cargo run --release --example attention_zoo [-- --device cpu|gpu|interpret]`
mod data;
mod device;
mod usage;

use pallas_kernels::attention_options::{Dropout, Window};
use pallas_kernels::flash_attention::{Causal, Options, flash_attention};
use pallas_rt::prelude::*;
use pallas_rt::{DeviceKind, threefry};
use std::time::Instant;

fn main() -> Result<()> {
    usage::read(include_str!("attention_zoo.rs"), &["--device"]);
    run(&device::client()?)
}

const DEAD: f64 = f64::NEG_INFINITY;
/// Change of the score of batch element, head, query and key.
type Score = Box<dyn Fn([usize; 4], f64) -> f64>;

/// The reference: a sink takes its part of the softmax, `keep` multiplies probabilities.
struct Plain {
    score: Score,
    sinks: Vec<f64>,
    keep: Score,
}

/// `softmax(scores) v` of operands `[b, h, s, d]`, keys and values having `g` heads.
fn attention([q, k, v]: [&[f64]; 3], [b, h, g, s, d]: [usize; 5], plain: &Plain) -> Vec<f64> {
    let mut out = vec![0.0; b * h * s * d];
    for row in 0..b * h * s {
        let (n, head, i) = (row / (h * s), row / s % h, row % s);
        let key = |j: usize| ((n * g + head / (h / g)) * s + j) * d;
        let product = |j: usize| (0..d).map(|c| q[row * d + c] * k[key(j) + c]).sum::<f64>() / (d as f64).sqrt();
        let scores: Vec<f64> = (0..s).map(|j| (plain.score)([n, head, i, j], product(j))).collect();
        let sink = plain.sinks.get(head).map_or(0.0, |x| x.exp());
        let total: f64 = sink + scores.iter().map(|x| x.exp()).sum::<f64>();
        for (j, score) in scores.iter().enumerate() {
            let p = (plain.keep)([n, head, i, j], score.exp() / total);
            (0..d).for_each(|c| out[row * d + c] += p * v[key(j) + c]);
        }
    }
    out
}

/// The random words that dropout compares with its rate.
#[kernel(grid = (R))]
fn words(#[block([R, K] => [1, K], |r| (r, 0))] out: Out<u32>, seed: u32, #[dim] R: usize, #[dim] K: usize) {
    let row = iota::<u32>([1, K], 0) + program_id(0).cast::<u32>();
    out.store(threefry::bits([scalar(0u32), seed], [row, iota::<u32>([1, K], 1)]));
}

/// Prints the table; panics where an error is larger than rounding.
pub fn run(client: &Client) -> Result<()> {
    let mut arrays = data::load(client, "minilm_attention.safetensors")?;
    let [q, k, v, lengths] = ["q", "k", "v", "lengths"].map(|name| data::take(&mut arrays, name));
    let (whole, lengths) = ([q?, k?, v?], lengths?.to_vec::<i32>()?);
    // Devices that are slow see a part.
    let [b, h, s, d] = if client.kind() == DeviceKind::Cpu { [2, 12, 176, 32] } else { [1, 4, 24, 32] };
    let part = |x: &Array, heads: usize| -> Result<(Array, Vec<f64>)> {
        let (from, [_, all, rows, _]) = (x.to_vec::<f32>()?, [2, 12, 176, 32]);
        let at = |e: usize| ((e / (heads * s * d) * all + e / (s * d) % heads) * rows + e / d % s) * d + e % d;
        let cut: Vec<f32> = (0..b * heads * s * d).map(|e| from[at(e)]).collect();
        Ok((client.array(&cut, &[b, heads, s, d])?, cut.into_iter().map(f64::from).collect()))
    };
    let ends: Vec<usize> = lengths[..b].iter().map(|&n| (n as usize).min(s) - s / 8).collect();
    let ends_array = client.array(&ends.iter().map(|&n| n as i32).collect::<Vec<_>>(), &[b])?;
    let segment = client.array(&(0..b * s).map(|e| (e % s / 16) as i32).collect::<Vec<_>>(), &[b, s])?;
    let slopes: Vec<f32> = (0..h * s * s).map(|e| (e % s * (e / (s * s))) as f32 / -128.0).collect();
    let (slopes, sink) = (client.array(&slopes, &[1, h, s, s])?, client.full(&[h], 0.5f32)?);
    let bits = words(7, b * h * s, s)?.to_vec::<u32>()?;
    let drop = move |[n, head, i, j]: [usize; 4], p: f64| match bits[((n * h + head) * s + i) * s + j] {
        word if word < 1 << 30 => 0.0,
        _ => p / 0.75,
    };

    let (base, causal) = (Options::default(), Causal::FromStart);
    let (lengths, segments, bias, sinks) = (Some(&ends_array), Some([&segment; 2]), Some(&slopes), Some(&sink));
    let (window, dropout) = (Window { left: Some(16), right: Some(4) }, Some(Dropout { rate: 0.25, seed: 7.into() }));
    let any = || -> Score { Box::new(|_, x| x) };
    let only = |live: fn([usize; 4]) -> bool| -> Score { Box::new(move |at, x| if live(at) { x } else { DEAD }) };
    let cut: Score = Box::new(move |[n, _, _, j], x| if j < ends[n] { x } else { DEAD });
    let tilt: Score = Box::new(|[_, head, _, j], x| x - (j * head) as f64 / 128.0);
    let cap: Score = Box::new(|_, x| 2.0 * (x / 2.0).tanh());
    let cases = [
        ("plain", base, h, any()),
        ("key lengths", Options { lengths, ..base }, h, cut),
        ("causal", Options { causal, ..base }, h, only(|[.., i, j]| j <= i)),
        ("window of 16 and 4", Options { window, ..base }, h, only(|[.., i, j]| i <= j + 16 && j <= i + 4)),
        ("segments of 16", Options { segments, ..base }, h, only(|[.., i, j]| i / 16 == j / 16)),
        ("bias", Options { bias, ..base }, h, tilt),
        ("soft-cap", Options { soft_cap: Some(2.0), ..base }, h, cap),
        ("sinks", Options { sinks, ..base }, h, any()),
        ("dropout", Options { dropout, ..base }, h, any()),
        ("groups of 4 heads, causal", Options { causal, ..base }, h / 4, only(|[.., i, j]| j <= i)),
    ];
    println!("{}: [{b}, {h}, {s}, {d}] f32\n{:<28}{:>10}{:>12}", client.why(), "option", "ms", "error");
    for (name, options, g, score) in cases {
        let ((q, q64), (k, k64), (v, v64)) = (part(&whole[0], h)?, part(&whole[1], g)?, part(&whole[2], g)?);
        let sinks = if options.sinks.is_some() { vec![0.5; h] } else { vec![] };
        let keep: Score = if options.dropout.is_some() { Box::new(drop.clone()) } else { Box::new(|_, p| p) };
        let want = attention([&q64, &k64, &v64], [b, h, g, s, d], &Plain { score, sinks, keep });
        let mut best = f64::INFINITY;
        let mut found = vec![];
        for _ in 0..if client.kind() == DeviceKind::Cpu { 5 } else { 1 } {
            let start = Instant::now();
            let out = flash_attention(&q, &k, &v, &options)?;
            out.block_until_ready()?;
            best = best.min(start.elapsed().as_secs_f64());
            found = out.to_vec::<f32>()?;
        }
        let differences = found.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).abs());
        let error = differences.fold(0.0, |worst: f64, d| if d.is_nan() { f64::INFINITY } else { worst.max(d) });
        println!("{name:<28}{:>10.3}{error:>12.1e}", best * 1e3);
        assert!(error < 1e-4, "{name} is off by {error}");
    }
    Ok(())
}

//! A recurrent network that reads an image row by row: the gradient passes through a `scan` over the rows.
//!
//! `cargo run --release --example rnn_scan [-- --device cpu|gpu|interpret]`
//!
//! The state after eight rows of handwritten digits, each of eight pixels, tells which digit it was. A step of training
//! is traced once, and the body of the scan once in it. The exit code is 1 if the losses of the first epoch are not
//! JAX's, or less than 94% of the held-out images are right after the last.
#[path = "data/digits.rs"]
mod digits;
#[path = "data/numbers.rs"]
mod numbers;
mod usage;

mod device;

use digits::{Digits, Images, Random};
use indicatif::{ProgressBar, ProgressStyle};
use numbers::{compare, numbers};
use pallas_rt::prelude::*;
use pallas_rt::{jit, ops, scan, tree, value_and_grad};

const BATCH: usize = 48;
const ROW: usize = 8;
const STATE: usize = 64;
const CLASSES: usize = 10;
const EPOCHS: usize = 20;
const RATE: f64 = 0.02;
const GOAL: f32 = 0.94;

#[derive(Clone, Tree)]
struct Network {
    /// From a row to the state.
    row: Array,
    /// From the state before.
    state: Array,
    bias: Array,
    out: Array,
    out_bias: Array,
}

impl Network {
    fn new(client: &Client, random: &mut Random) -> Result<Network> {
        let mut weights = |rows, columns, range| client.array(&random.between(rows * columns, range), &[rows, columns]);
        let (row, state, out) = (weights(ROW, STATE, 0.4)?, weights(STATE, STATE, 0.2)?, weights(STATE, CLASSES, 0.2)?);
        let (bias, out_bias) = (client.zeros(&[STATE], DType::F32)?, client.zeros(&[CLASSES], DType::F32)?);
        Ok(Network { row, state, bias, out, out_bias })
    }

    /// The scores of each digit, for rows `[8, images, 8]`.
    fn scores(&self, rows: &Array) -> Result<Array> {
        let start = ops::zeros(&[rows.shape()[1], STATE], DType::F32);
        let (last, ()) = scan(&start, rows, |h: &Array, row: &Array| {
            ((row.matmul(&self.row) + h.matmul(&self.state) + &self.bias).tanh(), ())
        })?;
        Ok(last.matmul(&self.out) + &self.out_bias)
    }
}

/// The mean cross-entropy.
fn loss(network: &Network, rows: &Array, labels: &Array) -> Result<Array> {
    let scores = network.scores(rows)?.log_softmax(-1);
    Ok(-(scores * labels.one_hot(CLASSES, DType::F32)).sum(-1).mean(..))
}

/// One step of gradient descent with momentum: the network, its speeds and the loss.
fn step((network, speeds): &(Network, Network), rows: &Array, labels: &Array) -> Result<((Network, Network), Array)> {
    let (value, gradient) = value_and_grad(loss)(network, rows, labels)?;
    let speeds = tree::map2(speeds, &gradient, |m, g| Ok(0.9 * m + g))?;
    Ok(((tree::map2(network, &speeds, |w, m| Ok(w - RATE * m))?, speeds), value))
}

/// The rows `[8, images, 8]` of some images, and their labels.
fn arrays(client: &Client, images: &Images, which: &[usize]) -> Result<(Array, Array)> {
    let row = |i: usize, at: usize| &images.pixels[at * ROW * ROW + i * ROW..][..ROW];
    let rows: Vec<f32> = (0..ROW).flat_map(|i| which.iter().flat_map(move |&at| row(i, at))).copied().collect();
    let labels: Vec<i32> = which.iter().map(|&at| images.labels[at]).collect();
    Ok((client.array(&rows, &[ROW, which.len(), ROW])?, client.array(&labels, &[which.len()])?))
}

fn main() -> Result<()> {
    usage::read(include_str!("rnn_scan.rs"), &["--device"]);
    run(&device::client()?)
}

pub fn run(client: &Client) -> Result<()> {
    println!("on {}", client.why());
    let (digits, mut random) = (Digits::load(), Random(1));
    let network = Network::new(client, &mut random)?;
    let speeds = tree::map(&network, |w| Ok(w.zeros_like()))?;
    let (step, mut state) = (jit(step), (network, speeds));
    let mut order: Vec<usize> = (0..digits.train.labels.len()).collect();
    let style = ProgressStyle::with_template("{bar:30} epoch {pos}/{len}, {msg}").expect("a template");
    let bar = ProgressBar::new(EPOCHS as u64).with_style(style);
    for epoch in 0..EPOCHS {
        random.shuffle(&mut order);
        let mut losses = vec![];
        for batch in order.chunks_exact(BATCH) {
            let (rows, labels) = arrays(client, &digits.train, batch)?;
            let (next, loss) = step(&state, &rows, &labels)?;
            state = next;
            losses.push(loss);
        }
        let losses = losses.iter().map(|loss| Ok(loss.to_vec::<f32>()?[0])).collect::<Result<Vec<f32>>>()?;
        if epoch == 0 {
            compare("losses", &losses, &numbers(include_str!("data/rnn_scan_jax.txt")), 1e-4)?;
        }
        bar.set_message(format!("loss {:.4}", losses.iter().sum::<f32>() / losses.len() as f32));
        bar.inc(1);
    }
    bar.finish_and_clear();

    let test = &digits.test;
    let (rows, labels) = arrays(client, test, &(0..test.labels.len()).collect::<Vec<_>>())?;
    let right = jit(|network: &Network, rows: &Array, labels: &Array| {
        Ok::<_, Error>(network.scores(rows)?.argmax(-1).eq(labels).cast(DType::F32).mean(..))
    });
    let right = right(&state.0, &rows, &labels)?.to_vec::<f32>()?[0];
    println!("{:.2}% of held-out images are right after {EPOCHS} epochs", 100.0 * right);
    if right < GOAL {
        return Err(numbers::wrong(format!("{:.0}% are expected", 100.0 * GOAL)));
    }
    Ok(())
}

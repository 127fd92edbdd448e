//! Trains a classifier of handwritten digits: `cargo run --release --example train_digits [-- --device
//! cpu|gpu|interpret]`.
//!
//! A network of two hidden layers learns from 1,437 images of 8 x 8 pixels by AdamW, and is tested on the other 360,
//! for each of three seeds. One step is one function under `jit`: the loss, its gradient by `value_and_grad`, and the
//! update. It is traced once. The loss curve is written to `train_digits.svg`; the exit code is 1 if a network has less
//! than 97% of the held-out images right.
//!
//! The data are those of scikit-learn's `load_digits`: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten
//! Digits, UCI Machine Learning Repository (1998).
#[path = "../device/mod.rs"]
mod device;
mod model;
#[path = "../usage/mod.rs"]
mod usage;

use indicatif::{ProgressBar, ProgressStyle};
use model::{BATCH, Digits, EPOCHS, Trainer};
use pallas_rt::{Result, counters};
use plotters::prelude::*;
use std::process::ExitCode;
use std::time::Instant;

const SEEDS: [u64; 3] = [1, 2, 3];
const GOAL: f64 = 0.97;
const CURVE: &str = "train_digits.svg";

fn main() -> Result<ExitCode> {
    usage::read(include_str!("main.rs"), &["--device"]);
    let client = device::client()?;
    println!("on {}", client.why());
    let digits = Digits::load();
    let before = counters();
    let mut trainer = Trainer::new(&client, &digits);
    let (mut curves, mut worst) = (vec![], 1.0f64);
    for seed in SEEDS {
        let (losses, accuracy) = train(&mut trainer, seed)?;
        curves.push((seed, losses));
        worst = worst.min(accuracy);
    }
    let after = counters();
    println!(
        "{} functions traced, {} compiled, {} called; {} kernels launched",
        after.jit_traces - before.jit_traces,
        after.jit_compiles - before.jit_compiles,
        after.jit_calls - before.jit_calls,
        after.launches - before.launches
    );
    match draw(&curves) {
        Ok(()) => println!("loss curves: {CURVE}"),
        Err(error) => eprintln!("{CURVE} was not written: {error}"),
    }
    if worst < GOAL {
        eprintln!("{:.2}% of held-out images are right, {:.0}% are expected", 100.0 * worst, 100.0 * GOAL);
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Trains from a seed; returns the loss of each step and the share of held-out images that are right.
fn train(trainer: &mut Trainer, seed: u64) -> Result<(Vec<f32>, f64)> {
    trainer.restart(seed)?;
    let style = ProgressStyle::with_template("seed {prefix} {bar:30} epoch {pos}/{len}, {msg}").expect("a template");
    let bar = ProgressBar::new(EPOCHS as u64).with_style(style).with_prefix(seed.to_string());
    let (mut losses, start) = (vec![], Instant::now());
    for _ in 0..EPOCHS {
        losses.extend(trainer.epoch(usize::MAX)?);
        let rate = (losses.len() * BATCH) as f64 / start.elapsed().as_secs_f64();
        bar.set_message(format!("loss {:.4}, {rate:.0} images/s", losses[losses.len() - 1]));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let images = (losses.len() * BATCH) as f64 / start.elapsed().as_secs_f64();
    let (loss, accuracy) = trainer.test()?;
    println!(
        "seed {seed}: loss {:.4}; held out: loss {loss:.4}, {:.2}% right; {images:.0} images/s",
        losses[losses.len() - 1],
        100.0 * accuracy
    );
    Ok((losses, accuracy))
}

/// Draws the loss of each step on a logarithmic scale.
fn draw(curves: &[(u64, Vec<f32>)]) -> Result<(), Box<dyn std::error::Error>> {
    let steps = curves.iter().map(|(_, losses)| losses.len()).max().unwrap_or(1);
    let root = SVGBackend::new(CURVE, (720, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(0..steps, (1e-4f32..4.0).log_scale())?;
    chart.configure_mesh().x_desc("step").y_desc("loss").draw()?;
    for (i, (seed, losses)) in curves.iter().enumerate() {
        let colour = Palette99::pick(i);
        let points = losses.iter().enumerate().map(|(step, &loss)| (step, loss.max(1e-4)));
        let series = chart.draw_series(LineSeries::new(points, colour.stroke_width(1)))?;
        series
            .label(format!("seed {seed}"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], Palette99::pick(i)));
    }
    chart.configure_series_labels().border_style(BLACK).draw()?;
    Ok(root.present()?)
}

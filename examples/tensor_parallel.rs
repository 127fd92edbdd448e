//! A perceptron on a mesh of devices, sharded in the way of Megatron (Shoeybi et al., 2019): columns of the first
//! matrix, rows of the second one.
//!
//! `cargo run --release --example tensor_parallel`
//!
//! In a job of four processes, with two of the eight devices each (`--allow-run-as-root` for root):
//!
//! `cargo build --release --example tensor_parallel --features mpi`
//! `mpirun --oversubscribe -n 4 target/release/examples/tensor_parallel`
//!
//! Three arrays are annotated; propagation decides about all others, and the partitioner inserts one exchange. Eight
//! virtual devices share the processor. The exit code is 1 unless there is exactly one all-reduce over `model`, the
//! result is sharded by `data` alone, and it is that of one device.
mod usage;

use pallas_rt::plan::Shardings;
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, NamedSharding, P, visualize_sharding};
use pallas_rt::{distributed, jit, partitioned, random, with_sharding_constraint};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

const BATCH: usize = 64;
const WIDTH: usize = 128;
const HIDDEN: usize = 512;

/// The operands: a batch, and both matrices.
pub fn operands() -> [Array; 3] {
    let [x, w1, w2] = random::split(random::key(0));
    let scaled = |key, shape: [usize; 2]| random::normal(key, &shape, DType::F32) * (shape[0] as f32).powf(-0.5);
    [random::normal(x, &[BATCH, WIDTH], DType::F32), scaled(w1, [WIDTH, HIDDEN]), scaled(w2, [HIDDEN, WIDTH])]
}

fn plain(x: &Array, w1: &Array, w2: &Array) -> Array {
    x.matmul(w1).gelu().matmul(w2)
}

/// Shows the sharding of every value, and the exchanges.
fn show(mesh: &Mesh, shardings: &Shardings) {
    println!("mesh {mesh}: {} virtual devices", mesh.device_count());
    let mut seen = BTreeSet::new();
    for value in shardings.values() {
        let text = value.sharding.text(mesh);
        let place = if value.name == "argument" { String::new() } else { format!(" at {}", value.at) };
        println!("\n{} {}: {text}{place}", value.name, value.ty);
        if seen.insert(text) {
            print!("{}", visualize_sharding(mesh, &value.sharding));
        }
    }
    println!();
    for exchange in shardings.collectives() {
        let axes = exchange.axes.join(", ");
        let (name, bytes, cause) = (exchange.name, exchange.bytes, exchange.cause);
        println!("{name} over {axes}: {bytes} bytes from each device: {cause} at {}", exchange.at);
    }
}

/// The perceptron with its three annotations.
pub fn sharded(mesh: &Arc<Mesh>) -> impl Fn(&Array, &Array, &Array) -> Array + Clone + use<> {
    let named = |spec| NamedSharding::new(mesh, spec);
    let (rows, columns, inner) = (named(P(("data", None))), named(P((None, "model"))), named(P(("model", None))));
    move |x: &Array, w1: &Array, w2: &Array| {
        let x = with_sharding_constraint(x, &rows);
        let w1 = with_sharding_constraint(w1, &columns);
        let w2 = with_sharding_constraint(w2, &inner);
        plain(&x, &w1, &w2)
    }
}

/// Runs it; returns false if the exchanges, the division of the result or its numbers are not as they should be. One
/// process of a job shows what it finds.
pub fn run(shows: bool) -> Result<bool> {
    let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("axes with names of their own"));
    let sharded = sharded(&mesh);
    let [x, w1, w2] = operands();
    let shardings = partitioned(sharded.clone())(&x, &w1, &w2)?;
    if shows {
        show(&mesh, &shardings);
    }
    let (found, whole) = (jit(sharded)(&x, &w1, &w2)?, jit(plain)(&x, &w1, &w2)?);
    let (a, b) = (found.to_vec::<f32>()?, whole.to_vec::<f32>()?);
    let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    if shows {
        println!("greatest difference to one device: {worst:e}");
    }

    let is_one = matches!(&shardings.collectives()[..], [one] if one.name == "all_reduce" && one.axes == ["model"]);
    Ok(is_one && shardings.results()[0].text(&mesh) == "[{\"data\"}, {}]" && worst < 1e-5)
}

fn main() -> ExitCode {
    usage::read(include_str!("tensor_parallel.rs"), &[]);
    let job = match distributed::initialize() {
        Ok(job) => job,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    match run(job.rank() == 0) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!(
                "not as expected: one all-reduce over `model`, a result sharded by `data`, a difference below 1e-5"
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

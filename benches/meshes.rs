//! A perceptron of four layers on a mesh of eight virtual devices, and on one device: results are compared, then calls
//! take turns, and the minimum of their times counts. `mesh / one` is what the division costs in one process.
//!
//! `cargo bench --bench meshes [-- --small]`; `--small` shows that it works, and measures nothing of use.
use pallas_rt::ir::DType;
use pallas_rt::sharding::{Mesh, NamedSharding, P, PartitionSpec, device_put};
use pallas_rt::{Array, Result, jit, random};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LAYERS: usize = 4;

/// A batch, and both matrices of each layer.
type Operands = (Array, Vec<(Array, Array)>);

fn perceptron((x, layers): &Operands) -> Array {
    layers.iter().fold(x.clone(), |x, (w1, w2)| x.matmul(w1).gelu().matmul(w2))
}

fn operands([batch, width, hidden]: [usize; 3]) -> Operands {
    let draw = |seed, shape: [usize; 2]| random::normal(random::key(seed), &shape, DType::F32);
    let scaled = |seed, shape: [usize; 2]| draw(seed, shape) * (shape[0] as f32).powf(-0.5);
    let layer = |i| (scaled(2 * i + 1, [width, hidden]), scaled(2 * i + 2, [hidden, width]));
    (draw(0, [batch, width]), (0..LAYERS as i64).map(layer).collect())
}

/// The operands on a mesh: the batch by `data`, matrices by `model`, as in Megatron.
fn placed((x, layers): &Operands, mesh: &Arc<Mesh>) -> Result<Operands> {
    let put = |x: &Array, spec: PartitionSpec| device_put(x, &NamedSharding::new(mesh, spec));
    let layer = |(w1, w2): &(Array, Array)| Ok((put(w1, P((None, "model")))?, put(w2, P("model"))?));
    Ok((put(x, P("data"))?, layers.iter().map(layer).collect::<Result<_>>()?))
}

fn run(sizes: [usize; 3], repeats: usize) -> Result<bool> {
    let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("axes with names of their own"));
    let one = operands(sizes);
    let all = placed(&one, &mesh)?;
    let step = jit(perceptron);
    let (a, b) = (step(&one)?.to_vec::<f32>()?, step(&all)?.to_vec::<f32>()?);
    let scale = a.iter().fold(0.0f32, |scale, x| scale.max(x.abs()));
    // A difference that is no number is the worst one.
    let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs() / scale).max_by(f32::total_cmp).unwrap_or(f32::NAN);
    let time = |operands: &Operands| -> Result<Duration> {
        let begun = Instant::now();
        step(operands)?.block_until_ready()?;
        Ok(begun.elapsed())
    };
    let mut least = [Duration::MAX; 2];
    for _ in 0..repeats {
        for (least, operands) in least.iter_mut().zip([&one, &all]) {
            *least = time(operands)?.min(*least);
        }
    }
    let [one, all] = least.map(|time| time.as_secs_f64() * 1e3);
    println!(
        "{sizes:?} x{LAYERS}: one {one:.3} ms, mesh {all:.3} ms, mesh / one {:.2}; difference {worst:.1e}",
        all / one
    );
    Ok(worst < 1e-5)
}

fn main() -> ExitCode {
    let is_small = std::env::args().any(|arg| arg == "--small");
    let (sizes, repeats): (&[[usize; 3]], _) =
        if is_small { (&[[4, 8, 16]], 1) } else { (&[[16, 32, 64], [64, 128, 512], [256, 256, 1024]], 200) };
    for &sizes in sizes {
        match run(sizes, repeats) {
            Ok(true) => {}
            Ok(false) => {
                eprintln!("{sizes:?}: another result than on one device");
                return ExitCode::FAILURE;
            }
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

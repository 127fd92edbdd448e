//! Trains a classifier of handwritten digits on a mesh of eight devices and evaluates it; every number that it reports
//! carries the exchanges that made it the number of all devices.
//!
//! ```text
//! cargo run --release --example train_and_evaluate
//! cargo build --release --example train_and_evaluate --features mpi
//! mpirun --oversubscribe -n 4 target/release/examples/train_and_evaluate
//! ```
//!
//! Weights and their momenta are sharded by rows over `fsdp` (ZeRO-3), images over both axes. The exit code is 1 unless
//! 95% of the held-out images are right, each function was traced once, training and evaluation agree about mesh and
//! parameters, and a number of one device alone is refused.
//!
//! The data are those of scikit-learn's `load_digits`: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten
//! Digits, UCI Machine Learning Repository (1998).
#[path = "data/digits.rs"]
mod digits;
mod usage;

use digits::{Digits, Images, Random};
use pallas_rt::audit::AuditOptions;
use pallas_rt::distributed::{Local, Metric, initialize, metric};
use pallas_rt::ir::ScalarOp;
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, NamedSharding, P, ShardingPolicy, device_put};
use pallas_rt::{audit, jit, mark_sharding, tree, value_and_grad};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

const BATCH: usize = 48;
const EPOCHS: usize = 12;
const PIXELS: usize = 64;
const GOAL: f64 = 0.95;

/// Shardings of the parameters and their momenta.
const POLICY: &str = r#"
**.weights = [{"fsdp"}, {}]
**.biases = replicated
"#;

#[derive(Clone, Tree)]
struct Layer {
    weights: Array,
    biases: Array,
}

/// State that a step replaces.
#[derive(Clone, Tree)]
struct State {
    network: Vec<Layer>,
    momenta: Vec<Layer>,
}

/// The logarithms of the probabilities of each digit.
fn log_probabilities(network: &[Layer], x: &Array) -> Array {
    let mut x = x.clone();
    for (i, layer) in network.iter().enumerate() {
        x = x.matmul(&layer.weights) + &layer.biases;
        if i + 1 < network.len() {
            x = x.relu();
        }
    }
    x.log_softmax(-1)
}

fn loss(network: &[Layer], x: &Array, labels: &Array) -> Array {
    -(log_probabilities(network, x) * labels.one_hot(10, DType::F32)).sum(-1).mean(..)
}

/// A step of gradient descent with momentum, with the mean cross-entropy before it.
fn train(state: &State, x: &Array, labels: &Array) -> Result<(State, Array)> {
    let mean = |network: &Vec<Layer>, x: &Array, labels: &Array| loss(network, x, labels);
    let (value, gradient) = value_and_grad(mean)(&state.network, x, labels)?;
    let momenta = tree::map2(&state.momenta, &gradient, |m, g| Ok(m * 0.9 + g))?;
    let network = tree::map2(&state.network, &momenta, |w, m| Ok(w - m * 0.05))?;
    Ok((State { network, momenta }, value))
}

/// The mean cross-entropy of images, and the share that is right.
fn evaluate(state: &State, x: &Array, labels: &Array) -> (Array, Array) {
    let right = log_probabilities(&state.network, x).argmax(-1).eq(labels);
    (loss(&state.network, x, labels), right.cast(DType::F32).mean(..))
}

/// Images and labels on the mesh, sharded over both axes.
fn placed(images: &Images, chosen: &[usize], mesh: &Arc<Mesh>) -> Result<(Array, Array)> {
    let pixels: Vec<f32> = chosen.iter().flat_map(|&i| &images.pixels[i * PIXELS..][..PIXELS]).copied().collect();
    let labels: Vec<i32> = chosen.iter().map(|&i| images.labels[i]).collect();
    let x = Array::from_slice(&pixels, &[chosen.len(), PIXELS])?;
    let sharded = NamedSharding::new(mesh, P((["data", "fsdp"],)));
    Ok((device_put(&x, &sharded)?, device_put(&Array::from_slice(&labels, &[chosen.len()])?, &sharded)?))
}

/// A new network with weights as in He et al. (2015), marked by the policy.
fn start(random: &mut Random, mesh: &Arc<Mesh>) -> Result<State> {
    let layers = [[PIXELS, 128], [128, 10]].map(|[inputs, outputs]| {
        let weights = random.between(inputs * outputs, (6.0 / inputs as f32).sqrt());
        let weights = Array::from_slice(&weights, &[inputs, outputs])?;
        Ok(Layer { weights, biases: Array::zeros(&[outputs], DType::F32)? })
    });
    let network: Vec<Layer> = layers.into_iter().collect::<Result<_>>()?;
    let momenta = tree::map(&network, |x| Array::zeros(x.shape(), DType::F32))?;
    mark_sharding(&State { network, momenta }, mesh, &POLICY.parse::<ShardingPolicy>()?)
}

/// Runs it for so many passes over the images; returns false if something is not as it should be.
pub fn run(epochs: usize, goal: f64) -> Result<bool> {
    let job = initialize()?;
    let say = |text: String| {
        if job.rank() == 0 {
            println!("{text}");
        }
    };
    let mesh = Arc::new(Mesh::new(&[("data", 2), ("fsdp", 4)]).expect("axes with names of their own"));
    let digits = Digits::load();
    let mut random = Random(7);
    let mut state = start(&mut random, &mesh)?;
    // As many as the devices divide.
    let count = digits.test.labels.len() / mesh.device_count() * mesh.device_count();
    let held_out: Vec<usize> = (0..count).collect();
    let (test_x, test_labels) = placed(&digits.test, &held_out, &mesh)?;

    let traces = Arc::new(AtomicUsize::new(0));
    let [of_step, of_test] = [traces.clone(), traces.clone()];
    let step = jit(move |state: &State, x: &Array, labels: &Array| {
        of_step.fetch_add(1, Relaxed);
        train(state, x, labels)
    });
    let test = jit(move |state: &State, x: &Array, labels: &Array| {
        of_test.fetch_add(1, Relaxed);
        evaluate(state, x, labels)
    });
    let mut reported: Vec<(&str, Metric)> = vec![];
    for epoch in 1..=epochs {
        let mut order: Vec<usize> = (0..digits.train.labels.len()).collect();
        random.shuffle(&mut order);
        let batches = order.chunks_exact(BATCH);
        let (begun, count, mut last) = (Instant::now(), batches.len(), None);
        for batch in batches {
            let (x, labels) = placed(&digits.train, batch, &mesh)?;
            let (next, loss) = step(&state, &x, &labels)?;
            (state, last) = (next, Some(loss));
        }
        let loss = metric(&last.expect("an epoch has batches"))?;
        // Each process has its own clock, and computes its part of each batch.
        let own = (count * BATCH) as f64 / job.processes() as f64 / begun.elapsed().as_secs_f64();
        let images = Local::of_process(own)?.reduce(ScalarOp::Add, &["process"])?.metric()?;
        let (of_test, right) = test(&state, &test_x, &test_labels)?;
        let (of_test, right) = (metric(&of_test)?, metric(&right)?);
        say(format!(
            "epoch {epoch}: last loss {:.4}, held out {:.4}, {:.1}% right, {:.0} images/s",
            loss.value,
            of_test.value,
            100.0 * right.value,
            images.value
        ));
        reported =
            vec![("loss of the last batch", loss), ("loss, held out", of_test), ("right", right), ("images/s", images)];
    }
    let traces = traces.load(Relaxed);
    say(format!("traces: {traces}"));
    let mut is_right = traces == 2;
    for (name, number) in &reported {
        say(format!("{name}: {number}"));
        is_right &= !number.receipts.is_empty();
    }
    if let Some((_, first)) = reported.first() {
        say(format!("configuration: {:?}", first.config));
    }

    let options =
        || Ok::<_, Error>(AuditOptions::new().policy(POLICY.parse::<ShardingPolicy>()?).mesh(&mesh).owned(&["0.**"]));
    let of_training = audit(train, options()?)(&state, &test_x, &test_labels)?;
    let differences = of_training.compare(&audit(evaluate, options()?)(&state, &test_x, &test_labels)?);
    say(format!("{} differences between training and evaluation", differences.len()));
    differences.iter().for_each(|difference| say(format!("  {difference:?}")));

    let own = vec![1.0; mesh.device_count() / job.processes()];
    let refused = Local::new(&mesh, &own)?.metric();
    say(format!(
        "a number of each device as a metric: {}",
        refused.as_ref().err().map_or("taken".into(), Error::to_string)
    ));
    let share = reported.iter().find(|(name, _)| *name == "right").map_or(0.0, |(_, right)| right.value);
    Ok(is_right && differences.is_empty() && refused.is_err() && share >= goal)
}

fn main() -> ExitCode {
    usage::read(include_str!("train_and_evaluate.rs"), &[]);
    match run(EPOCHS, GOAL) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

//! A perceptron that is trained for fifty steps: rows of matrices sharded as in FSDP, columns as in Megatron.
use pallas_rt::ir::DType;
use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
use pallas_rt::{Array, Result, jit, random, value_and_grad};
use std::sync::Arc;

const STEPS: usize = 50;
type Weights = (Array, Array);

fn operands() -> (Array, Weights) {
    let draw = |seed, shape: [usize; 2]| random::normal(random::key(seed), &shape, DType::F32) * 0.25;
    (draw(0, [16, 24]), (draw(1, [24, 32]), draw(2, [32, 24])))
}

fn step(weights: &Weights, x: &Array) -> Result<(Array, Weights)> {
    let loss = |(w1, w2): &Weights, x: &Array| (x.matmul(w1).gelu().matmul(w2) - x).square().mean(..);
    let (value, (d1, d2)) = value_and_grad(loss)(weights, x)?;
    Ok((value, (&weights.0 - d1 * 0.1, &weights.1 - d2 * 0.1)))
}

fn train(mut weights: Weights, x: &Array) -> Result<Vec<f32>> {
    let step = jit(step);
    let mut numbers = vec![];
    for _ in 0..STEPS {
        let (loss, next) = step(&weights, x)?;
        numbers.extend(loss.to_vec::<f32>()?);
        weights = next;
    }
    numbers.extend(weights.0.to_vec::<f32>()?);
    numbers.extend(weights.1.to_vec::<f32>()?);
    Ok(numbers)
}

/// Losses and weights, on eight devices.
pub fn on_mesh() -> Result<Vec<f32>> {
    let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"));
    let named = |spec| NamedSharding::new(&mesh, spec);
    let (x, (w1, w2)) = operands();
    let x = device_put(&x, &named(P("data")))?;
    let w1 = device_put(&w1, &named(P(("data", "model"))))?;
    let w2 = device_put(&w2, &named(P(("model", "data"))))?;
    train((w1, w2), &x)
}

/// Losses and weights, on one device.
pub fn on_one_device() -> Result<Vec<f32>> {
    let (x, weights) = operands();
    train(weights, &x)
}

/// All bits, as one word, with the last loss.
pub fn text(numbers: &[f32]) -> String {
    let bits = numbers.iter().flat_map(|x| x.to_bits().to_le_bytes());
    let hash =
        bits.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{} numbers {hash:016x}, the last loss {:e}", numbers.len(), numbers[STEPS - 1])
}

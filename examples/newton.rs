//! Newton's method: a step solves a system with the matrix of second derivatives, `hessian`.
//!
//! `cargo run --release --example newton [-- --device cpu|gpu|interpret]`
//!
//! Logistic regression tells odd digits from even ones. Its loss has one minimum, which Newton's method reaches in a
//! few steps: near it, each step doubles the number of right digits. The system is solved by conjugate gradients in a
//! `fori_loop`. The exit code is 1 if losses are not JAX's, or the minimum is not that of JAX in float64.
#[path = "data/digits.rs"]
mod digits;
#[path = "data/numbers.rs"]
mod numbers;
mod usage;

mod device;

use digits::{Digits, Images};
use numbers::{compare, numbers};
use pallas_rt::prelude::*;
use pallas_rt::{fori_loop, hessian, jit, value_and_grad};

/// A weight for each pixel, and a bias.
const WEIGHTS: usize = 65;
const STEPS: usize = 8;

fn scores(w: &Array, x: &Array) -> Array {
    x.matmul(&w.index(..64)) + w.index(64)
}

/// The mean of `ln(1 + exp(-sign * score))`, and a small multiple of the squares of the weights.
fn loss(w: &Array, x: &Array, signs: &Array) -> Array {
    (-signs * scores(w, x)).softplus().mean(..) + 1e-3 * w.square().sum(..)
}

/// Solves `matrix * y = right` for a symmetric positive definite matrix (Hestenes and Stiefel, 1952).
fn solved(matrix: &Array, right: &Array) -> Result<Array> {
    let start = (right.zeros_like(), right.clone(), right.clone());
    // More than there are unknowns, since rounding makes directions less than independent.
    let steps = 0..3 * WEIGHTS as i64;
    let (y, _, _) = fori_loop(steps, &start, |_: &Array, (y, rest, direction): &(Array, Array, Array)| {
        let image = matrix.matmul(direction);
        let square = rest.square().sum(..);
        let step = &square / ((direction * &image).sum(..) + 1e-30);
        let left = rest - &step * &image;
        let turned = &left + left.square().sum(..) / (square + 1e-30) * direction;
        (y + step * direction, left, turned)
    })?;
    Ok(y)
}

/// The weights after a step, the loss before it, and the length of the gradient.
fn step(w: &Array, x: &Array, signs: &Array) -> Result<(Array, Array, Array)> {
    let (value, gradient) = value_and_grad(loss)(w, x, signs)?;
    let second = hessian(loss)(w, x, signs)?;
    Ok((w - solved(&second, &gradient)?, value, gradient.square().sum(..).sqrt()))
}

fn main() -> Result<()> {
    usage::read(include_str!("newton.rs"), &["--device"]);
    run(&device::client()?)
}

pub fn run(client: &Client) -> Result<()> {
    println!("on {}", client.why());
    let digits = Digits::load();
    let arrays = |images: &Images| {
        let signs: Vec<f32> = images.labels.iter().map(|label| if label % 2 == 1 { 1.0 } else { -1.0 }).collect();
        Ok::<_, Error>((client.array(&images.pixels, &[signs.len(), 64])?, client.array(&signs, &[signs.len()])?))
    };
    let (x, signs) = arrays(&digits.train)?;
    let (step, mut w, mut losses) = (jit(step), client.zeros(&[WEIGHTS], DType::F32)?, vec![]);
    for i in 0..STEPS {
        let (next, value, slope) = step(&w, &x, &signs)?;
        w = next;
        let (value, slope) = (value.to_vec::<f32>()?[0], slope.to_vec::<f32>()?[0]);
        println!("step {i}: loss {value:.7}, length of the gradient {slope:.1e}");
        losses.push(value);
    }
    let expected = numbers(include_str!("data/newton_jax.txt"));
    compare("losses", &losses, &expected[..STEPS], 1e-4)?;
    let last = compare("the loss at the minimum", &losses[STEPS - 1..], &expected[STEPS..=STEPS], 1e-6)?;
    let apart = compare("weights", &w.to_vec::<f32>()?, &expected[STEPS + 1..], 1e-3)?;
    println!("differences to the minimum in float64: loss {last:.1e}, weights {apart:.1e}");

    let (x, signs) = arrays(&digits.test)?;
    let right = jit(|w: &Array, x: &Array, signs: &Array| (scores(w, x) * signs).gt(0.0).cast(DType::F32).mean(..));
    println!("{:.1}% of held-out images are told right", 100.0 * right(&w, &x, &signs)?.to_vec::<f32>()?[0]);
    Ok(())
}

//! A training step of a small GPT as in `gpt.py`: rotary positions, RMS norm, one table for pieces and logits; AdamW
//! with a schedule of its rate and a bound on the norm of the gradient.
use super::Program;
use crate::Arrays;
use pallas_kernels::cross_entropy::{self, cross_entropy};
use pallas_kernels::flash_attention::{Causal, Options, flash_attention};
use pallas_kernels::norm::rms_norm;
use pallas_kernels::rotary::{Pairs, rotary, tables};
use pallas_rt::ir::DType;
use pallas_rt::prelude::*;
use pallas_rt::{Arg, jit, ops, tree, value_and_grad};

const HEADS: usize = 6;
const RATE: f64 = 1e-3;
const LAST_RATE: f64 = 1e-4;
const WARMUP_STEPS: f64 = 20.0;
const STEPS: f64 = 300.0;
const DECAY: f64 = 0.1;
const MAX_GRADIENT_NORM: f64 = 1.0;
const BETAS: [f64; 2] = [0.9, 0.95];

#[derive(Clone, Tree)]
struct State {
    weights: Arrays,
    means: Arrays,
    squares: Arrays,
    t: Array,
}

/// Losses of the labels, averaged; activations are of elements of this type.
fn loss(weights: &Arrays, [tokens, labels]: [&Array; 2], [cos, sin]: [&Array; 2], dtype: DType) -> Result<Array> {
    let w = tree::map(weights, |w| Ok(w.cast(dtype)))?;
    let (batch, length) = (tokens.shape()[0], tokens.shape()[1]);
    let mut x = w["table"].take(tokens, 0);
    let width = x.shape()[2];
    for i in 0..weights.len() / 6 {
        let p = |name: &str| &w[&format!("{i}.{name}")];
        let qkv = rms_norm(&x, p("norm0"), 1e-5)?.matmul(p("qkv"));
        let qkv = qkv.reshape(&[batch, length, 3, HEADS, width / HEADS]).transpose(&[2, 0, 3, 1, 4]);
        let [q, k] = [0, 1].map(|i| rotary(&qkv.index(i), cos, sin, Pairs::Halves));
        let options = Options { causal: Causal::FromStart, ..Options::default() };
        let out = flash_attention(&q?, &k?, &qkv.index(2), &options)?;
        x = x + out.transpose(&[0, 2, 1, 3]).reshape(&[batch, length, width]).matmul(p("out"));
        let inner = rms_norm(&x, p("norm1"), 1e-5)?.matmul(p("up")).gelu_tanh();
        x = x + inner.matmul(p("down"));
    }
    let x = rms_norm(&x, &w["norm"], 1e-5)?;
    Ok(cross_entropy(&x, &w["table"], labels, &cross_entropy::Options::default())?.0.mean(..))
}

fn rate(t: &Array) -> Array {
    let part = ((t - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)).clip(0.0, 1.0);
    let cosine = ((part * std::f64::consts::PI).cos() + 1.0) * (0.5 * (RATE - LAST_RATE)) + LAST_RATE;
    ops::select(&t.lt(WARMUP_STEPS), t * (RATE / WARMUP_STEPS), cosine)
}

fn updated(state: &State, gradient: &Arrays, scale: &Array) -> Result<State> {
    let gradient = tree::map(gradient, |g| Ok(g * scale))?;
    let t = &state.t + 1.0;
    let rate = rate(&state.t);
    let left = BETAS.map(|beta| 1.0 - (&t * beta.ln()).exp());
    let means = tree::map2(&state.means, &gradient, |m, g| Ok(m * BETAS[0] + g * (1.0 - BETAS[0])))?;
    let squares = tree::map2(&state.squares, &gradient, |s, g| Ok(s * BETAS[1] + g.square() * (1.0 - BETAS[1])))?;
    let weights = tree::map3(&state.weights, &means, &squares, |w, m, s| {
        let decay = if w.rank() > 1 { DECAY } else { 0.0 };
        Ok(w - &rate * ((m / &left[0]) / ((s / &left[1]).sqrt() + 1e-8) + w * decay))
    })?;
    Ok(State { weights, means, squares, t })
}

/// Each call is a step on the same pieces, and gives the loss and the norm of the gradient.
pub fn step(mut arrays: Arrays, dtype: DType) -> Result<Program> {
    let [tokens, labels] = ["tokens", "labels"].map(|name| arrays.remove(name).expect("an input"));
    let client = tokens.client().clone();
    let (cos, sin) = tables(&client, 0, tokens.shape()[1], arrays["norm"].shape()[0] / HEADS, 10_000.0)?;
    let zeros = tree::map(&arrays, |w| client.zeros(w.shape(), DType::F32))?;
    let t = client.zeros(&[], DType::F32)?;
    let mut state = Some(State { weights: arrays, means: zeros.clone(), squares: zeros, t });
    let loss = value_and_grad(move |weights: &Arrays, tokens: &Array, labels: &Array, cos: &Array, sin: &Array| {
        loss(weights, [tokens, labels], [cos, sin], dtype)
    });
    let step = jit(move |state: &State, tokens: &Array, labels: &Array, cos: &Array, sin: &Array| {
        let (value, gradient) = loss(&state.weights, tokens, labels, cos, sin)?;
        let squares = tree::leaves(&gradient).iter().map(|g| g.square().sum(..)).reduce(|a, b| a + b);
        let norm = squares.expect("weights").sqrt();
        let scale = ops::select(&norm.lt(MAX_GRADIENT_NORM), 1.0, MAX_GRADIENT_NORM / &norm);
        Ok((updated(state, &gradient, &scale)?, value, norm))
    })
    .donate_argnums(Arg::<0>);
    Ok(Box::new(move || {
        let (next, value, norm) = step(state.take().expect("a call returns the next"), &tokens, &labels, &cos, &sin)?;
        state = Some(next);
        Ok(vec![value, norm])
    }))
}

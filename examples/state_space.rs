//! A linear recurrence, one state a head, in chunks: products of matrices within a chunk, a carried state between them.
//!
//! ```text
//! h_t = exp(a_t) h_{t-1} + k_t v_tᵀ      y_t = q_t h_t
//! ```
//!
//! The state-space dual form of Mamba-2 (Dao & Gu 2024, "Transformers are SSMs", section 6); gated linear attention and
//! retention are the same with other decays.
//!
//! `cargo run --release --example state_space [-- --device cpu|gpu|interpret]`
mod device;
mod usage;

use pallas_rt::prelude::*;

/// Outputs `[H, T, E]` of queries and keys `[H, T, D]`, values `[H, T, E]` and logarithms of decays `[H, T]`.
#[kernel(grid = (H, cdiv(T, C)), semantics = (parallel, arbitrary))]
fn state_space<const C: usize>(
    #[block([H, T, D] => [_, C, D], |h, c| (h, c, 0), fill = 0.0)] q: In<f32>,
    #[block([H, T, D] => [_, C, D], |h, c| (h, c, 0), fill = 0.0)] k: In<f32>,
    #[block([H, T, E] => [_, C, E], |h, c| (h, c, 0), fill = 0.0)] v: In<f32>,
    #[block([H, T] => [_, C], |h, c| (h, c), fill = 0.0)] a: In<f32>,
    #[block([H, T, E] => [_, C, E], |h, c| (h, c, 0))] y: Out<f32>,
    #[scratch([D, E])] state: Scratch<f32>,
) {
    if program_id(1) == 0 {
        state.fill(0.0);
    }
    let (q, k, v) = (q.load(), k.load(), v.load());
    // The decay from the chunk's beginning to each step, and over the whole chunk.
    let decay = a.load().cumsum(0).expand(1);
    let total = a.load().sum(0).expand(1);
    // From step j to step i, -inf where i comes first: exp gives 0 there, and no overflow.
    let seen = iota::<i32>([C, C], 0).ge(iota::<i32>([C, C], 1));
    let between = select(seen, decay - decay.t(), f32::NEG_INFINITY).exp();
    let within = dot(dot(q, k.t()) * between, v);
    let before = dot(q * decay.exp(), state.load());
    y.store(within + before);
    let left = k * (total - decay).exp();
    state.store(state.load() * total.exp() + dot(left.t(), v));
}

fn main() -> Result<()> {
    usage::read(include_str!("state_space.rs"), &["--device"]);
    run(&device::client()?)
}

pub fn run(client: &Client) -> Result<()> {
    println!("on {}", client.why());
    // The last chunk overhangs: `fill` makes its steps without effect.
    let [heads, steps, d, e] = [2, 75, 8, 5];
    let wave = |n: usize, rate: f32| -> Vec<f32> { (0..n).map(|i| (i as f32 * rate).sin()).collect() };
    let (q, k, v) = (wave(heads * steps * d, 0.7), wave(heads * steps * d, 1.3), wave(heads * steps * e, 0.4));
    let a: Vec<f32> = wave(heads * steps, 2.1).iter().map(|x| 0.4 * x - 0.5).collect();

    let result = state_space::<16>(
        &client.array(&q, &[heads, steps, d])?,
        &client.array(&k, &[heads, steps, d])?,
        &client.array(&v, &[heads, steps, e])?,
        &client.array(&a, &[heads, steps])?,
    )?;

    // Step by step, in f64.
    let mut error = 0.0f64;
    for (head, y) in result.to_vec::<f32>()?.chunks(steps * e).enumerate() {
        let mut state = vec![0.0; d * e];
        for (step, y) in y.chunks(e).enumerate() {
            let t = head * steps + step;
            let row = |x: &[f32], width: usize| -> Vec<f64> {
                x[t * width..][..width].iter().map(|&x| f64::from(x)).collect()
            };
            let (q, k, v) = (row(&q, d), row(&k, d), row(&v, e));
            for (i, h) in state.iter_mut().enumerate() {
                *h = *h * f64::from(a[t]).exp() + k[i / e] * v[i % e];
            }
            for (j, &y) in y.iter().enumerate() {
                let exact: f64 = (0..d).map(|i| q[i] * state[i * e + j]).sum();
                error = error.max((f64::from(y) - exact).abs() / (1.0 + exact.abs()));
            }
        }
    }
    println!("{heads} heads of {steps} steps in chunks of 16: greatest error {error:.1e} of a recurrence in f64");
    assert!(error < 1e-5, "{error}");
    Ok(())
}

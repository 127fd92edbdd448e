//! A layer of a network in one kernel: `gelu(x·w + bias)`, the bias and the activation applied to each finished block.
//!
//! `cargo run --release --example matmul_epilogue [-- --device cpu|gpu|interpret]`
mod device;
mod usage;

use pallas_kernels::matmul::{Layout, matmul_with};
use pallas_rt::prelude::*;

// Programs along the first two axes are parallel; along the third they are steps of one program, in order: block (i, j)
// of the result stays while blocks of x and w stream past it. `fill = 0.0` is what loads see outside of the arrays, so
// that a ragged last step adds nothing.
#[kernel(grid = (cdiv(M, B), cdiv(N, B), cdiv(K, B)), semantics = (parallel, parallel, arbitrary))]
fn linear<const B: usize>(
    #[block([M, K] => [B, B], |i, _, p| (i, p), fill = 0.0)] x: In<f32>,
    #[block([K, N] => [B, B], |_, j, p| (p, j), fill = 0.0)] w: In<f32>,
    #[block([N] => [B], |_, j, _| (j,))] bias: In<f32>,
    #[block([M, N] => [B, B], |i, j, _| (i, j))] out: Out<f32>,
    #[scratch([B, B])] acc: Scratch<f32>,
    #[fixed] activation: fn(Tile<f32>) -> Tile<f32>,
) {
    if program_id(2) == 0 {
        acc.fill(0.0);
    }
    acc.store(acc.load() + dot(x.load(), w.load()));
    if program_id(2) == num_programs(2) - 1 {
        out.store(activation(acc.load() + bias.load().expand(0)));
    }
}

fn main() -> Result<()> {
    usage::read(include_str!("matmul_epilogue.rs"), &["--device"]);
    run(&device::client()?)
}

pub fn run(client: &Client) -> Result<()> {
    println!("on {}", client.why());
    let numbers = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        client.array(&(0..n).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect::<Vec<_>>(), shape)
    };
    let (x, w, bias) = (numbers(&[70, 50])?, numbers(&[50, 90])?, numbers(&[90])?);

    // A function over tiles is Rust: it is called once, while the kernel is traced, and fused into it.
    let y = linear::<32>(&x, &w, &bias, |y| y.gelu())?;
    println!("gelu(x·w + bias), 70x90 of depth 50:\n{y}");
    let plain = linear::<32>(&x, &w, &bias, |y| y)?;
    let expected = plain.to_vec::<f32>()?.into_iter().map(gelu);
    let error = y.to_vec::<f32>()?.iter().zip(expected).fold(0.0, |worst: f32, (a, b)| worst.max((a - b).abs()));
    println!("greatest difference to the same in plain Rust: {error:.1e}");
    assert!(error < 1e-5);

    // The shipped product takes an epilogue as well, and transposed operands.
    let weights_as_rows = Layout { b_transposed: true, ..Layout::default() };
    let scaled = matmul_with(&x, &numbers(&[90, 50])?, weights_as_rows, |y| maximum(y * 0.125, 0.0))?;
    println!("relu(x·wᵀ / 8):\n{scaled}");
    Ok(())
}

/// `x·Φ(x)`, with the error function's Maclaurin series, which converges quickly for the small sums here.
fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    let z = x / std::f64::consts::SQRT_2;
    let (mut term, mut erf) = (z, z);
    for n in 1..60 {
        term *= -z * z / f64::from(n);
        erf += term / f64::from(2 * n + 1);
    }
    (0.5 * x * (1.0 + erf * std::f64::consts::FRAC_2_SQRT_PI)) as f32
}

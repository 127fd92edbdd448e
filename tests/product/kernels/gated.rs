//! Gated units and their gradients: lengths around the block; the reference against finite differences.
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::gated::{Gate, gated, gated_backward, gated_backward_blocks, gated_blocks};
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 8.0;
const GATES: [Gate; 2] = [Gate::Silu, Gate::Gelu];

/// `∫` of the normal density, by Simpson's rule: no error function of ours.
fn below(g: f64) -> f64 {
    let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let steps = 200;
    let h = g / f64::from(steps);
    let weight = |i: i32| if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
    0.5 + (0..=steps).map(|i| weight(i) * density(f64::from(i) * h)).sum::<f64>() * h / 3.0
}
fn activation(g: f64, by: Gate) -> f64 {
    match by {
        Gate::Silu => g / (1.0 + (-g).exp()),
        Gate::Gelu => g * below(g),
    }
}
fn slope(g: f64, by: Gate) -> f64 {
    (activation(g + 1e-4, by) - activation(g - 1e-4, by)) / 2e-4
}

fn check(client: &Client, dtype: DType, n: usize, by: Gate, found: impl Fn(&[Array; 3]) -> Result<[Array; 3]>) {
    let make = |seed, factor: f64| {
        let x: Vec<f64> = values(n, seed).into_iter().map(|x| factor * x).collect();
        array(client, dtype, &[n], &x)
    };
    let operands = [make(1, 6.0), make(2, 1.0), make(3, 1.0)];
    let [gate, up, dy] = operands.each_ref().map(doubles);
    let each = |f: &dyn Fn(f64, f64, f64) -> f64| -> Vec<f64> { (0..n).map(|i| f(gate[i], up[i], dy[i])).collect() };
    let want = [
        each(&|g, u, _| activation(g, by) * u),
        each(&|g, u, d| d * u * slope(g, by)),
        each(&|g, _, d| d * activation(g, by)),
    ];
    let found = found(&operands).expect("it runs");
    for (name, (found, want)) in ["y", "dgate", "dup"].iter().zip(found.iter().zip(&want)) {
        close(found, want, 1, K, &format!("{name}, {n} {dtype} {by:?}"));
    }
}

#[test]
fn every_length_around_its_block() {
    for client in clients() {
        for ([n], size) in around([5]) {
            for (&dtype, by) in runs(&client, size).iter().flat_map(|t| GATES.map(|g| (t, g))) {
                let gelu = by == Gate::Gelu;
                check(&client, dtype, n, by, |[gate, up, dy]| {
                    let y = typed!(dtype, E => gated_blocks::<E>(gate, up, gelu, B))?;
                    let (dgate, dup) = typed!(dtype, E => gated_backward_blocks::<E>(gate, up, dy, gelu, B))?;
                    Ok([y, dgate, dup])
                });
            }
        }
    }
}

/// Computes `Φ(g) + g·φ(g)` by Simpson's rule over the tail, without cancellation: `Φ(g)` itself is as small as 1e-33.
fn tail_slope(g: f64) -> f64 {
    let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (steps, h) = (4000, 8.0 / 4000.0);
    let weight = |i: i32| if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
    let below: f64 = (0..=steps).map(|i| weight(i) * density(g - f64::from(i) * h)).sum::<f64>() * h / 3.0;
    below + g * density(g)
}

/// In this range `1 + erf` rounds to 0, which gave the slope the wrong sign.
#[test]
fn the_slope_of_gelu_far_below_zero() {
    let gates: Vec<f64> = (0..=48).map(|i| -f64::from(i) / 4.0).collect();
    for client in clients() {
        let gate = array(&client, DType::F32, &[gates.len()], &gates);
        let ones = array(&client, DType::F32, &[gates.len()], &vec![1.0; gates.len()]);
        let (dgate, _) = gated_backward(&gate, &ones, &ones, Gate::Gelu).expect("it runs");
        for (g, found) in gates.iter().zip(doubles(&dgate)) {
            let want = tail_slope(*g);
            // Near its root at -0.75 the slope is a difference of larger numbers, so its relative error is larger.
            let near = if (-2.0..=0.0).contains(g) { 1e-6 } else { 0.0 };
            assert!(
                (found - want).abs() <= 1e-3 * want.abs() + near,
                "{g} on {client:?}: {found}, the reference {want}"
            );
        }
    }
}

/// Beyond 1e7 what `1 - s` was rounded by would be multiplied into the slope.
#[test]
fn slope_of_silu_at_large_gates_is_one() {
    for client in clients() {
        let gates = [20.0f32, 100.0, 3e7, 1e20, -100.0, 0.0];
        let gate = client.array(&gates, &[6]).expect("it fits");
        let ones = client.full(&[6], 1.0f32).expect("it fits");
        let (dgate, _) = gated_backward(&gate, &ones, &ones, Gate::Silu).expect("it runs");
        let slopes = dgate.to_vec::<f32>().expect("f32");
        for (slope, exact) in slopes.iter().zip([1.0, 1.0, 1.0, 1.0, 0.0, 0.5]) {
            assert!((slope - exact).abs() <= 1e-5, "on {client:?}: {slopes:?}");
        }
    }
}

#[test]
fn the_functions_that_choose_blocks() {
    let cpu = Client::cpu();
    let lengths = [[5000], [20_000]].into_iter().chain(drawn(20, 6));
    for ([n], (dtype, by)) in
        lengths.flat_map(|n| FLOATS.into_iter().flat_map(|t| GATES.map(|g| (t, g))).map(move |x| (n, x)))
    {
        check(&cpu, dtype, n, by, |[gate, up, dy]| {
            let (dgate, dup) = gated_backward(gate, up, dy, by)?;
            Ok([gated(gate, up, by)?, dgate, dup])
        });
    }
    let (a, b) = (cpu.zeros(&[2, 3], DType::F32).expect("it fits"), cpu.zeros(&[3, 2], DType::F32).expect("it fits"));
    let error = gated(&a, &b, Gate::Silu).expect_err("it is refused").to_string();
    assert!(error.contains("`up` has shape [3, 2], `gate` [2, 3]"), "{error}");
}

//! Layer norm and RMS norm: rows and columns around the blocks, whole and swept, data that is no number.
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::norm::{layer_norm, layer_norm_whole_rows, normalise, rms_norm, rms_norm_whole_rows, row_moment};
use pallas_rt::prelude::*;

/// The k of the tolerance: rows of nearly equal elements are scaled up to `1 / sqrt(EPSILON)`.
const K: f64 = 32.0;
pub(super) const EPSILON: f32 = 1e-3;

/// Layer norm; RMS norm without `beta`.
fn reference(x: &[f64], gamma: &[f64], beta: Option<&[f64]>) -> Vec<f64> {
    let n = gamma.len();
    let row = |r: &[f64]| -> Vec<f64> {
        let mean = if beta.is_some() { r.iter().sum::<f64>() / n as f64 } else { 0.0 };
        let variance = r.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        let scale = 1.0 / (variance + f64::from(EPSILON)).sqrt();
        let scaled = r.iter().zip(gamma).map(|(x, g)| (x - mean) * scale * g);
        scaled.enumerate().map(|(j, y)| y + beta.map_or(0.0, |b| b[j])).collect()
    };
    x.chunks(n.max(1)).flat_map(row).collect()
}

/// Whole rows and swept ones of both norms.
fn check(client: &Client, dtype: DType, [r, n]: [usize; 2], x: &[f64], what: &str) {
    let make = |shape: [usize; 2], x: &[f64]| array(client, dtype, &shape, x);
    let (x, gamma, beta) = (make([r, n], x), make([1, n], &values(n, 7)), make([1, n], &values(n, 8)));
    let (xs, gs, bs) = (doubles(&x), doubles(&gamma), doubles(&beta));
    let want = [reference(&xs, &gs, Some(&bs)), reference(&xs, &gs, None)];
    let whole = typed!(dtype, E => {
        layer_norm_whole_rows::<E>(&x, &gamma, &beta, EPSILON, B)
            .and_then(|l| rms_norm_whole_rows::<E>(&x, &gamma, EPSILON, B).map(|r| [l, r]))
    });
    let zeros = |dtype, shape: [usize; 2]| client.zeros(&shape, dtype);
    let swept = typed!(dtype, E => (|| {
        let (zero, no_shift) = (zeros(DType::F32, [r, 1])?, zeros(dtype, [1, n])?);
        let mean = row_moment::<E>(&x, &zero, 1, B, B)?;
        let variance = row_moment::<E>(&x, &mean, 2, B, B)?;
        let square = row_moment::<E>(&x, &zero, 2, B, B)?;
        Ok::<_, Error>([
            normalise::<E>(&x, &mean, &variance, &gamma, &beta, EPSILON, B, B)?,
            normalise::<E>(&x, &zero, &square, &gamma, &no_shift, EPSILON, B, B)?,
        ])
    })());
    for (form, found) in [("whole", whole), ("swept", swept)] {
        for (want, found) in want.iter().zip(found.expect("it runs")) {
            close(&found, want, n, K, &format!("{form} {what} {r}x{n} {dtype}"));
        }
    }
}

#[test]
fn every_extent_around_its_blocks() {
    for client in clients() {
        for (shape, size) in around([5, 6]) {
            let x = values(shape[0] * shape[1], shape[1]);
            runs(&client, size).iter().for_each(|&dtype| check(&client, dtype, shape, &x, "rows"));
        }
    }
}

#[test]
fn rows_with_infinities_and_nan() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let rows =
        [[nan, 1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 3.0, nan], [0.0, 1.0, -inf, 2.0, 3.0], [inf, 1.0, 0.0, 2.0, 3.0]];
    for client in [Client::interpreter(), Client::cpu()] {
        check(&client, DType::F32, [4, 5], &rows.concat(), "not numbers");
    }
}

#[test]
fn the_functions_that_choose_blocks() {
    let cpu = Client::cpu();
    let shapes = [1, 33, 1025, 5000].map(|n| [3, n]).into_iter().chain(drawn(40, 1));
    for ([r, n], dtype) in shapes.flat_map(|shape| FLOATS.map(|t| (shape, t))) {
        let x = array(&cpu, dtype, &[r, 1, n], &values(r * n, n));
        let (gamma, beta) = (array(&cpu, dtype, &[n], &values(n, 7)), array(&cpu, dtype, &[n], &values(n, 8)));
        let (xs, gs, bs) = (doubles(&x), doubles(&gamma), doubles(&beta));
        let out = layer_norm(&x, &gamma, &beta, EPSILON).expect("it runs");
        close(&out, &reference(&xs, &gs, Some(&bs)), n, K, &format!("layer norm {n} {dtype}"));
        let out = rms_norm(&x, &gamma, EPSILON).expect("it runs");
        close(&out, &reference(&xs, &gs, None), n, K, &format!("RMS norm {n} {dtype}"));
    }
    let wrong = layer_norm(
        &cpu.zeros(&[2, 3], DType::F32).expect("it fits"),
        &cpu.zeros(&[2], DType::F32).expect("it fits"),
        &cpu.zeros(&[3], DType::F32).expect("it fits"),
        EPSILON,
    );
    let error = wrong.expect_err("it is refused").to_string();
    assert!(error.contains("`gamma` has shape [2], rows have 3 elements"), "{error}");
}

//! Gradients of layer norm and RMS norm: rows and columns around the blocks, whole and swept; the reference against
//! finite differences.
use super::norm::EPSILON;
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::norm::row_moment;
use pallas_kernels::norm_backward::{
    layer_norm_backward, norm_backward_apply, norm_backward_means, norm_backward_parameters, norm_backward_whole_rows,
    rms_norm_backward,
};
use pallas_rt::prelude::*;

/// The k of the tolerance: gradients of rows of nearly equal elements are scaled up to `1 / sqrt(EPSILON)`.
const K: f64 = 64.0;

/// `x̂` and `r` of a row.
fn normalised(x: &[f64], centre: bool) -> (Vec<f64>, f64) {
    let n = x.len() as f64;
    let mean = if centre { x.iter().sum::<f64>() / n } else { 0.0 };
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let r = 1.0 / (variance + f64::from(EPSILON)).sqrt();
    (x.iter().map(|x| (x - mean) * r).collect(), r)
}

/// Gradients by x, gamma and beta.
fn reference(x: &[f64], gamma: &[f64], dy: &[f64], centre: bool) -> [Vec<f64>; 3] {
    let n = gamma.len();
    let (mut dx, mut dgamma, mut dbeta) = (vec![], vec![0.0; n], vec![0.0; n]);
    for (x, dy) in x.chunks(n.max(1)).zip(dy.chunks(n.max(1))) {
        let (hat, r) = normalised(x, centre);
        let g: Vec<f64> = dy.iter().zip(gamma).map(|(d, g)| d * g).collect();
        let level = if centre { g.iter().sum::<f64>() / n as f64 } else { 0.0 };
        let along = g.iter().zip(&hat).map(|(g, h)| g * h).sum::<f64>() / n as f64;
        for j in 0..n {
            dx.push(r * (g[j] - level - hat[j] * along));
            dgamma[j] += dy[j] * hat[j];
            dbeta[j] += dy[j];
        }
    }
    [dx, dgamma, dbeta]
}

#[test]
fn the_reference_agrees_with_finite_differences() {
    let (x, gamma, dy) = (values(7, 1), values(7, 2), values(7, 3));
    for centre in [true, false] {
        let loss = |x: &[f64], gamma: &[f64]| -> f64 {
            normalised(x, centre).0.iter().zip(gamma).zip(&dy).map(|((h, g), d)| h * g * d).sum()
        };
        let [dx, dgamma, _] = reference(&x, &gamma, &dy, centre);
        for j in 0..7 {
            let moved = |v: &[f64], by: f64| {
                let mut moved = v.to_vec();
                moved[j] += by;
                moved
            };
            let step = 1e-5;
            let by_x = (loss(&moved(&x, step), &gamma) - loss(&moved(&x, -step), &gamma)) / (2.0 * step);
            let by_gamma = (loss(&x, &moved(&gamma, step)) - loss(&x, &moved(&gamma, -step))) / (2.0 * step);
            assert!((by_x - dx[j]).abs() < 1e-7 && (by_gamma - dgamma[j]).abs() < 1e-7, "{centre} {j}");
        }
    }
}

fn compare(found: [&Array; 3], want: &[Vec<f64>; 3], [r, n]: [usize; 2], what: &str) {
    for ((found, want), (name, terms)) in found.iter().zip(want).zip([("dx", n), ("dgamma", r), ("dbeta", r)]) {
        close(found, want, terms.max(n), K, &format!("{name}, {what}"));
    }
}

fn operands(client: &Client, dtype: DType, [r, n]: [usize; 2]) -> [Array; 3] {
    [([r, n], 1), ([1, n], 7), ([r, n], 4)].map(|(s, seed)| array(client, dtype, &s, &values(s[0] * s[1], seed)))
}

#[test]
fn every_extent_around_its_blocks() {
    for client in clients() {
        for (shape, size) in around([5, 6]) {
            for (&dtype, centre) in runs(&client, size).iter().flat_map(|t| [(t, true), (t, false)]) {
                let [x, gamma, dy] = operands(&client, dtype, shape);
                let want = reference(&doubles(&x), &doubles(&gamma), &doubles(&dy), centre);
                let what = format!("{shape:?} {dtype}, centre {centre}");
                let whole = typed!(dtype, E => (|| {
                    let (dx, mean, variance) = norm_backward_whole_rows::<E>(&x, &gamma, &dy, EPSILON, centre, B)?;
                    let (dgamma, dbeta) = norm_backward_parameters::<E>(&x, &dy, &mean, &variance, EPSILON, B, B)?;
                    Ok::<_, Error>([dx, dgamma, dbeta])
                })());
                compare(whole.expect("it runs").each_ref(), &want, shape, &what);
                let swept = typed!(dtype, E => (|| {
                    let zero = client.zeros(&[shape[0], 1], DType::F32)?;
                    let mean = if centre { row_moment::<E>(&x, &zero, 1, B, B)? } else { zero.clone() };
                    let variance = row_moment::<E>(&x, &mean, 2, B, B)?;
                    let (level, along) = norm_backward_means::<E>(&x, &gamma, &dy, &mean, &variance, EPSILON, B, B)?;
                    let level = if centre { level } else { zero };
                    norm_backward_apply::<E>(&x, &gamma, &dy, &mean, &variance, &level, &along, EPSILON, B, B)
                })());
                close(&swept.expect("it runs"), &want[0], shape[1], K, &format!("swept, {what}"));
            }
        }
    }
}

#[test]
fn wrong_inputs() {
    let cpu = Client::cpu();
    let zeros = |dtype, shape: &[usize]| cpu.zeros(shape, dtype).expect("it fits");
    let (x, gamma) = (zeros(DType::F32, &[2, 3]), zeros(DType::F32, &[3]));
    for (gamma, dy, says) in [
        (&zeros(DType::F32, &[2]), &x, "`gamma` has shape [2], rows have 3 elements"),
        (&gamma, &zeros(DType::F32, &[4, 3]), "dimension R is 2 in `x` and 4 in `dy`"),
        (&gamma, &zeros(DType::Bf16, &[2, 3]), "`dy` holds f32, found an array of bf16"),
    ] {
        let error = layer_norm_backward(&x, gamma, dy, EPSILON).expect_err("it is refused").to_string();
        assert!(error.contains(says), "{error}");
        let error = rms_norm_backward(&x, gamma, dy, EPSILON).expect_err("it is refused").to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn the_functions_that_choose_blocks() {
    let some = |client: &Client, shape: [usize; 2], dtype: DType| {
        let [x, gamma, dy] = operands(client, dtype, shape);
        let flat = gamma.reshape(&[shape[1]]);
        let want = |centre| reference(&doubles(&x), &doubles(&gamma), &doubles(&dy), centre);
        let what = format!("{shape:?} {dtype} {client:?}");
        let (dx, dgamma, dbeta) = layer_norm_backward(&x, &flat, &dy, EPSILON).expect("it runs");
        compare([&dx, &dgamma, &dbeta], &want(true), shape, &format!("layer norm {what}"));
        let (dx, dgamma) = rms_norm_backward(&x, &flat, &dy, EPSILON).expect("it runs");
        compare([&dx, &dgamma, &dbeta], &want(false), shape, &format!("RMS norm {what}"));
    };
    let shapes = [1, 33, 1025, 5000].map(|n| [3, n]).into_iter().chain(drawn(40, 4));
    for (shape, dtype) in shapes.flat_map(|shape| FLOATS.map(|t| (shape, t))) {
        some(&Client::cpu(), shape, dtype);
    }
    // Rows that fill some parts, all of them, and more than a step of each.
    for client in clients() {
        for rows in [0, 1, 9, 64, 150] {
            some(&client, [rows, 6], DType::F32);
        }
    }
}

//! Cross-entropy with and without logits in memory: extents around the blocks, every option; the reference against
//! finite differences; labels that are none.
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::cross_entropy::{
    Options, cross_entropy, cross_entropy_backward, cross_entropy_blocks, cross_entropy_dw, cross_entropy_dx,
    cross_entropy_of_logits, cross_entropy_of_logits_backward, cross_entropy_of_logits_blocks,
    cross_entropy_of_logits_dz,
};
use pallas_kernels::cross_entropy_resident::{cross_entropy_dx_of_parts, cross_entropy_resident};
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 8.0;

pub(super) const OPTIONS: [Options; 4] = [
    Options { ignore: -100, smoothing: 0.0, z_loss: 0.0 },
    Options { ignore: 1, smoothing: 0.0, z_loss: 0.0 },
    Options { ignore: -1, smoothing: 0.25, z_loss: 0.0 },
    Options { ignore: 2, smoothing: 0.125, z_loss: 0.5 },
];

/// Logits of rows of x.
fn product(x: &[f64], w: &[f64], [n, v, d]: [usize; 3]) -> Vec<f64> {
    let each = |e: usize| (0..d).map(|c| x[e / v * d + c] * w[e % v * d + c]).sum();
    (0..n * v).map(each).collect()
}

/// A row's loss and log-sum-exp.
fn loss(z: &[f64], label: i32, options: &Options) -> (f64, f64) {
    let (smoothing, z_loss) = (f64::from(options.smoothing), f64::from(options.z_loss));
    let m = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lse = m + z.iter().map(|z| (z - m).exp()).sum::<f64>().ln();
    if label == options.ignore {
        return (0.0, lse);
    }
    let mean = z.iter().sum::<f64>() / z.len() as f64;
    let spread = if smoothing == 0.0 { 0.0 } else { smoothing * mean };
    (lse - (1.0 - smoothing) * z[label as usize] - spread + z_loss * lse * lse, lse)
}

/// The gradient by a row's logits.
fn slope(z: &[f64], label: i32, dloss: f64, options: &Options) -> Vec<f64> {
    let (smoothing, z_loss) = (f64::from(options.smoothing), f64::from(options.z_loss));
    let (_, lse) = loss(z, label, options);
    let classes = z.len() as f64;
    z.iter()
        .enumerate()
        .map(|(v, z)| {
            let target = if v as i32 == label { 1.0 - smoothing } else { 0.0 } + smoothing / classes;
            let g = dloss * ((z - lse).exp() * (1.0 + 2.0 * z_loss * lse) - target);
            if label == options.ignore { 0.0 } else { g }
        })
        .collect()
}

/// Losses, log-sum-exps, and the gradients by logits, x and w.
struct Reference {
    loss: Vec<f64>,
    lse: Vec<f64>,
    dz: Vec<f64>,
    dx: Vec<f64>,
    dw: Vec<f64>,
}

fn reference(x: &[f64], w: &[f64], labels: &[i32], dloss: &[f64], nvd: [usize; 3], options: &Options) -> Reference {
    let [n, v, d] = nvd;
    let z = product(x, w, nvd);
    let rows = || z.chunks(v.max(1)).zip(labels);
    let (loss, lse) = rows().map(|(z, &y)| loss(z, y, options)).unzip();
    let dz: Vec<f64> = rows().zip(dloss).flat_map(|((z, &y), &g)| slope(z, y, g, options)).collect();
    let dx = (0..n * d).map(|e| (0..v).map(|c| dz[e / d * v + c] * w[c * d + e % d]).sum()).collect();
    let dw = (0..v * d).map(|e| (0..n).map(|i| dz[i * v + e / d] * x[i * d + e % d]).sum()).collect();
    Reference { loss, lse, dz, dx, dw }
}

#[test]
fn the_reference_agrees_with_finite_differences() {
    let (z, step) = (values(5, 1), 1e-5);
    for (options, label) in OPTIONS.iter().flat_map(|o| [0, 1, 2].map(|y| (o, y))) {
        for (v, by) in slope(&z, label, 1.5, options).into_iter().enumerate() {
            let at = |step: f64| {
                let mut z = z.clone();
                z[v] += step;
                1.5 * loss(&z, label, options).0
            };
            assert!(((at(step) - at(-step)) / (2.0 * step) - by).abs() < 1e-7, "{options:?} {label} {v}");
        }
    }
}

/// x, w, labels and the gradient by losses.
fn operands(client: &Client, dtype: DType, [n, v, d]: [usize; 3], ignore: i32) -> (Array, Array, Vec<i32>, Array) {
    let labels = (0..n).map(|i| if i % 4 == 3 { ignore } else { (i * 7 % v) as i32 }).collect();
    let x = array(client, dtype, &[n, d], &values(n * d, 1));
    let w = array(client, dtype, &[v, d], &values(v * d, 2));
    (x, w, labels, array(client, DType::F32, &[n, 1], &values(n, 3)))
}

#[test]
fn every_extent_around_its_blocks() {
    for client in clients() {
        for ([n, v, d], size) in around([5, 6, 7]).filter(|([_, v, d], _)| *v > 0 && *d > 0) {
            let nvd = [n, v, d];
            for (i, &dtype) in runs(&client, size).iter().enumerate() {
                let options = &OPTIONS[(n + v + d + i) % 4];
                let Options { ignore, smoothing, z_loss } = *options;
                let (x, w, labels, dloss) = operands(&client, dtype, nvd, ignore);
                let want = reference(&doubles(&x), &doubles(&w), &labels, &doubles(&dloss), nvd, options);
                let labels = client.array(&labels, &[n, 1]).expect("it fits");
                let depth = d.next_multiple_of(B);
                let what = |name: &str| format!("{name} {nvd:?} {dtype} {options:?}");
                let (loss, lse) = typed!(dtype, E => cross_entropy_blocks::<E>(
                    &x, &w, &labels, ignore, smoothing, z_loss, smoothing != 0.0, B, depth, B, B))
                .expect("it runs");
                close(&loss, &want.loss, v + d, K, &what("loss"));
                close(&lse, &want.lse, v + d, K, &what("lse"));
                let dx = typed!(dtype, E => cross_entropy_dx::<E>(
                    &x, &w, &labels, &lse, &dloss, ignore, smoothing, z_loss, B, depth, B, B))
                .expect("it runs");
                close(&dx, &want.dx, v + d, K, &what("dx"));
                let dw = typed!(dtype, E => cross_entropy_dw::<E>(
                    &x, &w, &labels, &lse, &dloss, ignore, smoothing, z_loss, B, depth, B, B))
                .expect("it runs");
                close(&dw, &want.dw, n + d, K, &what("dw"));
                // Two parts of the classes, of which the second one may have none.
                let (steps, room) = (v.div_ceil(2 * B), n.max(1).next_multiple_of(B));
                let (dxs, dw) = typed!(dtype, E => cross_entropy_resident::<E>(
                    &x, &w, &labels, &lse, &dloss, ignore, smoothing, z_loss, 2, steps, B, B, room))
                .expect("it runs");
                let dx = typed!(dtype, E => cross_entropy_dx_of_parts::<E>(&dxs, n, B)).expect("it runs");
                close(&dx, &want.dx, v + d, K, &what("dx of two parts"));
                close(&dw, &want.dw, n + d, K, &what("dw of two parts"));
            }
        }
    }
}

#[test]
fn given_logits() {
    for client in clients() {
        for ([n, v], size) in around([5, 6]).filter(|([_, v], _)| *v > 0) {
            for (i, &dtype) in runs(&client, size).iter().enumerate() {
                let options = &OPTIONS[(n + v + i) % 4];
                let Options { ignore, smoothing, z_loss } = *options;
                // Logits are a product with the unit matrix.
                let (z, _, labels, dloss) = operands(&client, dtype, [n, v, v], ignore);
                let unit: Vec<f64> = (0..v * v).map(|e| if e / v == e % v { 1.0 } else { 0.0 }).collect();
                let want = reference(&doubles(&z), &unit, &labels, &doubles(&dloss), [n, v, v], options);
                let labels = client.array(&labels, &[n, 1]).expect("it fits");
                let found = |whole: bool, columns: usize| {
                    let found = typed!(dtype, E => cross_entropy_of_logits_blocks::<E>(
                        &z, &labels, ignore, smoothing, z_loss, smoothing != 0.0, whole, B, columns));
                    found.expect("it runs")
                };
                let what = format!("loss {n}x{v} {dtype} {options:?}");
                close(&found(true, v).0, &want.loss, v, K, &format!("{what}, whole rows"));
                let (loss, lse) = found(false, B);
                close(&loss, &want.loss, v, K, &what);
                let dz = typed!(dtype, E => cross_entropy_of_logits_dz::<E>(
                    &z, &labels, &lse, &dloss, ignore, smoothing, z_loss, B, B))
                .expect("it runs");
                close(&dz, &want.dz, v, K, &format!("dz {n}x{v} {dtype} {options:?}"));
            }
        }
    }
}

#[test]
fn the_functions_that_choose_blocks() {
    let cpu = Client::cpu();
    let shapes = [[130, 300, 40], [3, 129, 256], [1, 1, 1], [2, 3, 600]].into_iter().chain(drawn(30, 5));
    for (i, (nvd, dtype)) in shapes.flat_map(|shape| FLOATS.map(|t| (shape, t))).enumerate() {
        let options = &OPTIONS[(i / 3 + 3) % 4];
        let [n, v, _] = nvd;
        let (x, w, labels, dloss) = operands(&cpu, dtype, nvd, options.ignore);
        let want = reference(&doubles(&x), &doubles(&w), &labels, &doubles(&dloss), nvd, options);
        let labels = cpu.array(&labels, &[n]).expect("it fits");
        let dloss = dloss.reshape(&[n]);
        let (loss, lse) = cross_entropy(&x, &w, &labels, options).expect("it runs");
        close(&loss, &want.loss, v, 4.0 * K, &format!("loss {nvd:?} {dtype}"));
        let (dx, dw) = cross_entropy_backward(&x, &w, &labels, &lse, &dloss, options).expect("it runs");
        assert_eq!((dx.dtype(), dw.dtype()), (dtype, dtype));
        close(&dx, &want.dx, v, 4.0 * K, &format!("dx {nvd:?} {dtype}"));
        close(&dw, &want.dw, n, 4.0 * K, &format!("dw {nvd:?} {dtype}"));
        let z = array(&cpu, DType::F32, &[n, v], &product(&doubles(&x), &doubles(&w), nvd));
        let (loss, lse) = cross_entropy_of_logits(&z, &labels, options).expect("it runs");
        close(&loss, &want.loss, v, 4.0 * K, &format!("loss of logits {nvd:?}"));
        let dz = cross_entropy_of_logits_backward(&z, &labels, &lse, &dloss, options).expect("it runs");
        close(&dz, &want.dz, v, 4.0 * K, &format!("dz {nvd:?}"));
    }
}

/// Blocks of many rows, of which the last ones are not whole.
#[test]
fn gradients_of_many_rows_of_logits() {
    let (cpu, [n, v]) = (Client::cpu(), [700, 1030]);
    for (dtype, options) in FLOATS.into_iter().zip(OPTIONS) {
        let numbers: Vec<f64> = (0..n * v).map(|i| (i * i % 97) as f64 / 16.0 - 3.0).collect();
        let z = array(&cpu, dtype, &[n, v], &numbers);
        let ids: Vec<i32> = (0..n).map(|i| if i % 9 == 0 { options.ignore } else { (i * 31 % v) as i32 }).collect();
        let labels = cpu.array(&ids, &[n]).expect("it fits");
        let dloss = array(&cpu, DType::F32, &[n], &(0..n).map(|i| (i % 5) as f64 - 2.0).collect::<Vec<_>>());
        let (_, lse) = cross_entropy_of_logits(&z, &labels, &options).expect("it runs");
        let dz = cross_entropy_of_logits_backward(&z, &labels, &lse, &dloss, &options).expect("it runs");
        let rows = doubles(&z);
        let rows = rows.chunks(v).zip(&ids).zip(doubles(&dloss));
        let want: Vec<f64> = rows.flat_map(|((z, &label), dloss)| slope(z, label, dloss, &options)).collect();
        close(&dz, &want, v, K, &format!("dz {n}x{v} {dtype} {options:?}"));
    }
}

#[test]
fn logits_that_are_infinite() {
    // A class that is never chosen costs nothing unless it is the label.
    let (cpu, inf) = (Client::cpu(), f64::INFINITY);
    let z = array(&cpu, DType::F32, &[2, 3], &[0.0, -inf, 0.0, 0.0, -inf, 0.0]);
    let labels = cpu.array(&[0, 1], &[2]).expect("it fits");
    let (loss, lse) = cross_entropy_of_logits(&z, &labels, &Options::default()).expect("it runs");
    close(&loss, &[2f64.ln(), inf], 3, K, "loss");
    let dloss = array(&cpu, DType::F32, &[2], &[1.0, 0.0]);
    let dz = cross_entropy_of_logits_backward(&z, &labels, &lse, &dloss, &Options::default()).expect("it runs");
    close(&dz, &[-0.5, 0.0, 0.5, 0.0, 0.0, 0.0], 3, K, "dz");
}

#[test]
fn wrong_inputs() {
    let cpu = Client::cpu();
    let (x, w, short) =
        (cpu.zeros(&[2, 3], DType::F32), cpu.zeros(&[4, 3], DType::F32), cpu.zeros(&[4, 2], DType::F32));
    let (x, w, short) = (x.expect("it fits"), w.expect("it fits"), short.expect("it fits"));
    let call = |w: &Array, labels: &[i32]| {
        let labels = cpu.array(labels, &[labels.len()]).expect("it fits");
        cross_entropy(&x, w, &labels, &Options::default()).expect_err("it is wrong").to_string()
    };
    assert!(call(&w, &[0, 4]).ends_with(": label 4 of row 1 is none of 4 classes, nor the ignored -100"));
    assert!(call(&w, &[-1, 0]).contains("label -1 of row 0"));
    assert!(call(&w, &[0]).contains("`labels` has shape [1] for 2 rows"));
    assert!(call(&short, &[0, 0]).contains('D'), "{}", call(&short, &[0, 0]));
    assert!(call(&cpu.zeros(&[0, 3], DType::F32).expect("it fits"), &[0, 0]).contains("at least one class"));
    let nothing = cpu.zeros(&[2, 0], DType::F32).expect("it fits");
    assert!(
        cross_entropy(&nothing, &nothing, &cpu.array(&[0, 0], &[2]).expect("it fits"), &Options::default()).is_err()
    );
    assert!(call(&cpu.zeros(&[3], DType::F32).expect("it fits"), &[0, 0]).contains("expected [vocabulary, 3]"));
}

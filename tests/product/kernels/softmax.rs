//! Softmax and log-softmax: rows and columns around the blocks, whole and swept, data that is no number.
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::softmax::{log_softmax, softmax, softmax_apply, softmax_statistics, softmax_whole_rows};
use pallas_kernels::softmax_backward::softmax_backward;
use pallas_rt::prelude::*;

/// The k of the tolerance; logarithms are as wrong as their arguments, up to 16 here.
const K: f64 = 8.0;
const K_LOG: f64 = 32.0;

fn reference(x: &[f64], n: usize, log: bool) -> Vec<f64> {
    let row = |r: &[f64]| -> Vec<f64> {
        let nan = r.iter().any(|x| x.is_nan());
        let m = if nan { f64::NAN } else { r.iter().copied().fold(f64::NEG_INFINITY, f64::max) };
        let sum: f64 = r.iter().map(|x| (x - m).exp()).sum();
        r.iter().map(|x| if log { x - m - sum.ln() } else { (x - m).exp() / sum }).collect()
    };
    x.chunks(n.max(1)).flat_map(row).collect()
}

/// Whole rows and swept ones, softmax and its logarithm.
fn check(x: &Array, dtype: DType, n: usize, what: &str) {
    let exact = doubles(x);
    for (log, k) in [(false, K), (true, K_LOG)] {
        let want = reference(&exact, n, log);
        let whole = typed!(dtype, E => softmax_whole_rows::<E>(x, log, B)).expect("it runs");
        close(&whole, &want, n, k, &format!("{what} {dtype}, log {log}"));
        let swept = typed!(dtype, E => {
            softmax_statistics::<E>(x, B, B).and_then(|(max, sum)| softmax_apply::<E>(x, &max, &sum, log, B, B))
        });
        close(&swept.expect("it runs"), &want, n, k, &format!("swept {what} {dtype}, log {log}"));
    }
}

#[test]
fn every_extent_around_its_blocks() {
    for client in clients() {
        for ([r, n], size) in around([5, 6]) {
            let x: Vec<f64> = values(r * n, n).into_iter().map(|x| 8.0 * x).collect();
            for &dtype in runs(&client, size) {
                check(&array(&client, dtype, &[r, n], &x), dtype, n, &format!("{r}x{n}"));
            }
        }
    }
}

#[test]
fn rows_with_infinities_and_nan() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let rows =
        [[-inf, 1.0, -inf, 0.0, 2.0], [nan, 1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 3.0, nan], [0.0, 1.0, inf, 2.0, 3.0]];
    for client in [Client::interpreter(), Client::cpu()] {
        check(&array(&client, DType::F32, &[4, 5], &rows.concat()), DType::F32, 5, "not numbers");
        let whole = softmax(&array(&client, DType::F32, &[1, 3], &[-inf; 3])).expect("it runs");
        assert!(doubles(&whole).iter().all(|x| x.is_nan()), "a row of -inf has no softmax");
    }
}

#[test]
fn wrong_inputs() {
    let cpu = Client::cpu();
    for softmax in [softmax, log_softmax] {
        let integers =
            softmax(&cpu.zeros(&[2, 3], DType::I32).expect("it fits")).expect_err("it is refused").to_string();
        assert!(integers.contains("takes f32, f16 or bf16, found i32"), "{integers}");
        let scalar = softmax(&cpu.zeros(&[], DType::F32).expect("it fits")).expect_err("it is refused").to_string();
        assert!(scalar.contains("at least one dimension"), "{scalar}");
    }
}

#[test]
fn the_functions_that_choose_blocks() {
    let cpu = Client::cpu();
    let shapes = [1, 33, 1025, 5000].map(|n| [3, n]).into_iter().chain(drawn(40, 2));
    for ([r, n], dtype) in shapes.flat_map(|shape| FLOATS.map(|t| (shape, t))) {
        let x = array(&cpu, dtype, &[r, 1, n], &values(r * n, n));
        close(&softmax(&x).expect("it runs"), &reference(&doubles(&x), n, false), n, K, &format!("{n} {dtype}"));
        close(&log_softmax(&x).expect("it runs"), &reference(&doubles(&x), n, true), n, K_LOG, &format!("{n} {dtype}"));
    }
}

/// Long rows of a traced function are computed by operations: values and gradients of both are the kernels'.
#[test]
fn long_rows_of_traced_functions_are_those_of_kernels() {
    let n = 70_001;
    let numbers: Vec<f32> = (0..2 * n).map(|i| (i * 7 % 101) as f32 / 25.0 - 2.0).collect();
    let x = Array::from_slice(&numbers, &[2, n]).expect("it fits");
    for f in [softmax as fn(&Array) -> Result<Array>, log_softmax] {
        let (found, expected) = (pallas_rt::jit(f)(&x).expect("it runs"), f(&x).expect("it runs"));
        let [found, expected] = [found, expected].map(|y| y.to_vec::<f32>().expect("it runs"));
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() <= 1e-4 * b.abs(), "{a}, not {b}");
        }
    }
    let slope = pallas_rt::grad(|x: &Array| softmax(x).map(|y| (&y * &y).sum(..)))(&x).expect("it runs");
    let y = softmax(&x).expect("it runs");
    let expected = softmax_backward(&y, &(&y * 2.0)).expect("it runs");
    let [found, expected] = [slope, expected].map(|y| y.to_vec::<f32>().expect("it runs"));
    let most = expected.iter().fold(0f32, |most, b| most.max(b.abs()));
    for (a, b) in found.iter().zip(&expected) {
        assert!(most > 0.0 && (a - b).abs() <= 1e-4 * most, "{a}, not {b} of at most {most}");
    }
}

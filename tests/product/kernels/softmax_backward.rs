//! Gradients of softmax and log-softmax: rows and columns around the blocks, whole and swept.
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::softmax_backward::{
    log_softmax_backward, softmax_backward, softmax_backward_apply, softmax_backward_sums, softmax_backward_whole_rows,
};
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 8.0;

/// By definition: `Σ_k dy_k · ∂y_k/∂x_j`.
fn reference(y: &[f64], dy: &[f64], n: usize, log: bool) -> Vec<f64> {
    let row = |(y, dy): (&[f64], &[f64])| -> Vec<f64> {
        let slope = |k: usize, j: usize| {
            let same = if k == j { 1.0 } else { 0.0 };
            if log { same - y[j].exp() } else { y[k] * (same - y[j]) }
        };
        (0..y.len()).map(|j| (0..y.len()).map(|k| dy[k] * slope(k, j)).sum()).collect()
    };
    y.chunks(n.max(1)).zip(dy.chunks(n.max(1))).flat_map(row).collect()
}

/// Results in the range of softmax or its logarithm, and gradients.
fn operands(client: &Client, dtype: DType, shape: &[usize], log: bool) -> (Array, Array) {
    let (count, n) = (shape.iter().product(), shape.last().copied().unwrap_or(1).max(1));
    let y = values(count, 3).into_iter().map(|x| if log { -4.0 * x.abs() } else { (x.abs() + 0.1) / n as f64 });
    (array(client, dtype, shape, &y.collect::<Vec<_>>()), array(client, dtype, shape, &values(count, 4)))
}

#[test]
fn every_extent_around_its_blocks() {
    for client in clients() {
        for ([r, n], size) in around([5, 6]) {
            for (&dtype, log) in runs(&client, size).iter().flat_map(|t| [(t, false), (t, true)]) {
                let (y, dy) = operands(&client, dtype, &[r, n], log);
                let want = reference(&doubles(&y), &doubles(&dy), n, log);
                let whole = typed!(dtype, E => softmax_backward_whole_rows::<E>(&y, &dy, log, B)).expect("it runs");
                close(&whole, &want, n, K, &format!("{r}x{n} {dtype}, log {log}"));
                let swept = typed!(dtype, E => softmax_backward_sums::<E>(&y, &dy, log, B, B)
                    .and_then(|sum| softmax_backward_apply::<E>(&y, &dy, &sum, log, B, B)));
                close(&swept.expect("it runs"), &want, n, K, &format!("swept {r}x{n} {dtype}, log {log}"));
            }
        }
    }
}

#[test]
fn wrong_inputs() {
    let cpu = Client::cpu();
    let zeros = |dtype, shape: &[usize]| cpu.zeros(shape, dtype).expect("it fits");
    for backward in [softmax_backward, log_softmax_backward] {
        let fails = |y: &Array, dy: &Array| backward(y, dy).expect_err("it is refused").to_string();
        let shapes = fails(&zeros(DType::F32, &[2, 3]), &zeros(DType::F32, &[2, 4]));
        assert!(shapes.contains("dimension C is 3 in `y` and 4 in `dy`"), "{shapes}");
        let types = fails(&zeros(DType::F32, &[2, 3]), &zeros(DType::F16, &[2, 3]));
        assert!(types.contains("`dy` holds f32, found an array of f16"), "{types}");
        assert!(fails(&zeros(DType::I32, &[3]), &zeros(DType::I32, &[3])).contains("found i32"));
    }
}

#[test]
fn the_functions_that_choose_blocks() {
    let cpu = Client::cpu();
    let shapes = [1, 33, 1025, 5000].map(|n| [2, n]).into_iter().chain(drawn(40, 3));
    for ([r, n], dtype) in shapes.flat_map(|shape| FLOATS.map(|t| (shape, t))) {
        for (log, function) in
            [(false, softmax_backward as fn(&Array, &Array) -> Result<Array>), (true, log_softmax_backward)]
        {
            let (y, dy) = operands(&cpu, dtype, &[r, 1, n], log);
            let sums: Vec<(f64, f64)> = doubles(&y).into_iter().zip(doubles(&dy)).collect();
            // The closed form: the definition takes n² steps.
            let row = |row: &[(f64, f64)]| -> Vec<f64> {
                let sum: f64 = row.iter().map(|&(y, dy)| if log { dy } else { y * dy }).sum();
                row.iter().map(|&(y, dy)| if log { dy - y.exp() * sum } else { y * (dy - sum) }).collect()
            };
            let want: Vec<f64> = sums.chunks(n).flat_map(row).collect();
            close(&function(&y, &dy).expect("it runs"), &want, n, K, &format!("{n} {dtype}, log {log}"));
        }
    }
}

//! The shipped kernels against float64 references, at every size from 0 to two blocks and one along each axis in turn.
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::flash_attention::flash_attention_blocks;
use pallas_kernels::matmul::{
    Layout, matmul, matmul_blocks, matmul_nt_blocks, matmul_tn_blocks, matmul_tt_blocks, matmul_with,
};
use pallas_kernels::norm::{layer_norm, layer_norm_whole_rows, normalise, rms_norm, row_moment};
use pallas_kernels::softmax::{log_softmax, softmax, softmax_apply, softmax_statistics};
use pallas_rt::prelude::*;

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

fn matmul_reference(a: &[f64], b: &[f64], [m, k, n]: [usize; 3], layout: Layout) -> Vec<f64> {
    let at = |i: usize, p: usize| if layout.a_transposed { a[p * m + i] } else { a[i * k + p] };
    let bt = |p: usize, j: usize| if layout.b_transposed { b[j * k + p] } else { b[p * n + j] };
    (0..m * n).map(|e| (0..k).map(|p| at(e / n.max(1), p) * bt(p, e % n.max(1))).sum()).collect()
}

#[test]
fn matmul_at_every_size_around_its_blocks() {
    const B: usize = 4;
    for axis in 0..3 {
        for size in 0..=2 * B + 1 {
            let mut mkn = [5, 6, 7];
            mkn[axis] = size;
            let [m, k, n] = mkn;
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            let want = matmul_reference(&a, &b, mkn, Layout::default());
            for client in clients() {
                for dtype in FLOATS {
                    let (x, y) = (array(&client, dtype, &[1, m, k], &a), array(&client, dtype, &[1, k, n], &b));
                    let out = match dtype {
                        DType::F32 => matmul_blocks::<f32, B, B, B>(&x, &y, |x| x),
                        DType::F16 => matmul_blocks::<f16, B, B, B>(&x, &y, |x| x),
                        _ => matmul_blocks::<bf16, B, B, B>(&x, &y, |x| x),
                    };
                    close(&out.expect("it runs"), &want, k, 4.0, &format!("{m}x{k}x{n} {dtype}"));
                }
            }
        }
    }
}

#[test]
fn matmul_of_every_layout_with_an_epilogue_and_batches() {
    let [m, k, n] = [9, 7, 5];
    let (a, b) = (values(m * k, 3), values(k * n, 4));
    for client in clients() {
        for (a_transposed, b_transposed) in [(false, false), (true, false), (false, true), (true, true)] {
            let layout = Layout { a_transposed, b_transposed };
            let want: Vec<f64> =
                matmul_reference(&a, &b, [m, k, n], layout).into_iter().map(|x| (x * 0.5).max(0.0)).collect();
            let a_shape = if a_transposed { [1, k, m] } else { [1, m, k] };
            let b_shape = if b_transposed { [1, n, k] } else { [1, k, n] };
            let (x, y) = (array(&client, DType::F32, &a_shape, &a), array(&client, DType::F32, &b_shape, &b));
            let relu = |x: Tile<f32>| maximum(x * 0.5, 0.0);
            let out = match (a_transposed, b_transposed) {
                (false, false) => matmul_blocks::<f32, 4, 4, 4>(&x, &y, relu),
                (true, false) => matmul_tn_blocks::<f32, 4, 4, 4>(&x, &y, relu),
                (false, true) => matmul_nt_blocks::<f32, 4, 4, 4>(&x, &y, relu),
                (true, true) => matmul_tt_blocks::<f32, 4, 4, 4>(&x, &y, relu),
            };
            close(&out.expect("it runs"), &want, k, 4.0, &format!("{layout:?}"));
        }
    }
    // The functions that choose blocks, batched, on the CPU.
    let cpu = Client::cpu();
    let (g, x) = (3, values(3 * m * k, 5));
    let y = values(3 * k * n, 6);
    let want: Vec<f64> = (0..g)
        .flat_map(|i| {
            matmul_reference(&x[i * m * k..][..m * k], &y[i * k * n..][..k * n], [m, k, n], Layout::default())
        })
        .collect();
    let out = matmul(&array(&cpu, DType::F32, &[g, m, k], &x), &array(&cpu, DType::F32, &[g, k, n], &y));
    close(&out.expect("it runs"), &want, k, 4.0, "batched");
    let scaled = matmul_with(
        &array(&cpu, DType::F32, &[m, k], &a),
        &array(&cpu, DType::F32, &[k, n], &b),
        Layout::default(),
        |x| x * 2.0,
    );
    let want: Vec<f64> = matmul_reference(&a, &b, [m, k, n], Layout::default()).into_iter().map(|x| 2.0 * x).collect();
    close(&scaled.expect("it runs"), &want, k, 4.0, "epilogue");
}

fn softmax_reference(x: &[f64], n: usize, log: bool) -> Vec<f64> {
    let row = |r: &[f64]| -> Vec<f64> {
        let m = r.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = r.iter().map(|x| (x - m).exp()).sum();
        r.iter().map(|x| if log { x - m - sum.ln() } else { (x - m).exp() / sum }).collect()
    };
    x.chunks(n.max(1)).flat_map(row).collect()
}

#[test]
fn softmax_of_any_row_length() {
    for client in clients() {
        for n in [0, 1, 2, 5, 9, 33] {
            for r in [0, 1, 3, 9] {
                let x: Vec<f64> = values(r * n, n).into_iter().map(|x| 8.0 * x).collect();
                for dtype in FLOATS {
                    let y = array(&client, dtype, &[r, n], &x);
                    let exact = doubles(&y);
                    close(
                        &softmax(&y).expect("it runs"),
                        &softmax_reference(&exact, n, false),
                        n,
                        8.0,
                        &format!("{r}x{n}"),
                    );
                    close(
                        &log_softmax(&y).expect("it runs"),
                        &softmax_reference(&exact, n, true),
                        n,
                        32.0,
                        &format!("{r}x{n}"),
                    );
                }
                // Rows longer than a block: two sweeps.
                let y = array(&client, DType::F32, &[r, n], &x);
                let (max, sum) = softmax_statistics::<f32, 2, 4>(&y).expect("it runs");
                let out = softmax_apply::<f32, 2, 4>(&y, &max, &sum, false).expect("it runs");
                close(&out, &softmax_reference(&doubles(&y), n, false), n, 8.0, &format!("swept {r}x{n}"));
            }
        }
    }
    let cpu = Client::cpu();
    for n in [1025, 5000] {
        let y = array(&cpu, DType::F32, &[2, n], &values(2 * n, n));
        close(&softmax(&y).expect("it runs"), &softmax_reference(&doubles(&y), n, false), n, 8.0, "long rows");
    }
}

fn norm_reference(x: &[f64], gamma: &[f64], beta: Option<&[f64]>, eps: f64) -> Vec<f64> {
    let n = gamma.len();
    let row = |r: &[f64]| -> Vec<f64> {
        let mean = if beta.is_some() { r.iter().sum::<f64>() / n as f64 } else { 0.0 };
        let variance = r.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        let scaled = r.iter().zip(gamma).map(|(x, g)| (x - mean) / (variance + eps).sqrt() * g);
        scaled.enumerate().map(|(j, y)| y + beta.map_or(0.0, |b| b[j])).collect()
    };
    x.chunks(n.max(1)).flat_map(row).collect()
}

#[test]
fn norms_of_any_row_length() {
    const EPS: f32 = 1e-3;
    for client in clients() {
        for n in [1, 2, 5, 9, 33] {
            for r in [0, 1, 9] {
                for dtype in FLOATS {
                    let x = array(&client, dtype, &[r, n], &values(r * n, n));
                    let (gamma, beta) =
                        (array(&client, dtype, &[n], &values(n, 7)), array(&client, dtype, &[n], &values(n, 8)));
                    let (xs, gs, bs) = (doubles(&x), doubles(&gamma), doubles(&beta));
                    let out = layer_norm(&x, &gamma, &beta, EPS).expect("it runs");
                    close(
                        &out,
                        &norm_reference(&xs, &gs, Some(&bs), f64::from(EPS)),
                        n,
                        64.0,
                        &format!("layer {r}x{n} {dtype}"),
                    );
                    let out = rms_norm(&x, &gamma, EPS).expect("it runs");
                    close(
                        &out,
                        &norm_reference(&xs, &gs, None, f64::from(EPS)),
                        n,
                        32.0,
                        &format!("rms {r}x{n} {dtype}"),
                    );
                }
            }
        }
        // Rows longer than a block: swept.
        let (r, n) = (3, 11);
        let x = array(&client, DType::F32, &[r, n], &values(r * n, 1));
        let (gamma, beta) =
            (array(&client, DType::F32, &[1, n], &values(n, 7)), array(&client, DType::F32, &[1, n], &values(n, 8)));
        let zero = client.zeros(DType::F32, &[r, 1]).expect("it fits");
        let mean = row_moment::<f32, 2, 4>(&x, &zero, 1).expect("it runs");
        let variance = row_moment::<f32, 2, 4>(&x, &mean, 2).expect("it runs");
        let out = normalise::<f32, 2, 4>(&x, &mean, &variance, &gamma, &beta, EPS).expect("it runs");
        close(
            &out,
            &norm_reference(&doubles(&x), &doubles(&gamma), Some(&doubles(&beta)), f64::from(EPS)),
            n,
            64.0,
            "swept",
        );
        let whole = layer_norm_whole_rows::<f32, 2>(&x, &gamma, &beta, EPS).expect("it runs");
        close(&whole, &doubles(&out), n, 64.0, "whole rows against swept ones");
    }
}

fn attention_reference(q: &[f64], k: &[f64], v: &[f64], [s, l, d]: [usize; 3], length: usize, scale: f64) -> Vec<f64> {
    let mut out = vec![0.0; s * d];
    for i in 0..s {
        let scores: Vec<f64> =
            (0..l.min(length)).map(|j| (0..d).map(|c| q[i * d + c] * k[j * d + c]).sum::<f64>() * scale).collect();
        let m = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|x| (x - m).exp()).collect();
        let total: f64 = weights.iter().sum();
        for c in 0..d {
            let sum: f64 = weights.iter().enumerate().map(|(j, w)| w * v[j * d + c]).sum();
            out[i * d + c] = if total > 0.0 { sum / total } else { 0.0 };
        }
    }
    out
}

#[test]
fn attention_at_every_length_around_its_blocks() {
    const B: usize = 4;
    for client in clients() {
        for axis in 0..2 {
            for size in 0..=2 * B + 1 {
                let (s, l) = if axis == 0 { (size, 6) } else { (5, size) };
                for length in [l, l / 2, 0] {
                    let d = 3;
                    let (q, k, v) = (values(s * d, 1), values(l * d, 2), values(l * d, 3));
                    let want = attention_reference(&q, &k, &v, [s, l, d], length, 0.5);
                    let make = |n: usize, x: &[f64]| array(&client, DType::F32, &[1, 1, n, d], x);
                    let lengths = client.array(&[length as i32], &[1]).expect("it fits");
                    let out = flash_attention_blocks::<B, B>(&make(s, &q), &make(l, &k), &make(l, &v), &lengths, 0.5);
                    // No keys at all: no step runs, and the output is its `empty` value, 0.
                    close(
                        &out.expect("it runs"),
                        &want,
                        l.max(d),
                        16.0,
                        &format!("{s} queries, {l} keys, {length} live"),
                    );
                }
            }
        }
    }
}

//! Gradients of flash attention: lengths around the blocks, masks, groups of heads; the reference against finite differences.
use super::attention::{Case, MASKS};
use super::{B, FLOATS, around, runs, typed};
use crate::support::{array, clients, close, doubles, gpu, values};
use pallas_kernels::flash_attention::{Causal, Options, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::{flash_attention_backward, gradients_in_blocks};
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 32.0;

/// Gradients by q, k and v.
fn reference(case: &Case<'_>, [q, k, v, dout]: [&[f64]; 4]) -> [Vec<f64>; 3] {
    let [batch, heads, key_heads, s, l, d] = case.sizes;
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    let (out, lse) = case.reference(q, k, v);
    let rows = (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..s).map(move |i| (b, h, i))));
    for (at, (b, h, i)) in rows.enumerate() {
        if lse[at] == f64::NEG_INFINITY {
            continue;
        }
        let row = at * d..(at + 1) * d;
        let (q, dout, out) = (&q[row.clone()], &dout[row.clone()], &out[row.clone()]);
        let product = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let delta = product(dout, out);
        for j in 0..case.seen(b, i) {
            let first = ((b * key_heads + h / (heads / key_heads)) * l + j) * d;
            let (k, v) = (&k[first..first + d], &v[first..first + d]);
            let p = (product(q, k) * case.scale - lse[at]).exp();
            let ds = p * (product(dout, v) - delta) * case.scale;
            for c in 0..d {
                dq[at * d + c] += ds * k[c];
                dk[first + c] += ds * q[c];
                dv[first + c] += p * dout[c];
            }
        }
    }
    [dq, dk, dv]
}

#[test]
fn the_reference_agrees_with_finite_differences() {
    for causal in MASKS {
        let case = Case { sizes: [2, 4, 2, 3, 4, 2], lengths: &[4, 2], causal, scale: 0.7 };
        let operands = [(48, 1), (32, 2), (32, 3)].map(|(n, seed)| values(n, seed));
        let dout = values(48, 4);
        let loss =
            |[q, k, v]: [&[f64]; 3]| -> f64 { case.reference(q, k, v).0.iter().zip(&dout).map(|(o, d)| o * d).sum() };
        let [q, k, v] = operands.each_ref().map(|x| &x[..]);
        let gradients = reference(&case, [q, k, v, &dout]);
        for (which, gradient) in gradients.iter().enumerate() {
            for (i, &gradient) in gradient.iter().enumerate() {
                let at = |by: f64| {
                    let mut moved = operands.clone();
                    moved[which][i] += by;
                    loss(moved.each_ref().map(|x| &x[..]))
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!(
                    (slope - gradient).abs() < 1e-7,
                    "{causal:?}, operand {which}, element {i}: {gradient}, {slope}"
                );
            }
        }
    }
}

/// Operands, the forward pass' results as the reference has them, and the gradient that comes in.
fn operands(case: &Case<'_>, client: &Client, dtype: DType) -> ([Array; 3], [Array; 2], Array) {
    let operands = case.operands(client, dtype);
    let [q, k, v] = operands.each_ref().map(doubles);
    let (out, lse) = case.reference(&q, &k, &v);
    let shape = case.q_shape();
    let results = [array(client, dtype, &shape, &out), array(client, DType::F32, &shape[..3], &lse)];
    (operands, results, array(client, dtype, &shape, &values(out.len(), 4)))
}

fn compare(case: &Case<'_>, found: Result<(Array, Array, Array)>, [q, k, v]: &[Array; 3], dout: &Array) {
    let what = format!("{case:?} of {}", q.dtype());
    let (dq, dk, dv) = found.unwrap_or_else(|e| panic!("{what}: {e}"));
    let want = reference(case, [&doubles(q), &doubles(k), &doubles(v), &doubles(dout)]);
    let [_, heads, key_heads, s, l, d] = case.sizes;
    let terms = s.max(l).max(d) * heads.checked_div(key_heads).unwrap_or(1);
    for (name, (found, want)) in ["dq", "dk", "dv"].iter().zip([dq, dk, dv].iter().zip(&want)) {
        close(found, want, terms, K, &format!("{name}, {what}"));
    }
}

fn check(case: &Case<'_>, client: &Client, dtype: DType) {
    let (operands, [out, lse], dout) = operands(case, client, dtype);
    let [q, k, v] = operands.each_ref();
    let lengths = case.lengths(client);
    let options = case.options(&lengths);
    let (operands_of, results) = ([q, k, v], [&out, &lse]);
    let found = typed!(dtype, E => gradients_in_blocks::<E, f32, B, B>(operands_of, results, &dout, &options));
    compare(case, found, &operands, &dout);
    if client.kind() != DeviceKind::Gpu {
        let found = typed!(dtype, E => resident_gradients::<E, f32, B, B>(operands_of, results, &dout, &options));
        compare(case, found, &operands, &dout);
    }
}

#[test]
fn every_extent_around_its_blocks() {
    for client in clients() {
        let is_gpu = client.kind() == DeviceKind::Gpu;
        for ([s, l, d], size) in around([5, 6, 3]) {
            let each = runs(&client, size).iter().flat_map(|&t| MASKS.map(|c| (t, c)));
            // On a GPU one mask per size.
            for (_, (dtype, causal)) in each.enumerate().filter(|(i, _)| !is_gpu || *i == size % 3) {
                check(&Case { sizes: [3, 1, 1, s, l, d], lengths: &[l, l / 2, 0], causal, scale: 0.5 }, &client, dtype);
            }
        }
    }
}

#[test]
fn heads_share_keys_in_groups() {
    for client in clients() {
        for (heads, key_heads) in [(1, 1), (4, 4), (6, 2), (6, 3), (5, 1)] {
            let sizes = [2, heads, key_heads, 5, 7, 4];
            check(&Case { sizes, lengths: &[7, 4], causal: Causal::FromEnd, scale: 0.5 }, &client, DType::F32);
        }
    }
}

#[test]
fn after_the_forward_pass_with_blocks_that_are_chosen() {
    let cpu = Client::cpu();
    for d in [16, 24, 40, 64, 80, 96, 128, 256] {
        for (dtype, (s, l)) in FLOATS.into_iter().zip([(33, 47), (70, 131), (7, 100)]) {
            let scale = 1.0 / (d as f64).sqrt();
            let case = Case { sizes: [1, 2, 1, s, l, d], lengths: &[l], causal: Causal::FromStart, scale };
            let (operands, _, dout) = operands(&case, &cpu, dtype);
            let [q, k, v] = operands.each_ref();
            let options = Options { causal: case.causal, ..Options::default() };
            let (out, lse) = flash_attention_with_lse(q, k, v, &options).expect("it runs");
            let found = flash_attention_backward([q, k, v], [&out, &lse], &dout, &options);
            compare(&case, found, &operands, &dout);
        }
    }
}

#[test]
fn a_gpu_computes_gradients_with_blocks_that_are_chosen() {
    let Some(client) = gpu() else { return };
    for d in [40, 128] {
        let case = Case { sizes: [1, 2, 1, 37, 70, d], lengths: &[70], causal: Causal::FromEnd, scale: 0.125 };
        let (operands, [out, lse], dout) = operands(&case, &client, DType::F32);
        let options = Options { scale: Some(0.125), causal: case.causal, ..Options::default() };
        let found = flash_attention_backward(operands.each_ref(), [&out, &lse], &dout, &options);
        compare(&case, found, &operands, &dout);
    }
}

#[test]
fn what_lies_behind_the_last_key_does_not_matter() {
    let (s, l, d) = (6, 11, 2);
    for client in [Client::interpreter(), Client::cpu()] {
        for causal in MASKS {
            let case = Case { sizes: [1, 1, 1, s, l, d], lengths: &[9], causal, scale: 1.0 };
            let (clean, [out, lse], dout) = operands(&case, &client, DType::F32);
            let soiled = clean.each_ref().map(|x| {
                let mut values = doubles(x);
                if values.len() == l * d {
                    values[9 * d..].fill(f64::NAN);
                }
                array(&client, DType::F32, x.shape(), &values)
            });
            let [q, k, v] = soiled.each_ref();
            let lengths = case.lengths(&client);
            let options = case.options(&lengths);
            compare(&case, flash_attention_backward([q, k, v], [&out, &lse], &dout, &options), &clean, &dout);
        }
    }
}

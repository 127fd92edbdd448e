//! Attention of parts of a sequence, each at its positions: merged by the log-sum-exp, and its gradients summed, they
//! are those of the whole sequence in float64.
use super::attention_reference::{Scene, Tensors};
use crate::support::{array, clients, values};
use pallas_kernels::flash_attention::{Causal, Options, Window, flash_attention_in_blocks};
use pallas_kernels::flash_attention_backward::gradients_in_blocks;
use pallas_kernels::flash_attention_bias::bias_gradient_in_blocks;
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_rt::prelude::*;
use std::ops::Range;

/// Blocks of queries and of keys, and where the sequences are sharded: in the middle of blocks, in unequal parts.
const B: usize = 4;
const QUERIES: [usize; 4] = [0, 3, 4, 13];
const KEYS: [usize; 4] = [0, 6, 7, 15];

/// Elements of a range along an axis.
fn part(x: &[f64], shape: &[usize], axis: usize, range: &Range<usize>) -> (Vec<f64>, Vec<usize>) {
    let rest: usize = shape[axis + 1..].iter().product();
    let row = shape[axis] * rest;
    let elements = x.chunks(row.max(1)).flat_map(|row| &row[range.start * rest..range.end * rest]).copied().collect();
    let mut shape = shape.to_vec();
    shape[axis] = range.len();
    (elements, shape)
}

/// Adds to the elements of a range along an axis.
fn add(to: &mut [f64], shape: &[usize], axis: usize, range: &Range<usize>, x: &[f64]) {
    let rest: usize = shape[axis + 1..].iter().product();
    let own = to.chunks_mut(shape[axis] * rest).flat_map(|row| &mut row[range.start * rest..range.end * rest]);
    own.zip(x).for_each(|(to, x)| *to += x);
}

fn numbers(x: &Array) -> Vec<f64> {
    x.to_vec::<f32>().unwrap_or_else(|e| panic!("{e}")).into_iter().map(f64::from).collect()
}

fn ranges(ends: [usize; 4]) -> [Range<usize>; 3] {
    [0, 1, 2].map(|i| ends[i]..ends[i + 1])
}

/// The parts of q, k, v and the bias for queries and keys of these ranges.
fn operands(client: &Client, scene: &Scene, x: &Tensors, q: &Range<usize>, k: &Range<usize>) -> [Array; 4] {
    let shapes = scene.shapes();
    let of = |i: usize, axis: usize, range: &Range<usize>| part(&x[i], &shapes[i], axis, range);
    let (bias, shape) = of(3, 2, q);
    let bias = part(&bias, &shape, 3, k);
    [of(0, 2, q), of(1, 2, k), of(2, 2, k), bias].map(|(x, shape)| array(client, DType::F32, &shape, &x))
}

#[track_caller]
fn compare(what: &str, found: &[f64], want: &[f64]) {
    assert_eq!(found.len(), want.len(), "{what}");
    let is_close = |(x, y): (&f64, &f64)| x == y || (x - y).abs() <= 1e-5 * (1.0 + y.abs());
    let wrong = found.iter().zip(want).position(|pair| !is_close(pair));
    assert_eq!(wrong.map(|i| (i, found[i], want[i])), None, "{what}");
}

fn check(client: &Client, scene: &Scene) {
    let what = format!("{} {scene:?}", client.device());
    let x = scene.tensors();
    let shapes = scene.shapes();
    let (out, lse) = scene.forward(&x);
    let dout = values(out.len(), 9);
    let want = scene.backward(&x, &dout);
    let [batch, heads, _, queries, _, d] = scene.sizes;
    let of_rows = [batch, heads, queries];
    let pairs = ranges(QUERIES).into_iter().flat_map(|q| ranges(KEYS).map(|k| (q.clone(), k)));
    let (mut merged, mut sums) = (vec![0.0; out.len()], vec![0.0; lse.len()]);
    let mut found: [Tensors; 2] = [(); 2].map(|()| x.each_ref().map(|x| vec![0.0; x.len()]));
    for (q, k) in pairs {
        let all = operands(client, scene, &x, &q, &k);
        let offsets = client.array(&[q.start as i32, k.start as i32], &[2]).expect("it fits");
        let options = Options {
            scale: Some(scene.scale as f32),
            causal: scene.causal,
            window: scene.window,
            offsets: Some(&offsets),
            bias: Some(&all[3]),
            ..Options::default()
        };
        let [queries, keys, values, _] = &all;
        let (own, own_lse) =
            flash_attention_in_blocks::<f32>(queries, keys, values, &options, [B, B]).unwrap_or_else(|e| panic!("{e}"));
        let (own, own_lse) = (numbers(&own), numbers(&own_lse));
        // The weight of these keys in the softmax over all.
        let (whole, _) = part(&lse, &of_rows, 2, &q);
        let weight: Vec<f64> = own_lse.iter().zip(&whole).map(|(own, all)| (own - all).exp()).collect();
        assert!(own_lse.iter().zip(&whole).all(|(own, all)| own.is_finite() || *own < *all || own == all), "{what}");
        let weight: Vec<f64> = weight.into_iter().map(|w| if w.is_nan() { 0.0 } else { w }).collect();
        let weighted: Vec<f64> = own.iter().enumerate().map(|(i, x)| x * weight[i / d]).collect();
        add(&mut merged, &shapes[0], 2, &q, &weighted);
        add(&mut sums, &of_rows, 2, &q, &weight);
        // Gradients have the results of the whole sequence.
        let of_whole = |x: &[f64], shape: &[usize]| {
            let (x, shape) = part(x, shape, 2, &q);
            array(client, DType::F32, &shape, &x)
        };
        let results = [of_whole(&out, &shapes[0]), of_whole(&lse, &of_rows)];
        let (results, by) = (results.each_ref(), of_whole(&dout, &shapes[0]));
        let triple = [queries, keys, values];
        let two =
            gradients_in_blocks::<f32>(triple, results, &by, &options, [[B; 2]; 2]).unwrap_or_else(|e| panic!("{e}"));
        let one = resident_gradients::<f32>(triple, results, &by, &options, [B, B]).unwrap_or_else(|e| panic!("{e}"));
        let bias =
            bias_gradient_in_blocks::<f32>(triple, results, &by, &options, [B, B]).unwrap_or_else(|e| panic!("{e}"));
        for (sums, (dq, dk, dv)) in found.iter_mut().zip([two, one]) {
            add(&mut sums[0], &shapes[0], 2, &q, &numbers(&dq));
            add(&mut sums[1], &shapes[1], 2, &k, &numbers(&dk));
            add(&mut sums[2], &shapes[2], 2, &k, &numbers(&dv));
            // A part of the bias belongs to this pair alone.
            let bias = numbers(&bias);
            for (row, of_row) in bias.chunks(k.len()).enumerate() {
                let (head, i) = (row / q.len(), q.start + row % q.len());
                let at = (head * shapes[3][2] + i) * shapes[3][3] + k.start;
                sums[3][at..at + k.len()].copy_from_slice(of_row);
            }
        }
    }
    compare(&format!("the result, {what}"), &merged, &out);
    let live: Vec<f64> = lse.iter().map(|x| f64::from(u8::from(*x > f64::NEG_INFINITY))).collect();
    compare(&format!("the weights, {what}"), &sums, &live);
    for (found, of) in found.iter().zip(["dq and dkv", "resident"]) {
        for (i, name) in ["dq", "dk", "dv", "dbias"].iter().enumerate() {
            compare(&format!("{name} by {of}, {what}"), &found[i], &want[i]);
        }
    }
}

#[test]
fn parts_of_a_sequence_at_their_positions_are_the_whole() {
    let windows = [(None, None), (Some(2), None), (Some(5), Some(3))];
    for client in clients() {
        for causal in [Causal::No, Causal::FromStart] {
            for (left, right) in windows {
                let scene = Scene {
                    sizes: [2, 2, 1, QUERIES[3], KEYS[3], 3],
                    scale: 0.75,
                    causal,
                    window: Window { left, right },
                    lengths: None,
                    segments: None,
                    bias: Some([2, 2]),
                    soft_cap: None,
                    sinks: false,
                    dropout: None,
                };
                check(&client, &scene);
            }
        }
    }
}

#[test]
fn offsets_that_mean_nothing_are_refused() {
    let client = Client::cpu();
    let x = client.zeros(&[1, 1, 4, 2], DType::F32).expect("it fits");
    let [two, three] = [2, 3].map(|n| client.zeros(&[n], DType::I32).expect("it fits"));
    let options = |offsets| Options { offsets: Some(offsets), ..Options::default() };
    let error = |options: &Options<'_>| {
        flash_attention_in_blocks::<f32>(&x, &x, &x, options, [B, B]).expect_err("a mistake").to_string()
    };
    assert!(error(&options(&three)).contains("`offsets` has shape [3], expected [2]"));
    assert!(error(&options(&x)).contains("`offsets` holds f32, expected i32"));
    let from_end = Options { causal: Causal::FromEnd, ..options(&two) };
    assert!(error(&from_end).contains("`offsets` with `Causal::FromEnd` or `dropout`"));
}

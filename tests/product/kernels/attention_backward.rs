//! Gradients of flash attention: lengths around the blocks, masks, groups of heads; the reference against finite
//! differences.
use super::attention::{Case, MASKS};
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, gpu, values};
use pallas_kernels::flash_attention::{Causal, Options, Window, flash_attention_in_blocks, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::{flash_attention_backward, gradients_in_blocks};
use pallas_kernels::flash_attention_bias::{bias_gradient, sinks_gradient};
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
    let found = typed!(dtype, E => gradients_in_blocks::<E>(operands_of, results, &dout, &options, [[B; 2]; 2]));
    compare(case, found, &operands, &dout);
    if client.kind() != DeviceKind::Gpu {
        let found = typed!(dtype, E => resident_gradients::<E>(operands_of, results, &dout, &options, [B, B]));
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
    let dims = [16, 24, 40, 64, 80, 96, 112, 128, 256];
    let large = dims.into_iter().flat_map(|d| [(33, 47), (70, 131), (7, 100)].map(|(s, l)| [1, 2, 1, s, l, d]));
    // One head of keys, whose gradients take two passes, and several.
    let small = drawn(40, 13).enumerate().map(|(i, [s, l, d])| [1, 4, [1, 2, 4][i % 3], s, l, d]);
    for (i, sizes) in large.chain(small).enumerate() {
        let [.., l, d] = sizes;
        let case = Case { sizes, lengths: &[l], causal: Causal::FromStart, scale: 1.0 / (d as f64).sqrt() };
        let (operands, _, dout) = operands(&case, &cpu, FLOATS[i % 3]);
        let [q, k, v] = operands.each_ref();
        let options = Options { causal: case.causal, ..Options::default() };
        let (out, lse) = flash_attention_with_lse(q, k, v, &options).expect("it runs");
        let found = flash_attention_backward([q, k, v], [&out, &lse], &dout, &options);
        compare(&case, found, &operands, &dout);
    }
}

/// Head dimensions of models, powers of two and others, there and back on every device; a GPU, which compiles each
/// anew, has some of them with one element type each.
#[test]
fn head_dimensions_there_and_back() {
    for client in clients() {
        for (i, d) in [16, 80, 96, 112, 256].into_iter().enumerate() {
            let types = match (client.kind(), d) {
                (DeviceKind::Gpu, 16 | 96) => continue,
                (DeviceKind::Gpu, _) => &FLOATS[i % 3..=i % 3],
                _ => &FLOATS,
            };
            let scale = 1.0 / (d as f64).sqrt();
            let case = Case { sizes: [1, 2, 1, 9, 11, d], lengths: &[11], causal: Causal::FromEnd, scale };
            for &dtype in types {
                case.check(&client, dtype, &case.operands(&client, dtype));
                check(&case, &client, dtype);
            }
        }
    }
}

#[test]
fn nothing_has_no_gradient() {
    for client in clients() {
        for [batch, heads, s, l] in [[0, 2, 5, 6], [2, 0, 5, 6], [2, 2, 0, 6], [2, 2, 5, 0]] {
            let zeros = |dtype, shape: &[usize]| client.zeros(shape, dtype).expect("it fits");
            let (q, k) = (zeros(DType::F32, &[batch, heads, s, 8]), zeros(DType::F32, &[batch, heads / 2, l, 8]));
            let (own, theirs) = (zeros(DType::I32, &[batch, s]), zeros(DType::I32, &[batch, l]));
            let (bias, sinks) = (zeros(DType::F32, &[batch, heads, s, l]), zeros(DType::F32, &[heads]));
            let every = Options {
                segments: Some([&own, &theirs]),
                bias: Some(&bias),
                sinks: Some(&sinks),
                window: Window { left: Some(1), right: Some(1) },
                ..Options::default()
            };
            for options in [Options::default(), every] {
                let what = format!("{batch} {heads} {s} {l} on {}", client.device());
                let run = || -> Result<()> {
                    let (out, lse) = flash_attention_with_lse(&q, &k, &k, &options)?;
                    assert!(doubles(&out).iter().all(|&x| x == 0.0));
                    let (dq, dk, dv) = flash_attention_backward([&q, &k, &k], [&out, &lse], &out, &options)?;
                    for (found, operand) in [(dq, &q), (dk, &k), (dv, &k)] {
                        assert_eq!(found.shape(), operand.shape());
                        assert!(doubles(&found).iter().all(|&x| x == 0.0), "{what}");
                    }
                    if options.bias.is_some() {
                        let dbias = bias_gradient([&q, &k, &k], [&out, &lse], &out, &options)?;
                        assert_eq!((dbias.shape(), doubles(&dbias)), (bias.shape(), doubles(&bias)));
                        let dsinks = sinks_gradient([&out, &lse], &out, &sinks)?;
                        assert_eq!((dsinks.shape(), doubles(&dsinks)), (sinks.shape(), doubles(&sinks)));
                    }
                    Ok(())
                };
                run().unwrap_or_else(|e| panic!("{what}: {e}"));
            }
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let cpu = Client::cpu();
    let zeros = |dtype, shape: &[usize]| cpu.zeros(shape, dtype).expect("it fits");
    let float = |shape: &[usize]| zeros(DType::F32, shape);
    let (q, kv, lse) = (float(&[2, 4, 5, 8]), float(&[2, 2, 7, 8]), float(&[2, 4, 5]));
    let bias = float(&[1, 1, 5, 7]);
    let options = Options { bias: Some(&bias), ..Options::default() };
    let fails = |operands: [&Array; 3], results: [&Array; 2], dout: &Array, says: &str| {
        let gradients = flash_attention_backward(operands, results, dout, &options).map(|_| ());
        let dbias = bias_gradient(operands, results, dout, &options).map(|_| ());
        for found in [gradients, dbias] {
            let error = found.expect_err("it is refused").to_string();
            assert!(error.contains(says), "{error}\n expected: {says}");
        }
    };
    let right = [&q, &kv, &kv];
    fails([&float(&[4, 5, 8]), &kv, &kv], [&q, &lse], &q, "`q` has shape [4, 5, 8], expected [batch, heads");
    fails([&q, &float(&[2, 7, 8]), &kv], [&q, &lse], &q, "`k` has shape [2, 7, 8], expected [batch, heads");
    fails([&q, &float(&[2, 3, 7, 8]), &kv], [&q, &lse], &q, "4 heads of queries are no multiple of 3 heads of keys");
    fails([&q, &kv, &float(&[2, 2, 6, 8])], [&q, &lse], &q, "`v`");
    fails([&q, &float(&[3, 2, 7, 8]), &kv], [&q, &lse], &q, "`k`");
    fails(right, [&float(&[2, 4, 6, 8]), &lse], &q, "dimension S is 6 in `out` and 5 in `dout`");
    fails(right, [&q, &float(&[2, 4, 6])], &q, "`lse`");
    fails(right, [&q, &zeros(DType::F16, &[2, 4, 5])], &q, "`lse` holds f32, found an array of f16");
    fails(right, [&q, &lse], &float(&[2, 4, 5, 4]), "dimension D is 8 in `out` and 4 in `dout`");
    fails(right, [&q, &lse], &zeros(DType::F16, &[2, 4, 5, 8]), "`dout` holds f32, found an array of f16");
    let none = bias_gradient(right, [&q, &lse], &q, &Options::default()).expect_err("it is refused").to_string();
    assert!(none.contains("there is no `bias` in the options"), "{none}");
    let sinks = sinks_gradient([&q, &lse], &q, &float(&[3])).expect_err("it is refused").to_string();
    assert!(sinks.contains("`sinks`"), "{sinks}");
}

#[test]
fn a_gpu_computes_gradients_with_blocks_that_are_chosen() {
    let Some(client) = gpu() else { return };
    for d in [40, 256] {
        let case = Case { sizes: [1, 2, 1, 37, 70, d], lengths: &[70], causal: Causal::FromEnd, scale: 0.125 };
        let (operands, [out, lse], dout) = operands(&case, &client, DType::F32);
        let options = Options { scale: Some(0.125), causal: case.causal, ..Options::default() };
        let found = flash_attention_backward(operands.each_ref(), [&out, &lse], &dout, &options);
        compare(&case, found, &operands, &dout);
    }
}

/// Padding is of no segment: others are computed as if it were not there.
#[test]
fn padding_may_hold_anything() {
    let (n, d) = (11, 2);
    let numbers = [0, 0, 0, 1, 1, 1, -1, 1, -5, -1, -1];
    for client in clients() {
        let segments = client.array(&numbers, &[1, n]).expect("it fits");
        let options = Options { segments: Some([&segments, &segments]), ..Options::default() };
        let results = |padding: f64| {
            let [q, k, v, dout] = [1, 2, 3, 4].map(|seed| {
                let mut x = values(n * d, seed);
                x.chunks_mut(d).zip(numbers).filter(|(_, number)| *number < 0).for_each(|(row, _)| row.fill(padding));
                array(&client, DType::F32, &[1, 1, n, d], &x)
            });
            let (out, lse) = flash_attention_in_blocks::<f32>(&q, &k, &v, &options, [B, B])?;
            let (operands, results) = ([&q, &k, &v], [&out, &lse]);
            let (dq, dk, dv) = gradients_in_blocks::<f32>(operands, results, &dout, &options, [[B; 2]; 2])?;
            let resident = resident_gradients::<f32>(operands, results, &dout, &options, [B, B])?;
            Ok([out, lse, dq, dk, dv, resident.0, resident.1, resident.2].each_ref().map(doubles))
        };
        let want = results(0.0).unwrap_or_else(|e: Error| panic!("{e}"));
        for padding in [f64::NAN, f64::INFINITY] {
            assert_eq!(results(padding).expect("it runs"), want, "padding of {padding} on {client:?}");
        }
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

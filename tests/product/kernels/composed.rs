//! Shipped functions that a traced function computes by operations: as kernels compute them, for odd values and for
//! batches of which some operands are the same for all examples.
use super::inlined::array;
use crate::support::{clients, doubles};
use pallas_kernels::cross_entropy::{self, cross_entropy};
use pallas_kernels::embedding::embedding;
use pallas_kernels::flash_attention::{Causal, Cotangents, Options, flash_attention, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::flash_attention_backward_with_bias;
use pallas_kernels::flash_attention_bias::sinks_gradient;
use pallas_kernels::norm::{layer_norm, rms_norm};
use pallas_kernels::rotary::{Pairs, rotary};
use pallas_kernels::softmax::{log_softmax, softmax};
use pallas_rt::prelude::*;
use pallas_rt::{grad, jit, ops, vmap};

type F = fn(&[Array]) -> Result<Array>;

fn labels(x: &Array) -> Array {
    x.client().array(&[2i32, 0, 3], &[3]).expect("it fits")
}

/// The functions by name, with the shapes of what they take.
fn functions() -> Vec<(&'static str, Vec<Vec<usize>>, F)> {
    vec![
        ("layer norm", vec![vec![3, 5], vec![5], vec![5]], |x| layer_norm(&x[0], &x[1], &x[2], 1e-5)),
        ("rms norm", vec![vec![3, 5], vec![5]], |x| rms_norm(&x[0], &x[1], 1e-5)),
        ("rotary", vec![vec![2, 3, 4], vec![3, 2], vec![3, 2]], |x| {
            rotary(&x[0], &x[1].stop_gradient(), &x[2].stop_gradient(), Pairs::Halves)
        }),
        ("embedding", vec![vec![4, 5]], |x| {
            let numbers = if x[0].is_traced() { labels(&x[0]) + ops::zeros(&[], DType::I32) } else { labels(&x[0]) };
            embedding(&x[0], &numbers)
        }),
        ("attention", vec![vec![1, 2, 3, 4]; 3], |x| flash_attention(&x[0], &x[1], &x[2], &Options::default())),
        ("causal attention", vec![vec![1, 2, 3, 4]; 3], |x| {
            flash_attention(&x[0], &x[1], &x[2], &Options { causal: Causal::FromStart, ..Options::default() })
        }),
        ("attention with bias and sinks", [vec![vec![1, 2, 3, 4]; 3], vec![vec![1, 2, 3, 3], vec![2]]].concat(), |x| {
            let options = Options { bias: Some(&x[3]), sinks: Some(&x[4]), ..Options::default() };
            flash_attention(&x[0], &x[1], &x[2], &options)
        }),
        ("cross-entropy", vec![vec![3, 5], vec![4, 5]], |x| {
            cross_entropy(&x[0], &x[1], &labels(&x[0]), &cross_entropy::Options::default()).map(|(loss, _)| loss)
        }),
    ]
}

/// Numbers are near each other, or alike if they are not finite.
fn are_close(found: &[f64], want: &[f64]) -> bool {
    let is_close = |(x, y): (&f64, &f64)| x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= 2e-5 * (1.0 + y.abs());
    found.len() == want.len() && found.iter().zip(want).all(is_close)
}

/// Every set of operands that have an axis of the batch, but for the empty one.
#[test]
fn batches_with_operands_left_whole_are_their_examples() {
    const EXAMPLES: usize = 3;
    for (what, shapes, f) in functions() {
        for mapped in 1..1usize << shapes.len() {
            let is_mapped = |i: usize| mapped & 1 << i != 0;
            let operand = |(i, shape): (usize, &Vec<usize>)| match is_mapped(i) {
                true => array(&[&[EXAMPLES], &shape[..]].concat(), 10 + i),
                false => array(shape, 10 + i),
            };
            let operands: Vec<Array> = shapes.iter().enumerate().map(operand).collect();
            let axes: Vec<Option<isize>> = (0..shapes.len()).map(|i| is_mapped(i).then_some(0)).collect();
            let loss = move |x: &Vec<Array>| f(x).map(|y| (y.square() + &y).sum(..));
            let failed = |e: Error| -> Array { panic!("{what} {axes:?}: {e}") };
            let all = jit(vmap(move |x: &Vec<Array>| f(x)).in_axes([axes.clone()]));
            let slopes = jit(vmap(grad(loss)).in_axes([axes.clone()]));
            let found = doubles(&all(&operands).unwrap_or_else(failed));
            let slopes = slopes(&operands).unwrap_or_else(|e| panic!("{what} {axes:?}: {e}"));
            let slopes: Vec<Vec<f64>> = slopes.iter().map(doubles).collect();
            for example in 0..EXAMPLES {
                let of = |(i, x): (usize, &Array)| if is_mapped(i) { x.index(example as i64) } else { x.clone() };
                let x: Vec<Array> = operands.iter().enumerate().map(of).collect();
                let want = doubles(&f(&x).unwrap_or_else(failed));
                let n = want.len();
                assert!(are_close(&found[example * n..][..n], &want), "{what} {axes:?}, example {example}");
                let want = grad(loss)(&x).unwrap_or_else(|e| panic!("{what} {axes:?}: {e}"));
                for (i, (all, want)) in slopes.iter().zip(&want).enumerate() {
                    let (n, want) = (want.len(), doubles(want));
                    let own = &all[example * n..][..n];
                    assert!(are_close(own, &want), "{what} {axes:?}, example {example}, {i}: {own:?} {want:?}");
                }
            }
        }
    }
}

/// One operand after the other has an odd number in one place; the others are as they are.
#[test]
fn odd_numbers_are_those_of_kernels() {
    for client in clients() {
        for (what, shapes, f) in functions() {
            for (odd, at) in (0..shapes.len()).flat_map(|at| [f32::NAN, 0.0, 1e-20].map(|odd| (odd, at))) {
                let operand = |(i, shape): (usize, &Vec<usize>)| {
                    let mut numbers: Vec<f32> = doubles(&array(shape, 20 + i)).iter().map(|&x| x as f32).collect();
                    if i == at {
                        numbers[1] = odd;
                    }
                    client.array(&numbers, shape).expect("it fits")
                };
                let x: Vec<Array> = shapes.iter().enumerate().map(operand).collect();
                let failed = |e: Error| -> Array { panic!("{what}: {e}") };
                let want = doubles(&f(&x).unwrap_or_else(failed));
                let found = doubles(&jit(move |x: &Vec<Array>| f(x).map(|y| y * 1.0))(&x).unwrap_or_else(failed));
                assert!(are_close(&found, &want), "{what}, {odd} in operand {at}: {found:?} {want:?}");
            }
        }
    }
}

/// Rows that are work for several programs, by operations in a jitted function and by kernels outside of one, and
/// gradients.
#[test]
fn long_rows_are_those_of_kernels() {
    const N: usize = (1 << 17) + 9;
    let functions: [(&str, F); 4] = [
        ("layer norm", |x| layer_norm(&x[0], &x[1], &x[2], 1e-5)),
        ("rms norm", |x| rms_norm(&x[0], &x[1], 1e-5)),
        ("softmax", |x| softmax(&x[0])),
        ("log-softmax", |x| log_softmax(&x[0])),
    ];
    // Relative to the largest number, and the distance of the smallest ones.
    for (dtype, tolerance, least) in [(DType::F32, 2e-5, 0.0), (DType::Bf16, 1e-2, 0.0), (DType::F16, 2e-3, 6e-8)] {
        for (what, f) in functions {
            let wide = [array(&[2, N], 1), array(&[N], 2), array(&[N], 3)];
            let x: Vec<Array> = wide.iter().map(|x| x.cast(dtype)).collect();
            let failed = |e: Error| -> Array { panic!("{what} of {dtype}: {e}") };
            let largest = |x: &[f64]| x.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            let near = |found: &Array, want: &Array| {
                assert_eq!((found.dtype(), found.shape()), (dtype, want.shape()), "{what}");
                let (found, want) = (doubles(found), doubles(want));
                let most = tolerance * largest(&want) + least;
                let far = found.iter().zip(&want).position(|(a, b)| (a - b).is_nan() || (a - b).abs() > most);
                assert_eq!(far, None, "{what} of {dtype}: {:?}", far.map(|i| (found[i], want[i])));
            };
            let found = jit(move |x: &Vec<Array>| f(x))(&x).unwrap_or_else(failed);
            near(&found, &f(&x).unwrap_or_else(failed));
            // By the first operand in f32, of the same numbers.
            let loss = move |x: &Vec<Array>| f(x).map(|y| (y.cast(DType::F32) * &x[1].cast(DType::F32)).sum(..));
            let slopes = jit(grad(loss))(&x).unwrap_or_else(|e| panic!("{what} of {dtype}: {e}"));
            let x: Vec<Array> = x.iter().map(|x| x.cast(DType::F32)).collect();
            let want = jit(grad(loss))(&x).unwrap_or_else(|e| panic!("{what} of {dtype}: {e}"));
            slopes.iter().zip(&want).filter(|(_, want)| largest(&doubles(want)) > 0.0).for_each(|(a, b)| near(a, b));
        }
    }
}

/// Attention whose gradients keep probabilities, in a function that is differentiated, and in kernels that compute
/// scores again: by the result and the log-sum-exp, with rows of which no score is finite.
#[test]
fn gradients_of_attention_with_a_bias_are_those_of_kernels() {
    for client in clients() {
        for ([queries, keys], has_sinks, scale) in
            [([3, 5], false, None), ([5, 3], true, Some(0.3)), ([1, 1], true, None)]
        {
            let shaped = |shape: &[usize], seed: usize| {
                let numbers: Vec<f32> = doubles(&array(shape, seed)).iter().map(|&x| x as f32).collect();
                client.array(&numbers, shape).expect("it fits")
            };
            let (q, out) = ([2, 2, queries, 4], [2, 2, queries, 4]);
            let mut numbers = doubles(&array(&[2, 2, queries, keys], 3));
            // A whole row, a score of another one, and a NaN of the second head.
            numbers[..keys].fill(f64::NEG_INFINITY);
            *numbers.last_mut().expect("it has elements") = f64::NEG_INFINITY;
            numbers[queries * keys] = f64::NAN;
            let numbers: Vec<f32> = numbers.into_iter().map(|x| x as f32).collect();
            let bias = client.array(&numbers, &[2, 2, queries, keys]).expect("it fits");
            let mut x = vec![shaped(&q, 0), shaped(&[2, 2, keys, 4], 1), shaped(&[2, 2, keys, 4], 2), bias];
            x.extend(has_sinks.then(|| shaped(&[2], 4)));
            let (dout, dlse) = (shaped(&out, 5), shaped(&out[..3], 6));
            let of = move |x: &[Array]| -> Result<(Array, Array)> {
                let options = Options { bias: Some(&x[3]), sinks: x.get(4), scale, ..Options::default() };
                flash_attention_with_lse(&x[0], &x[1], &x[2], &options)
            };
            let (by_out, by_lse) = (dout.clone(), dlse.clone());
            let slopes = grad(move |x: &Vec<Array>| {
                let (out, lse) = of(x)?;
                // The log-sum-exp of a row without finite score is -inf.
                let lse = ops::select(&lse.eq(f64::NEG_INFINITY), 0.0, &lse);
                Ok::<_, Error>((out * &by_out).sum(..) + (lse * &by_lse).sum(..))
            });
            let found = slopes(&x).expect("gradients");
            let (out, lse) = of(&x).expect("results");
            let dlse = ops::select(&lse.eq(f64::NEG_INFINITY), 0.0, &dlse);
            let by = Cotangents { out: &dout, lse: Some(&dlse) };
            let options = Options { bias: Some(&x[3]), sinks: x.get(4), scale, ..Options::default() };
            let results = [&out, &lse];
            let all =
                flash_attention_backward_with_bias([&x[0], &x[1], &x[2]], results, by, &options).expect("gradients");
            let mut want = <[Array; 4]>::from(all).to_vec();
            want.extend(x.get(4).map(|sinks| sinks_gradient(results, by, sinks).expect("a gradient")));
            assert_eq!(found.len(), want.len());
            for (i, (found, want)) in found.iter().zip(&want).enumerate() {
                let (found, want) = (doubles(found), doubles(want));
                assert!(are_close(&found, &want), "{queries}x{keys}, operand {i}: {found:?} {want:?}");
            }
        }
    }
}

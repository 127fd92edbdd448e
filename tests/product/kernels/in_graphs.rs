//! Shipped kernels inside of traced functions: equal to calls at once, and differentiable without a rule of the user's.
use super::{Function, functions, given_functions};
use crate::cases::{self, Call, Entry, Extents, Given, entry};
use crate::support::{clients, doubles, values};
use pallas_kernels::cross_entropy::{self, cross_entropy, cross_entropy_backward, cross_entropy_of_logits};
use pallas_kernels::embedding::embedding;
use pallas_kernels::flash_attention::{Options, flash_attention_with_lse};
use pallas_rt::prelude::*;
use pallas_rt::{grad, jit, ops, vmap};
use std::sync::Arc;

fn array(shape: &[usize], seed: usize) -> Array {
    let numbers: Vec<f32> = values(shape.iter().product(), seed).into_iter().map(|x| x as f32).collect();
    Client::cpu().array(&numbers, shape).expect("it fits")
}

fn close(what: &str, found: &Array, want: &Array) {
    assert_eq!((found.shape(), found.dtype()), (want.shape(), want.dtype()), "{what}");
    let [found, want] = [found, want].map(|x| x.to_vec::<f32>().unwrap_or_else(|e| panic!("{what}: {e}")));
    for (x, y) in found.iter().zip(want) {
        assert!((x - y).abs() <= 1e-5 * (1.0 + y.abs()), "{what}: {x} {y}");
    }
}

/// That a function of arrays gives in a trace what it gives at once, and that the gradients of `Σ weights·f` by its
/// first operands are these. The other operands are captured.
fn check(what: &str, f: &Call, Function { operands, call: backward, .. }: &Function) {
    let want = backward(operands).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (weights, args) = operands.split_last().expect("a cotangent");
    let (own, others) = args.split_at(want.len());
    let (f, others, own) = (f.clone(), others.to_vec(), own.to_vec());
    let f = move |own: &Vec<Array>| f(&[&own[..], &others[..]].concat()).map(|mut all| all.swap_remove(0));
    let at_once = f(&own).unwrap_or_else(|e| panic!("{what}: {e}"));
    let of_traced = f.clone();
    let traced = jit(move |own: &Vec<Array>| of_traced(own).map(|y| y * 1.0))(&own);
    close(what, &traced.unwrap_or_else(|e| panic!("{what}: {e}")), &at_once);
    let weights = weights.clone();
    let loss = move |own: &Vec<Array>| f(own).map(|y| (y * &weights).sum(..));
    let found = jit(grad(loss))(&own).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(found.len(), want.len());
    found.iter().zip(&want).for_each(|(found, want)| close(what, found, want));
}

/// Checks the functions of a family that have gradients.
fn check_all(family: &[Entry], extents: &Extents) {
    for entry in family {
        let (value, gradients) = functions(entry, &Client::cpu(), DType::F32, extents);
        if let Some(gradients) = gradients {
            check(entry.name, &value.call, &gradients);
        }
    }
}

#[test]
fn shipped_kernels_are_differentiable_in_traced_functions() {
    check_all(cases::GATES, &[('n', 3), ('d', 5)]);
    check_all(cases::ROWS, &[('n', 3), ('d', 5)]);
    check_all(cases::ROTARY, &[('h', 2), ('n', 3), ('d', 4)]);
    check_all(cases::PRODUCTS, &[('n', 3), ('k', 5), ('m', 4)]);
    check_all(cases::TABLES, &[('n', 4), ('v', 3), ('d', 4)]);
    check_all(cases::LOSSES, &[('n', 3), ('v', 5), ('d', 4)]);
}

#[test]
fn shipped_attention_is_differentiable_in_traced_functions() {
    let extents = [('b', 1), ('h', 2), ('g', 1), ('s', 5), ('l', 7), ('d', 4), ('y', 1), ('z', 2), ('w', 3)];
    check_all(cases::ATTENTION, &extents);
    let square = [('b', 1), ('h', 1), ('g', 1), ('s', 6), ('l', 6), ('d', 4), ('w', 2)];
    check_all(cases::MASKS, &square);
    check_all(cases::CAPPED_MASKS, &square);
}

/// Attention of a few positions is operations in a traced function, and a kernel at once.
#[test]
fn small_attention_of_traced_functions_is_that_of_kernels() {
    for [b, h, s, l, d] in [
        [2, 3, 1, 4, 8],
        [1, 2, 5, 9, 4],
        [2, 2, 17, 17, 16],
        [1, 2, 128, 128, 8],
        [1, 2, 129, 129, 8],
        [2, 1, 1, 300, 8],
    ] {
        let extents = [('b', b), ('h', h), ('g', h), ('s', s), ('l', l), ('d', d)];
        let of = |name: &str| functions(entry(name), &Client::cpu(), DType::F32, &extents);
        for name in ["attention", "attention causal", "attention causal from the end"] {
            check_all(std::slice::from_ref(entry(name)), &extents);
        }
        let what = format!("{extents:?}");
        let (Function { operands: x, call, .. }, gradients) = of("attention");
        // Of the first query all scores are -inf.
        let mut infinite = x.clone();
        infinite[0] = x[0].at((.., .., 0)).set(0.0).at((.., .., 0, 0)).set(f32::NEG_INFINITY);
        infinite[1] = x[1].at((.., .., .., 0)).set(1.0);
        let at_once = call(&infinite).expect("it runs").swap_remove(0);
        let traced = jit(move |x: &Vec<Array>| call(x).map(|y| &y[0] * 1.0))(&infinite).expect("it runs");
        close(&what, &traced, &at_once);
        if s == 1 && l <= 256 {
            check(&what, &of("decode").0.call, &gradients.expect("attention has gradients"));
        }
    }
}

#[test]
fn shipped_losses_are_differentiable_in_traced_functions() {
    let cpu = Client::cpu();
    fn labels() -> Array {
        Client::cpu().array(&[2i32, 0, -100], &[3]).expect("it fits")
    }
    fn options() -> cross_entropy::Options {
        cross_entropy::Options::default()
    }
    // Labels of another shape than the rows in front of them: as many as there are.
    fn other() -> Array {
        Client::cpu().array(&[2i32, 0, -100], &[1, 3]).expect("it fits")
    }
    let call: Call = Arc::new(|x| Ok(vec![cross_entropy(&x[0], &x[1], &other(), &options())?.0]));
    let gradients: Call = Arc::new(|x| {
        let lse = cross_entropy(&x[0], &x[1], &other(), &options())?.1;
        Ok(<[Array; 2]>::from(cross_entropy_backward(&x[0], &x[1], &other(), &lse, &x[2], &options())?).into())
    });
    let what = "cross-entropy, labels [1, 3] of rows [3, 1]";
    let mut operands = vec![array(&[3, 1, 4], 1), array(&[5, 4], 2)];
    operands.push(array(call(&operands).expect("it runs")[0].shape(), 99));
    check(what, &call, &Function { name: what.to_string(), operands, call: gradients });
    let mut given = Given::new(&cpu, DType::F32, &[('n', 3), ('v', 5), ('d', 4)], values);
    given.labels = |n, _| vec![2, 0, -100][..n].to_vec();
    for entry in ["cross-entropy", "cross-entropy of logits"].map(entry) {
        let (value, gradients) = given_functions(entry, &given);
        check(entry.name, &value.call, &gradients.expect("losses have gradients"));
    }
    let by_lse = grad(move |x: &Array| Ok::<_, Error>(cross_entropy_of_logits(x, &labels(), &options())?.1.sum(..)));
    let error = by_lse(&array(&[3, 5], 1)).expect_err("the kernels have no gradient for it").to_string();
    assert!(error.contains("the gradient of kernel `cross_entropy_lse`"), "{error}");
    // Labels that the function computes.
    let traced =
        jit(move |x: &Array, labels: &Array| cross_entropy_of_logits(x, labels, &options()).map(|(loss, _)| loss));
    let (loss, _) = cross_entropy_of_logits(&array(&[3, 5], 1), &labels(), &options()).expect("it runs");
    close("labels", &traced(&array(&[3, 5], 1), &labels()).expect("it runs"), &loss);
    // A label that is no class is not known to be one before: its row has a loss of NaN, others have theirs.
    let wrong = Client::cpu().array(&[5i32, 4, -1], &[3]).expect("it fits");
    let right = Client::cpu().array(&[-100i32, 4, -100], &[3]).expect("it fits");
    let (x, w) = (array(&[3, 4], 1), array(&[5, 4], 2));
    let of_rows = jit(move |x: &Array, w: &Array, labels: &Array| cross_entropy(x, w, labels, &options()).map(|y| y.0));
    let of_logits = traced(&array(&[3, 5], 1), &wrong).expect("it runs");
    let of_right = cross_entropy(&x, &w, &right, &options()).expect("it runs").0;
    for client in clients() {
        let [x, w, wrong] = [&x, &w, &wrong].map(|x| x.to_device(&client).expect("it has room"));
        let found = doubles(&of_rows(&x, &w, &wrong).expect("it runs"));
        assert!(found[0].is_nan() && found[2].is_nan(), "{found:?}");
        assert!((found[1] - doubles(&of_right)[1]).abs() < 1e-5);
    }
    assert_eq!(doubles(&of_logits).iter().map(|x| x.is_nan()).collect::<Vec<_>>(), [true, false, true]);

    fn ids() -> Array {
        Client::cpu().array(&[2i32, 0, 2, 1], &[4]).expect("it fits")
    }
    let traced = jit(|table: &Array, ids: &Array| embedding(table, ids));
    let table = array(&[3, 4], 1);
    close("ids", &traced(&table, &ids()).expect("it runs"), &embedding(&table, &ids()).expect("it runs"));
    for client in clients() {
        let wrong = client.array(&[3i32, 1, -1, i32::MAX], &[4]).expect("it fits");
        let found = doubles(&traced(&table.to_device(&client).expect("it has room"), &wrong).expect("it runs"));
        let want = doubles(&table);
        for (i, row) in found.chunks(4).enumerate() {
            assert!(if i == 1 { row == &want[4..8] } else { row.iter().all(|x| x.is_nan()) }, "{row:?}");
        }
    }
    let by_table = jit(grad(|table: &Array, ids: &Array| embedding(table, ids).map(|y| y.sum(..))));
    for client in clients() {
        let [table, ids] = [&table, &ids()].map(|x| x.to_device(&client).expect("it has room"));
        match by_table(&table, &ids) {
            Ok(found) => assert_eq!(doubles(&found), [1.0, 1.0, 2.0].map(|n| [n; 4]).concat()),
            Err(error) => {
                let error = error.to_string();
                assert!(
                    error.contains("the gradient of kernel `embedding_") && error.contains("in_graphs.rs"),
                    "{error}"
                );
                assert!(client.target().cores.is_none(), "{error}");
            }
        }
    }
}

/// Attention by plain operations, of arrays of any float type: queries, keys, values, then a bias and sinks if there
/// are any. The elements of the result, then those of the log-sum-exp.
fn plain_attention(x: &[Array], bias: bool, sinks: bool) -> Result<Array> {
    let heads = x[0].shape()[1] / x[1].shape()[1];
    let (keys, values) = (x[1].repeat(heads, 1), x[2].repeat(heads, 1));
    let mut scores = ops::einsum("bhsd,bhld->bhsl", &[&x[0], &keys]) * 0.5;
    if bias {
        scores = scores + &x[3];
    }
    let p = scores.exp();
    let mut total = p.sum(pallas_rt::keep(-1));
    if sinks {
        total = total + x[x.len() - 1].exp().reshape(&[1, x[0].shape()[1], 1, 1]);
    }
    let lse = total.log().ravel();
    Ok(ops::concatenate(&[&ops::einsum("bhsl,bhld->bhsd", &[&(p / total), &values]).ravel(), &lse], 0))
}

fn attention(x: &[Array], bias: bool, sinks: bool) -> Result<Array> {
    let options = Options {
        scale: Some(0.5),
        bias: bias.then(|| &x[3]),
        sinks: sinks.then(|| &x[x.len() - 1]),
        ..Options::default()
    };
    let (out, lse) = flash_attention_with_lse(&x[0], &x[1], &x[2], &options)?;
    Ok(ops::concatenate(&[&out.ravel(), &lse.ravel()], 0))
}

/// The gradient of `Σ weights·f` in float64, element by element, as differences.
fn differences(f: impl Fn(&[Array]) -> Result<Array>, x: &[Array], weights: &[f64]) -> Vec<Vec<f64>> {
    let client = Client::cpu();
    let wide: Vec<Array> = x.iter().map(|x| client.array(&doubles(x), x.shape()).expect("it fits")).collect();
    let loss = |at: usize, i: usize, by: f64| -> f64 {
        let mut moved = wide.clone();
        let mut numbers = doubles(&wide[at]);
        numbers[i] += by;
        moved[at] = client.array(&numbers, x[at].shape()).expect("it fits");
        doubles(&f(&moved).expect("it runs")).iter().zip(weights).map(|(y, w)| y * w).sum()
    };
    let h = 1e-5;
    let slopes = |at: usize| (0..x[at].len()).map(|i| (loss(at, i, h) - loss(at, i, -h)) / (2.0 * h)).collect();
    (0..x.len()).map(slopes).collect()
}

#[test]
fn attention_has_gradients_by_bias_and_sinks_of_result_and_sum() {
    let (batch, heads) = (2, 2);
    let operands = || vec![array(&[batch, heads, 3, 4], 1), array(&[batch, 1, 5, 4], 2), array(&[batch, 1, 5, 4], 3)];
    let biases = [[batch, heads], [1, heads], [batch, 1], [1, 1]].map(Some);
    let none = [(None, true), (None, false)];
    for (bias, sinks) in biases.into_iter().flat_map(|bias| [(bias, true), (bias, false)]).chain(none) {
        let mut x = operands();
        x.extend(bias.map(|[b, h]| array(&[b, h, 3, 5], 4)));
        x.extend(sinks.then(|| array(&[heads], 5)));
        let (what, has) = (format!("bias {bias:?}, sinks {sinks}"), bias.is_some());
        let weights = array(&[batch * heads * 3 * (4 + 1)], 99);
        let want = differences(|x| plain_attention(x, has, sinks), &x, &doubles(&weights));
        let own = weights.clone();
        let loss = move |x: &Vec<Array>| attention(x, has, sinks).map(|y| (y * &own).sum(..));
        let found = jit(grad(loss.clone()))(&x).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(found.len(), want.len());
        for (i, (found, want)) in found.iter().zip(&want).enumerate() {
            assert_eq!(found.shape(), x[i].shape(), "{what}");
            for (found, want) in doubles(found).iter().zip(want) {
                assert!((found - want).abs() <= 1e-5, "{what}, operand {i}: {found}, not {want}");
            }
        }
        // Of three examples at once.
        let more: Vec<Vec<Array>> = [1.0, 0.5, -1.5].iter().map(|&by| x.iter().map(|x| x * by).collect()).collect();
        let stacked: Vec<Array> =
            (0..x.len()).map(|i| ops::stack(&more.iter().map(|x| &x[i]).collect::<Vec<_>>(), 0)).collect();
        let all = jit(vmap(grad(loss.clone())))(&stacked).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (example, x) in more.iter().enumerate() {
            let want = grad(loss.clone())(x).unwrap_or_else(|e| panic!("{what}: {e}"));
            for (all, want) in all.iter().zip(&want) {
                let n = want.len();
                let of_all = &doubles(all)[example * n..][..n];
                let is_close = of_all.iter().zip(doubles(want)).all(|(x, y)| (x - y).abs() <= 1e-5);
                assert!(is_close, "{what}, example {example}: {of_all:?}, not {want:?}");
            }
        }
    }
}

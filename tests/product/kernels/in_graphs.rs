//! Shipped kernels inside of traced functions: equal to calls at once, and differentiable without a rule of the user's.
use crate::support::{clients, doubles, values};
use pallas_kernels::cross_entropy::{
    self, cross_entropy, cross_entropy_backward, cross_entropy_of_logits, cross_entropy_of_logits_backward,
};
use pallas_kernels::decode_attention::{self, decode_attention};
use pallas_kernels::embedding::{embedding, embedding_backward};
use pallas_kernels::flash_attention::{Causal, Options, flash_attention, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::flash_attention_backward;
use pallas_kernels::gated::{Gate, gated, gated_backward};
use pallas_kernels::matmul::matmul;
use pallas_kernels::norm::{layer_norm, rms_norm};
use pallas_kernels::norm_backward::{layer_norm_backward, rms_norm_backward};
use pallas_kernels::rotary::{Pairs, rotary, rotary_backward, tables};
use pallas_kernels::softmax::{log_softmax, softmax};
use pallas_kernels::softmax_backward::{log_softmax_backward, softmax_backward};
use pallas_kernels::splash_attention::{self, splash_attention, splash_attention_backward, splash_attention_with_lse};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::prelude::*;
use pallas_rt::{grad, jit, ops, vmap};

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

/// That a function of arrays gives in a trace what it gives at once, and that the gradient of `Σ weights·f` is this one.
fn check(
    what: &str,
    args: &[Array],
    f: fn(&[Array]) -> Result<Array>,
    backward: fn(&[Array], &Array) -> Result<Vec<Array>>,
) {
    let args = args.to_vec();
    let at_once = f(&args).unwrap_or_else(|e| panic!("{what}: {e}"));
    let traced = jit(move |args: &Vec<Array>| f(args).map(|y| y * 1.0))(&args);
    close(what, &traced.unwrap_or_else(|e| panic!("{what}: {e}")), &at_once);
    let weights = array(at_once.shape(), 99);
    let loss = {
        let weights = weights.clone();
        move |args: &Vec<Array>| f(args).map(|y| (y * &weights).sum(..))
    };
    let found = jit(grad(loss))(&args).unwrap_or_else(|e| panic!("{what}: {e}"));
    let want = backward(&args, &weights).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(found.len(), want.len());
    found.iter().zip(&want).for_each(|(found, want)| close(what, found, want));
}

#[test]
fn shipped_kernels_are_differentiable_in_traced_functions() {
    let x = || array(&[3, 5], 1);
    check(
        "gated",
        &[x(), array(&[3, 5], 2)],
        |x| gated(&x[0], &x[1], Gate::Gelu),
        |x, dy| Ok(<[Array; 2]>::from(gated_backward(&x[0], &x[1], dy, Gate::Gelu)?).into()),
    );
    let parameters = [x(), array(&[5], 2), array(&[5], 3)];
    check(
        "layer norm",
        &parameters,
        |x| layer_norm(&x[0], &x[1], &x[2], 1e-5),
        |x, dy| Ok(<[Array; 3]>::from(layer_norm_backward(&x[0], &x[1], dy, 1e-5)?).into()),
    );
    check(
        "rms norm",
        &parameters[..2],
        |x| rms_norm(&x[0], &x[1], 1e-5),
        |x, dy| Ok(<[Array; 2]>::from(rms_norm_backward(&x[0], &x[1], dy, 1e-5)?).into()),
    );
    check("softmax", &[x()], |x| softmax(&x[0]), |x, dy| Ok(vec![softmax_backward(&softmax(&x[0])?, dy)?]));
    check(
        "log softmax",
        &[x()],
        |x| log_softmax(&x[0]),
        |x, dy| Ok(vec![log_softmax_backward(&log_softmax(&x[0])?, dy)?]),
    );
    fn turned(x: &Array, back: bool) -> Result<Array> {
        let (cos, sin) = tables(x.client(), 0, 3, 4, 100.0)?;
        if back { rotary_backward(x, &cos, &sin, Pairs::Halves) } else { rotary(x, &cos, &sin, Pairs::Halves) }
    }
    check("rotary", &[array(&[2, 3, 4], 1)], |x| turned(&x[0], false), |_, dy| Ok(vec![turned(dy, true)?]));
    check(
        "matmul",
        &[x(), array(&[5, 4], 2)],
        |x| matmul(&x[0], &x[1]),
        |x, dc| Ok(vec![dc.matmul(&x[1].t()), x[0].t().matmul(dc)]),
    );
}

#[test]
fn shipped_attention_is_differentiable_in_traced_functions() {
    let operands = [array(&[1, 2, 5, 4], 1), array(&[1, 1, 7, 4], 2), array(&[1, 1, 7, 4], 3)];
    check(
        "flash attention",
        &operands,
        |x| flash_attention(&x[0], &x[1], &x[2], &Options::default()),
        |x, dy| {
            let (out, lse) = flash_attention_with_lse(&x[0], &x[1], &x[2], &Options::default())?;
            let operands = [&x[0], &x[1], &x[2]];
            Ok(<[Array; 3]>::from(flash_attention_backward(operands, [&out, &lse], dy, &Options::default())?).into())
        },
    );
    fn masks() -> Result<MaskInfo> {
        MaskInfo::new(&Client::cpu(), &[Mask::causal()], [6, 6])
    }
    let square = [1, 2, 3].map(|seed| array(&[1, 1, 6, 4], seed));
    fn options() -> splash_attention::Options {
        splash_attention::Options::default()
    }
    check(
        "splash attention",
        &square,
        |x| splash_attention(&x[0], &x[1], &x[2], &masks()?, &options()),
        |x, dy| {
            let operands = [&x[0], &x[1], &x[2]];
            let (out, lse) = splash_attention_with_lse(operands[0], operands[1], operands[2], &masks()?, &options())?;
            Ok(<[Array; 3]>::from(splash_attention_backward(operands, [&out, &lse], dy, &masks()?, &options())?).into())
        },
    );
}

/// Attention of a few positions is operations in a traced function, and a kernel at once.
#[test]
fn small_attention_of_traced_functions_is_that_of_kernels() {
    fn attend(x: &[Array], causal: Causal) -> Result<Array> {
        flash_attention(&x[0], &x[1], &x[2], &Options { causal, ..Options::default() })
    }
    fn gradients(x: &[Array], dy: &Array, causal: Causal) -> Result<Vec<Array>> {
        let (operands, options) = ([&x[0], &x[1], &x[2]], Options { causal, ..Options::default() });
        let (out, lse) = flash_attention_with_lse(operands[0], operands[1], operands[2], &options)?;
        Ok(<[Array; 3]>::from(flash_attention_backward(operands, [&out, &lse], dy, &options)?).into())
    }
    for [batch, heads, queries, keys, d] in [
        [2, 3, 1, 4, 8],
        [1, 2, 5, 9, 4],
        [2, 2, 17, 17, 16],
        [1, 2, 128, 128, 8],
        [1, 2, 129, 129, 8],
        [2, 1, 1, 300, 8],
    ] {
        let x: Vec<Array> =
            [queries, keys, keys].iter().zip(1..).map(|(&n, seed)| array(&[batch, heads, n, d], seed)).collect();
        let what = format!("{batch}x{heads}x{queries}x{keys}x{d}");
        check(&what, &x, |x| attend(x, Causal::No), |x, dy| gradients(x, dy, Causal::No));
        check(&what, &x, |x| attend(x, Causal::FromStart), |x, dy| gradients(x, dy, Causal::FromStart));
        check(&what, &x, |x| attend(x, Causal::FromEnd), |x, dy| gradients(x, dy, Causal::FromEnd));
        let decode = |x: &[Array]| decode_attention(&x[0], &x[1], &x[2], &decode_attention::Options::default());
        // Of the first query all scores are -inf.
        let mut infinite = x.clone();
        infinite[0] = x[0].at((.., .., 0)).set(0.0).at((.., .., 0, 0)).set(f32::NEG_INFINITY);
        infinite[1] = x[1].at((.., .., .., 0)).set(1.0);
        let at_once = attend(&infinite, Causal::No).expect("it runs");
        let traced = jit(|x: &Vec<Array>| attend(x, Causal::No).map(|y| y * 1.0))(&infinite).expect("it runs");
        close(&what, &traced, &at_once);
        if queries == 1 && keys <= 256 {
            check(&what, &x, decode, |x, dy| gradients(x, dy, Causal::No));
        }
    }
}

#[test]
fn shipped_losses_are_differentiable_in_traced_functions() {
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
    check(
        "cross-entropy, labels [1, 3] of rows [3, 1]",
        &[array(&[3, 1, 4], 1), array(&[5, 4], 2)],
        |x| Ok(cross_entropy(&x[0], &x[1], &other(), &options())?.0),
        |x, dy| {
            let lse = cross_entropy(&x[0], &x[1], &other(), &options())?.1;
            Ok(<[Array; 2]>::from(cross_entropy_backward(&x[0], &x[1], &other(), &lse, dy, &options())?).into())
        },
    );
    check(
        "cross-entropy",
        &[array(&[3, 4], 1), array(&[5, 4], 2)],
        |x| Ok(cross_entropy(&x[0], &x[1], &labels(), &options())?.0),
        |x, dy| {
            let (_, lse) = cross_entropy(&x[0], &x[1], &labels(), &options())?;
            Ok(<[Array; 2]>::from(cross_entropy_backward(&x[0], &x[1], &labels(), &lse, dy, &options())?).into())
        },
    );
    check(
        "cross-entropy of logits",
        &[array(&[3, 5], 1)],
        |x| Ok(cross_entropy_of_logits(&x[0], &labels(), &options())?.0),
        |x, dy| {
            let (_, lse) = cross_entropy_of_logits(&x[0], &labels(), &options())?;
            Ok(vec![cross_entropy_of_logits_backward(&x[0], &labels(), &lse, dy, &options())?])
        },
    );
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
    check(
        "embedding",
        &[array(&[3, 4], 1)],
        |x| embedding(&x[0], &ids()),
        |_, dy| Ok(vec![embedding_backward(dy, &ids(), 3, None)?]),
    );
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

/// Attention by plain operations, of arrays of any float type: queries, keys, values, then a bias and sinks if there are any.
/// The elements of the result, then those of the log-sum-exp.
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

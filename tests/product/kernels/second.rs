//! Gradients of gradients through shipped functions, against differences of gradients.
use super::inlined::array;
use crate::support::doubles;
use pallas_kernels::cross_entropy::{self, cross_entropy, cross_entropy_of_logits};
use pallas_kernels::embedding::embedding;
use pallas_kernels::flash_attention::{Causal, Dropout, Options, flash_attention_with_lse};
use pallas_kernels::gated::{Gate, gated};
use pallas_kernels::matmul::matmul;
use pallas_kernels::norm::{layer_norm, rms_norm};
use pallas_kernels::rotary::{Pairs, rotary, tables};
use pallas_kernels::softmax::{log_softmax, softmax};
use pallas_kernels::splash_attention::{self, splash_attention};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::prelude::*;
use pallas_rt::{grad, jit, ops, scan, vmap};

type F = fn(&[Array]) -> Result<Array>;

/// `Σ v·∇(Σ f²)`: what the cotangents of `f` depend on its results.
fn slope(f: F) -> impl Fn(&Vec<Array>) -> Result<Array> + Clone + Send + Sync + 'static {
    move |x: &Vec<Array>| {
        let gradients = grad(move |x: &Vec<Array>| f(x).map(|y| y.square().sum(..)))(x)?;
        let along = gradients.iter().enumerate().map(|(i, g)| {
            let v = array(g.shape(), 50 + i).to_device(x[0].client())?;
            Ok((g * v).sum(..))
        });
        let along: Vec<Array> = along.collect::<Result<_>>()?;
        Ok(along.into_iter().reduce(|a, b| a + b).expect("there are arguments"))
    }
}

/// Checks that the gradient of a gradient is its slope by each element.
fn check(what: &str, args: &[Array], f: F) {
    let failed = |e: Error| -> ! { panic!("{what}: {e}") };
    let (at_once, second) = (jit(slope(f)), jit(grad(slope(f))));
    let x = args.to_vec();
    let found = second(&x).unwrap_or_else(|e| failed(e));
    let step = 1.0 / 128.0;
    for (at, found) in found.iter().enumerate() {
        let found = doubles(found);
        for (i, found) in found.iter().enumerate() {
            let moved = |by: f64| {
                let mut numbers = doubles(&x[at]);
                numbers[i] += by;
                let numbers: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
                let mut x = x.clone();
                x[at] = Client::cpu().array(&numbers, x[at].shape()).expect("it fits");
                doubles(&at_once(&x).unwrap_or_else(|e| failed(e)))[0]
            };
            let want = (moved(step) - moved(-step)) / (2.0 * step);
            assert!(
                (found - want).abs() <= 3e-3 * (1.0 + want.abs()),
                "{what}, {i} of {at}: {found}, its slope is {want}"
            );
        }
        assert!(found.iter().any(|x| x.abs() > 1e-2), "{what}, argument {at} has none");
    }
    let interpreted: Vec<Array> = x.iter().map(|x| x.to_device(&Client::interpreter()).expect("it has room")).collect();
    let alike = second(&interpreted).unwrap_or_else(|e| failed(e));
    for (a, b) in found.iter().zip(&alike) {
        let is_close = doubles(a).iter().zip(doubles(b)).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()));
        assert!(is_close, "{what}: {a:?}, the interpreter {b:?}");
    }
    // Of two examples at once.
    let two: Vec<Array> = x.iter().map(|x| ops::stack(&[x, &(x * 0.5)], 0)).collect();
    let halves: Vec<Array> = x.iter().map(|x| x * 0.5).collect();
    let all = jit(vmap(grad(slope(f))))(&two).unwrap_or_else(|e| failed(e));
    for (all, each) in all.iter().zip(found.iter().zip(&second(&halves).unwrap_or_else(|e| failed(e)))) {
        let want = [doubles(each.0), doubles(each.1)].concat();
        let is_close = doubles(all).iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()));
        assert!(is_close, "{what} in a batch: {all:?}, not {want:?}");
    }
}

#[test]
fn of_rows_and_products() {
    let x = || array(&[3, 5], 1);
    let parameters = [x(), array(&[5], 2), array(&[5], 3)];
    check("softmax", &[x()], |x| softmax(&x[0]));
    check("log softmax", &[x()], |x| log_softmax(&x[0]));
    check("layer norm", &parameters, |x| layer_norm(&x[0], &x[1], &x[2], 1e-2));
    check("rms norm", &parameters[..2], |x| rms_norm(&x[0], &x[1], 1e-2));
    check("gated", &[x(), array(&[3, 5], 2)], |x| gated(&x[0], &x[1], Gate::Gelu));
    check("matmul", &[x(), array(&[5, 4], 2)], |x| matmul(&x[0], &x[1]));
    check("rotary", &[array(&[2, 3, 4], 1)], |x| {
        let (cos, sin) = tables(x[0].client(), 0, 3, 4, 100.0)?;
        rotary(&x[0], &cos, &sin, Pairs::Halves)
    });
    check("embedding", &[array(&[3, 4], 1)], |x| embedding(&x[0], &x[0].client().array(&[2i32, 0, 2, 1], &[4])?));
}

#[test]
fn of_losses() {
    fn labels(x: &Array) -> Result<Array> {
        x.client().array(&[2i32, 0, -100], &[3])
    }
    check("cross-entropy", &[array(&[3, 4], 1), array(&[5, 4], 2)], |x| {
        let options = cross_entropy::Options { smoothing: 0.1, z_loss: 0.01, ..cross_entropy::Options::default() };
        Ok(cross_entropy(&x[0], &x[1], &labels(&x[0])?, &options)?.0)
    });
    check("cross-entropy of logits", &[array(&[3, 5], 1)], |x| {
        Ok(cross_entropy_of_logits(&x[0], &labels(&x[0])?, &cross_entropy::Options::default())?.0)
    });
}

#[test]
fn of_attention() {
    fn both((out, lse): (Array, Array)) -> Array {
        ops::concatenate(&[&out.ravel(), &lse.ravel()], 0)
    }
    let shared = [array(&[1, 2, 5, 4], 1), array(&[1, 1, 7, 4], 2), array(&[1, 1, 7, 4], 3)];
    check("flash attention of groups", &shared, |x| {
        flash_attention_with_lse(&x[0], &x[1], &x[2], &Options::default()).map(both)
    });
    let own = [array(&[1, 2, 5, 4], 1), array(&[1, 2, 5, 4], 2), array(&[1, 2, 5, 4], 3)];
    check("causal flash attention", &own, |x| {
        let options = Options { causal: Causal::FromStart, soft_cap: Some(1.5), ..Options::default() };
        flash_attention_with_lse(&x[0], &x[1], &x[2], &options).map(both)
    });
    check("flash attention of equal operands", &own[..1], |x| {
        flash_attention_with_lse(&x[0], &x[0], &x[0], &Options::default()).map(both)
    });
    let biased = [&own[..], &[array(&[1, 2, 5, 5], 4), array(&[2], 5)]].concat();
    check("flash attention that keeps probabilities", &biased, |x| {
        let options = Options { bias: Some(&x[3]), sinks: Some(&x[4]), ..Options::default() };
        flash_attention_with_lse(&x[0], &x[1], &x[2], &options).map(both)
    });
    let every = [&own[..], &[array(&[1, 1, 5, 5], 4), array(&[2], 5)]].concat();
    check("flash attention with all options", &every, |x| {
        let options = Options {
            causal: Causal::FromEnd,
            soft_cap: Some(1.5),
            bias: Some(&x[3]),
            sinks: Some(&x[4]),
            dropout: Some(Dropout { rate: 0.25, seed: 7.into() }),
            ..Options::default()
        };
        flash_attention_with_lse(&x[0], &x[1], &x[2], &options).map(both)
    });
    let square = [1, 2, 3].map(|seed| array(&[1, 1, 6, 4], seed));
    check("splash attention", &square, |x| {
        let masks = MaskInfo::new(x[0].client(), &[Mask::causal()], [6, 6])?;
        splash_attention(&x[0], &x[1], &x[2], &masks, &splash_attention::Options::default())
    });
}

#[test]
fn through_a_scan() {
    check("layers", &[array(&[3, 5], 1), array(&[2, 5], 2)], |x| {
        let layer = |h: &Array, gain: &Array| {
            let h = rms_norm(h, gain, 1e-2)?;
            Ok::<_, Error>((softmax(&(&h * 2.0))? + h, ()))
        };
        scan(&x[0], &x[1], layer).map(|(h, ())| h)
    });
}

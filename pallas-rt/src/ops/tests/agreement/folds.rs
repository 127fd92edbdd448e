//! Long folds of every element type against JAX's answers: at once, compiled and in 16 bits. folds.py draws them and
//! says what a line holds. `PALLAS_FOLDS=FILE` reads others.
//!
//! The bound follows from the number of additions, not from the result: `n` of them in f32 are within `n·u·Σ|x|`, and a
//! result of 16 bits is rounded once more.
#![allow(clippy::print_stdout, reason = "how many folds agree")]
use super::values::{Input, input, numbers};
use crate::prelude::*;
use crate::{grad, jit};
use serde::Deserialize;
use std::panic::{AssertUnwindSafe, catch_unwind};

const SAMPLE: &str = include_str!("folds.txt");
/// Elements of running folds that are compared.
const EVERY: i64 = 37;

/// A line of the file; see folds.py.
#[derive(Deserialize)]
struct Fold {
    name: String,
    operand: Input,
    axis: isize,
    result: String,
    steps: u32,
}

fn folded(name: &str, x: &Array, axis: isize) -> Array {
    let some = |x: Array| x.ravel().index(crate::ops::by(.., EVERY));
    match name {
        "sum" => x.sum(axis),
        "mean" => x.mean(axis),
        "var" => x.var(axis),
        "std" => x.std(axis),
        "prod" => x.prod(axis),
        "norm" => x.norm(axis),
        "logsumexp" => x.logsumexp(axis),
        "max" => x.max(axis),
        "min" => x.min(axis),
        "cumsum" => some(x.cumsum(axis)),
        "cumprod" => some(x.cumprod(axis)),
        "softmax" => some(x.softmax(axis)),
        "scaled" => {
            let mut shape = x.shape().to_vec();
            shape.remove(axis as usize);
            let ones = Client::cpu().full(&shape, 1.0f32).expect("it fits").cast(x.dtype());
            let x = x.clone();
            let loss = move |w: &Array| (&x * w.expand_dims(axis)).cast(DType::F32).sum(..);
            grad(loss)(&ones).expect("it has a gradient")
        }
        _ => panic!("no fold `{name}`"),
    }
}

/// Accepted distance of a result from JAX's.
fn bound(fold: &Fold, x: &Array, dtype: DType, want: f64) -> f64 {
    let (unit, least) = match dtype {
        DType::F16 => (2f64.powi(-10), 2f64.powi(-24)),
        DType::Bf16 => (2f64.powi(-7), f64::from(f32::MIN_POSITIVE)),
        DType::F32 => (2f64.powi(-23), f64::from(f32::MIN_POSITIVE)),
        _ => return 0.0,
    };
    let n = x.shape()[fold.axis as usize] as f64;
    let largest = numbers(x).expect("it is there").iter().fold(0.0f64, |a, x| a.max(x.abs()));
    // Additions of f32, by what their terms are at most.
    let terms = match &fold.name[..] {
        "sum" | "cumsum" | "scaled" => n * largest,
        "mean" | "var" | "std" => largest * largest.max(1.0),
        "max" | "min" => 0.0,
        _ => want.abs(),
    };
    // Square roots of small variances multiply their rounding.
    let additions = if fold.name == "std" { n * terms / want.abs().max(1e-3) } else { n * terms };
    // JAX rounds sums of parts of a running sum as well, which may be larger than the sum.
    let rounded = match &fold.name[..] {
        "cumsum" => 2.0 * (want.abs() + largest),
        // Each of its steps rounds there, and the roundings multiply.
        "cumprod" => n * want.abs(),
        // The gradient of a factor is rounded in parts there.
        "scaled" => 4.0 * want.abs(),
        _ => want.abs(),
    };
    additions * 2f64.powi(-24) + f64::from(fold.steps) * unit * rounded + least
}

fn difference(fold: &Fold) -> Option<String> {
    let (x, (name, axis)) = (input(&fold.operand, None), (fold.name.clone(), fold.axis));
    let found = [Ok(folded(&name, &x, axis)), jit(move |x: &Array| folded(&name, x, axis))(&x)];
    let (ty, elements) = fold.result.split_once(']').expect("a type");
    let want: Vec<f64> = elements.split_whitespace().map(|x| x.parse().expect("a number")).collect();
    for (how, found) in ["at once", "compiled"].iter().zip(found) {
        let (shape, own) = match found.and_then(|y| Ok((y.clone(), numbers(&y)?))) {
            Ok(found) => found,
            Err(e) => return Some(format!("{how}: {e}")),
        };
        let extents: Vec<String> = shape.shape().iter().map(usize::to_string).collect();
        let own_ty = format!("{}[{}", shape.dtype(), extents.join(","));
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= bound(fold, &x, shape.dtype(), *b);
        if own_ty != ty || own.len() != want.len() || !own.iter().zip(&want).all(close) {
            return Some(format!("{how}: {own_ty}] {own:?}, expected {}", fold.result));
        }
    }
    None
}

#[test]
fn long_folds_agree_with_jax() {
    let file = std::env::var("PALLAS_FOLDS").ok();
    let text = file.as_ref().map_or(SAMPLE.into(), |path| std::fs::read_to_string(path).expect("a file of folds"));
    let (mut total, mut wrong) = (0, vec![]);
    for line in text.lines() {
        let fold: Fold = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        total += 1;
        let found = catch_unwind(AssertUnwindSafe(|| difference(&fold))).unwrap_or_else(|_| Some("it panicked".into()));
        wrong.extend(found.map(|text| format!("{} of {:?} along {}: {text}", fold.name, fold.operand, fold.axis)));
    }
    wrong.iter().for_each(|text| println!("{text}"));
    println!("long folds: {} of {total} agree", total - wrong.len());
    assert!(total >= 200 && wrong.is_empty(), "{} folds differ", wrong.len());
}

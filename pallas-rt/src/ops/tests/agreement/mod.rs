//! Random programs of operations against JAX's answers: values, gradients and batches. programs.py draws them and says
//! what a line holds.
//!
//! `PALLAS_AGREEMENT=FILE` reads other programs than those of sample.txt.
#![allow(clippy::print_stdout, reason = "the numbers of steps, and how many programs agree")]
mod attributes;
mod composed;
mod folds;
mod loops;
mod moves;
mod nestings;
mod steps;
mod values;

use crate::prelude::*;
use crate::{grad, jit, vmap};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use values::{difference, input, weights};

const SAMPLE: &str = include_str!("sample.txt");
/// Examples of a batch.
const BATCH: usize = 2;
/// Programs that differ from JAX's by design: an operation of theirs, what differs, and the reason; see the numerics
/// page of the guide.
const DIFFERENT: &[(&str, &str, &str)] = &[
    ("x[i, :, j]", "gradients", "the gradient of a position that does not exist goes where it reads; JAX drops it"),
    ("trapezoid", "values", "one point has no area; JAX gives NaN where the point is NaN"),
    (
        "std",
        "gradients",
        "equal elements have a spread of 0, whose slope is NaN; JAX rounds their mean, a spread of 1e-8",
    ),
    ("digitize", "batch", "edges that end in NaN rise; JAX takes them for falling ones"),
    ("corrcoef", "", "the spread of equal elements is 0 or the rounding of their mean"),
    ("logaddexp", "gradients", "a number beside an infinity has a slope of 0; JAX takes the infinity for 0"),
    ("lax.cumlogsumexp", "gradients", "two infinities share the slope; each has its own in JAX"),
    ("median", "gradients", "of equal elements a stable sort takes one; JAX's another"),
    ("flatnonzero", "values", "positions in an empty array are the fill; 0 in JAX"),
    ("linalg.norm", "values", "squares of 16-bit floats are added in f32; JAX's overflow"),
    ("x.at[i].multiply", "values", "an operand is rounded to f16 first; XLA may leave that out"),
    ("nn.relu", "gradients", "the slope at NaN is 1; 0 in JAX"),
    ("nn.relu6", "gradients", "the slope at NaN is 1; 0 in JAX"),
];

/// A line of the file; see programs.py.
#[derive(Deserialize)]
struct Program {
    inputs: Vec<values::Input>,
    steps: Vec<(String, Vec<usize>, attributes::Attributes)>,
    results: Vec<usize>,
    values: Vec<String>,
    gradients: Option<Vec<String>>,
    batched: Option<Vec<usize>>,
    batch: Option<Vec<String>>,
}

/// The results of a program.
fn run(program: &Program, inputs: &[Array]) -> Vec<Array> {
    let mut values = inputs.to_vec();
    for (name, operands, attributes) in &program.steps {
        let operands: Vec<Array> = operands.iter().map(|&i| values[i].clone()).collect();
        values.extend(steps::step(name, &operands, attributes));
    }
    program.results.iter().map(|&i| values[i].clone()).collect()
}

/// The sum that is differentiated.
fn loss(results: &[Array]) -> Array {
    let floats = results.iter().filter(|x| x.dtype().is_float());
    let sums = floats.map(|x| (x.cast(DType::F32) * weights(x.shape())).sum(..));
    sums.reduce(|a, b| a + b).expect("a program with gradients has a floating-point result")
}

/// `all` with other arrays at some places.
fn replaced(all: &[Array], places: &[usize], by: &[Array]) -> Vec<Array> {
    let mut all = all.to_vec();
    places.iter().zip(by).for_each(|(&i, x)| all[i] = x.clone());
    all
}

/// The first difference of a program's answers from JAX's.
fn disagreement(program: &Arc<Program>) -> Option<String> {
    let depth = program.steps.len();
    let inputs: Vec<Array> = program.inputs.iter().map(|text| input(text, None)).collect();
    let compare = |what: &str, found: Result<Vec<Array>>, want: &[String], depth: usize| match found {
        Ok(found) => difference(&found, want, depth, what == "gradients").map(|text| format!("{what}: {text}")),
        Err(e) => Some(format!("{what}: {e}")),
    };
    let own = program.clone();
    let f = jit(move |x: &Vec<Array>| run(&own, x));
    let mut found = compare("values", f(&inputs), &program.values, depth);
    if let (None, Some(want)) = (&found, &program.gradients) {
        let floats: Vec<usize> = (0..inputs.len()).filter(|&i| inputs[i].dtype().is_float()).collect();
        let args: Vec<Array> = floats.iter().map(|&i| inputs[i].clone()).collect();
        let (own, inputs) = (program.clone(), inputs.clone());
        let g = jit(grad(move |x: &Vec<Array>| loss(&run(&own, &replaced(&inputs, &floats, x)))));
        found = compare("gradients", g(&args), want, depth + 8);
    }
    if let (None, Some(which), Some(want)) = (&found, &program.batched, &program.batch) {
        let args: Vec<Array> = which.iter().map(|&i| input(&program.inputs[i], Some(BATCH))).collect();
        let (own, which) = (program.clone(), which.clone());
        let all = move |x: &Vec<Array>| run(&own, &replaced(&inputs, &which, x));
        found = compare("batch", jit(vmap(all).in_axes([Some(0)]))(&args), want, depth);
    }
    found
}

/// The programs of the file that `PALLAS_AGREEMENT` names, else the sample.
fn programs() -> Vec<Arc<Program>> {
    let file = std::env::var("PALLAS_AGREEMENT").ok();
    let text = file.map_or(SAMPLE.into(), |path| std::fs::read_to_string(path).expect("a file of programs"));
    let parsed = |(i, line)| serde_json::from_str(line).unwrap_or_else(|e| panic!("line {}: {e}", i + 1));
    text.lines().enumerate().map(parsed).map(Arc::new).collect()
}

/// Runs every `PARTS`th program of the sample from number `first` on; of a file all if that is 0, else none.
fn check_agreement(first: usize) {
    let is_file = std::env::var_os("PALLAS_AGREEMENT").is_some();
    let programs = programs();
    let is_own = |number: usize| if is_file { first == 0 } else { number % PARTS == first };
    let (mut agreeing, mut total) = (0, 0);
    let (mut wrong, mut by_design) = (vec![], vec![]);
    for (number, program) in programs.iter().enumerate().filter(|(number, _)| is_own(*number)) {
        total += 1;
        let found = catch_unwind(AssertUnwindSafe(|| disagreement(program)));
        let found = found.unwrap_or_else(|_| Some("it panicked".into()));
        let reason = found.as_ref().and_then(|text| {
            let is_in = |op: &str| program.steps.iter().any(|(name, ..)| name == op);
            DIFFERENT.iter().find(|(op, what, _)| text.starts_with(what) && is_in(op))
        });
        match (found, reason) {
            (None, _) => agreeing += 1,
            (Some(text), Some((op, _, reason))) => {
                by_design.push(format!("line {}, {op}, {reason}: {text}", number + 1))
            }
            (Some(text), None) => wrong.push(format!("line {}: {text}\n  {:?}", number + 1, program.steps)),
        }
    }
    by_design.iter().for_each(|text| println!("differs by design: {text}"));
    wrong.iter().for_each(|text| println!("{text}"));
    println!("agreement: {agreeing} of {total}");
    assert!(wrong.is_empty(), "{} programs differ", wrong.len());
    assert!(by_design.len() <= 2.max(total / 100), "{total} programs, {} differ by design", by_design.len());
}

/// Number of tests that share the programs of the sample.
const PARTS: usize = 4;

#[test]
fn random_programs_agree_with_jax_1() {
    check_agreement(0);
}

#[test]
fn random_programs_agree_with_jax_2() {
    check_agreement(1);
}

#[test]
fn random_programs_agree_with_jax_3() {
    check_agreement(2);
}

#[test]
fn random_programs_agree_with_jax_4() {
    check_agreement(3);
}

#[test]
fn every_operation_is_in_programs() {
    let programs = programs();
    let mut counts = BTreeMap::new();
    programs.iter().flat_map(|program| &program.steps).for_each(|(name, ..)| *counts.entry(name).or_insert(0) += 1);
    for (name, n) in &counts {
        println!("{n:5} {name}");
    }
    let fewest = counts.iter().min_by_key(|(_, n)| **n);
    println!("{} operations, the fewest steps: {fewest:?}", counts.len());
    let is_drawn = |name: &&str| {
        // Reductions draw whether axes are kept; folds of another type are those of its elements; of the sample alone,
        // least squares are in no program.
        ["keepdims=", "dtype=", "reverse=", "linalg.lstsq"].contains(name)
            || counts.keys().any(|key| key == name || key.starts_with(&format!("{name} ")))
    };
    let missing: Vec<_> =
        super::surface::operations().into_iter().filter(|names| !names.iter().any(is_drawn)).collect();
    assert!(missing.is_empty(), "no program has these operations: {missing:?}");
    let total = programs.len();
    assert!(total >= 100, "{total} programs");
    assert!(total < 1500 || counts.values().all(|&n| n >= total / 50), "an operation has too few steps");
}

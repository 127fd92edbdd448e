//! Cases with JAX's answers, at once and traced.
use super::cases::function;
use crate::jit;
use crate::prelude::*;
use pallas_ir::Literal;

/// JAX's answers; reference.py makes them.
const REFERENCE: &str = include_str!("reference.txt");
/// Calls that are compiled together.
const TOGETHER: usize = 64;

/// A call and its results.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) operands: Vec<Array>,
    pub(super) results: Vec<Expected>,
}

#[derive(Debug)]
pub(super) struct Expected {
    dtype: DType,
    shape: Vec<usize>,
    elements: Vec<f64>,
}

/// Names of the cases, in their order.
pub(super) fn names() -> Vec<&'static str> {
    REFERENCE.lines().map(|line| line.split(" | ").next().expect("a name")).collect()
}

fn cases() -> Vec<Case> {
    parse(REFERENCE)
}

/// The cases of a file, a line each.
pub(super) fn parse(text: &'static str) -> Vec<Case> {
    let case = |line: &'static str| {
        let [name, operands, results] = line.split(" | ").collect::<Vec<_>>()[..] else { panic!("{line}") };
        let parts = |text: &'static str| text.split(';').map(str::trim).filter(|text| !text.is_empty());
        Case { name, operands: parts(operands).map(operand).collect(), results: parts(results).map(expected).collect() }
    };
    text.lines().map(case).collect()
}

/// Element type and shape of `f32[2,3] ...`, and the rest.
fn head(text: &str) -> (DType, Vec<usize>, &str) {
    let (dtype, rest) = text.split_once('[').expect("a type");
    let (shape, rest) = rest.split_once(']').expect("a shape");
    let shape = shape.split(',').filter(|n| !n.is_empty()).map(|n| n.parse().expect("an extent")).collect();
    (dtype.parse().expect("an element type"), shape, rest.trim())
}

fn elements(text: &str) -> Vec<f64> {
    text.split_whitespace().map(|x| x.parse().expect("a number")).collect()
}

fn expected(text: &str) -> Expected {
    let (dtype, shape, rest) = head(text);
    let elements = elements(rest);
    assert_eq!(elements.len(), shape.iter().product::<usize>(), "{text}");
    Expected { dtype, shape, elements }
}

fn operand(text: &str) -> Array {
    let (dtype, shape, rest) = head(text);
    let count = shape.iter().product::<usize>();
    let elements = match rest.strip_prefix('=') {
        Some(rest) => elements(rest),
        None => {
            let [seed, low, high] = elements(rest.strip_prefix('~').expect("a formula"))[..] else { panic!("{text}") };
            (0..count as u64).map(|i| element(seed as u64, i, [low, high], dtype)).collect()
        }
    };
    assert_eq!(elements.len(), count, "{text}");
    let bytes: Vec<u8> = elements.iter().flat_map(|&x| Literal::new(dtype, x).to_bytes()).collect();
    Client::cpu().array_from_bytes(dtype, &shape, &bytes).expect("it fits")
}

/// Element `i` of an operand; the same formula as in reference.py.
fn element(seed: u64, i: u64, [low, high]: [f64; 2], dtype: DType) -> f64 {
    let z = (i * 2_654_435_761 + seed * 40_503 + 12_345) % (1 << 32);
    let z = ((z ^ (z >> 15)) * 2_246_822_519) % (1 << 32);
    let z = z ^ (z >> 13);
    match dtype {
        DType::Bool => (z & 1) as f64,
        _ if dtype.is_float() => low + (z % 64) as f64 / 64.0 * (high - low),
        _ => low + (z % (high - low + 1.0) as u64) as f64,
    }
}

/// The largest relative difference of elements from JAX's; JAX's own differ by as much from the exact ones.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 8e-3,
        DType::F16 => 1e-3,
        _ if dtype.is_float() => 4e-6,
        _ => 0.0,
    }
}

/// The difference of results from JAX's, if there is one.
pub(super) fn difference(found: &[Array], expected: &[Expected]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} results, expected {}", found.len(), expected.len()));
    }
    found.iter().zip(expected).find_map(|(x, want)| {
        let elements = match x.to_bytes() {
            Ok(bytes) => bytes,
            Err(e) => return Some(e.to_string()),
        };
        let bits = |b: &[u8]| b.iter().rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
        let number = |b: &[u8]| Literal { dtype: x.dtype(), bits: bits(b) }.as_f64();
        let elements: Vec<f64> = elements.chunks(x.dtype().bytes()).map(number).collect();
        let limit = tolerance(want.dtype);
        let is_close =
            |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= limit * (1.0 + b.abs());
        let fits =
            x.dtype() == want.dtype && x.shape() == want.shape && elements.iter().zip(&want.elements).all(is_close);
        let found = || {
            format!(
                "{} {:?} {elements:?}\n      {} {:?} {:?}",
                x.dtype(),
                x.shape(),
                want.dtype,
                want.shape,
                want.elements
            )
        };
        (!fits).then(found)
    })
}

fn report(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} calls differ from JAX:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn functions_are_those_of_jax() {
    let mut wrong = vec![];
    for (i, case) in cases().iter().enumerate() {
        let found = function(case.name)(&case.operands).0;
        wrong.extend(difference(&found, &case.results).map(|text| format!("{}, line {}: {text}", case.name, i + 1)));
    }
    report(&wrong);
}

#[test]
fn traced_functions_are_those_of_jax() {
    report(&traced(&Client::cpu()));
}

/// The interpreter finds elements that are read before they are written, and positions outside of arrays.
#[test]
fn interpreted_functions_are_those_of_jax() {
    report(&traced(&Client::interpreter()));
}

/// Differences of compiled calls on a client from JAX's.
fn traced(client: &Client) -> Vec<String> {
    let mut wrong = vec![];
    let all = cases();
    for (k, cases) in all.chunks(TOGETHER).enumerate() {
        let calls: Vec<_> = cases.iter().map(|case| (function(case.name), case.operands.len())).collect();
        let together = jit(move |operands: &Vec<Array>| {
            let mut rest = &operands[..];
            let mut results = vec![];
            for (function, count) in &calls {
                let (own, others) = rest.split_at(*count);
                results.push(function(own).0);
                rest = others;
            }
            results
        });
        let operands = cases.iter().flat_map(|case| case.operands.clone());
        let operands: Vec<Array> = operands.map(|x| x.to_device(client).expect("it is on the host")).collect();
        let results = together(&operands).unwrap_or_else(|e| panic!("{e}"));
        for (i, (case, found)) in cases.iter().zip(&results).enumerate() {
            let text = difference(found, &case.results);
            wrong.extend(text.map(|text| format!("{}, line {}: {text}", case.name, k * TOGETHER + i + 1)));
        }
    }
    wrong
}

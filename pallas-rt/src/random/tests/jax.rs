//! Each line of `jax.txt`, computed at once and under `jit`.
#![allow(clippy::print_stdout, reason = "how close numbers are")]
use super::key;
use crate::jit;
use crate::ops::Operand;
use crate::prelude::*;
use crate::random::{self, Key};
use pallas_ir::Literal;
use std::collections::BTreeMap;

/// A line of the file.
struct Case<'a> {
    line: &'a str,
    function: &'a str,
    seed: i64,
    dtype: DType,
    shape: Vec<usize>,
    arguments: Vec<&'a str>,
    /// The sum of the bits of all elements, if only the last four are there.
    sum: Option<u64>,
    elements: Vec<u64>,
}

fn cases() -> impl Iterator<Item = Case<'static>> {
    include_str!("jax.txt").lines().map(|line| {
        let (call, elements) = line.split_once(" =").expect("elements");
        let words: Vec<&str> = call.split(' ').collect();
        let [function, seed, dtype, shape] = words[..4] else { panic!("{line}") };
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        let mut elements = elements.split_whitespace().peekable();
        let sum = elements.next_if(|text| text.starts_with("sum:")).map(|text| hex(&text[4..]));
        Case {
            line,
            function,
            seed: seed.parse().expect("a seed"),
            dtype: dtype.parse().expect("an element type"),
            shape: shape.split(',').filter(|n| *n != "-").map(|n| n.parse().expect("an extent")).collect(),
            arguments: words[4..].to_vec(),
            sum,
            elements: elements.map(hex).collect(),
        }
    })
}

/// Distributions with parameters whose numbers are rounded, and those of whole numbers.
const ROUNDED: &[&str] = &[
    "gamma",
    "gamma_array",
    "loggamma",
    "beta",
    "beta_array",
    "chisquare",
    "f",
    "t",
    "lognormal",
    "pareto",
    "rayleigh",
    "weibull_min",
    "triangular",
    "wald",
    "generalized_normal",
    "maxwell",
    "double_sided_maxwell",
    "dirichlet",
    "ball",
    "orthogonal",
    "multivariate_normal",
];
const COUNTED: &[&str] = &["poisson", "poisson_array", "geometric", "binomial", "binomial_array", "multinomial"];

/// The logits of `reference.py`.
fn logits(shape: &[usize], dtype: DType) -> Array {
    let x: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| (i * 37 % 23) as f32 / 8.0).collect();
    Client::cpu().array(&x, shape).expect("it fits").cast(dtype)
}

/// Numbers from 0 on.
fn counted(shape: &[usize], dtype: DType) -> Array {
    let x: Vec<i32> = (0..shape.iter().product::<usize>() as i32).collect();
    Client::cpu().array(&x, shape).expect("it fits").cast(dtype)
}

impl Case<'_> {
    fn number(&self, i: usize) -> f64 {
        self.arguments[i].parse().expect("a number")
    }

    fn float(&self, i: usize) -> Operand {
        self.number(i).into()
    }

    fn int(&self, i: usize) -> i64 {
        self.arguments[i].parse().expect("an integer")
    }

    fn run(&self, key: Key) -> Array {
        let (shape, dtype) = (&self.shape[..], self.dtype);
        let upper = |by: i32| {
            let x: Vec<i32> = (1..6).map(|i| i * by).collect();
            Client::cpu().array(&x, &[5]).expect("it fits")
        };
        self.with_parameters(key.clone()).unwrap_or_else(|| match self.function {
            "key" => key.data().clone(),
            "split" => {
                let keys = random::split_into(key, shape[0]);
                let rows: Vec<Array> = keys.iter().map(|key| key.data().expand_dims(0)).collect();
                // There is no concatenation of arrays: rows are put into their places by sums.
                let place = |i: usize| {
                    let x: Vec<u32> = (0..shape[0]).map(|j| u32::from(i == j)).collect();
                    Client::cpu().array(&x, &[shape[0], 1]).expect("it fits")
                };
                let placed = rows.iter().enumerate().map(|(i, row)| row * place(i));
                placed.reduce(|a, b| a + b).expect("at least one key")
            }
            "split_batch" => random::split_batch(key, &shape[..shape.len() - 1]).data().clone(),
            "fold_in" => random::fold_in(key, self.int(0)).data().clone(),
            "bits" => random::bits(key, shape, dtype),
            "uniform" => random::uniform(key, shape, dtype),
            "uniform_between" => random::uniform_between(key, shape, dtype, self.float(0), self.float(1)),
            "normal" => random::normal(key, shape, dtype),
            "truncated_normal" => random::truncated_normal(key, self.float(0), self.float(1), shape, dtype),
            "exponential" => random::exponential(key, shape, dtype),
            "gumbel" => random::gumbel(key, shape, dtype),
            "laplace" => random::laplace(key, shape, dtype),
            "logistic" => random::logistic(key, shape, dtype),
            "cauchy" => random::cauchy(key, shape, dtype),
            "rademacher" => random::rademacher(key, shape, dtype),
            "bernoulli" => random::bernoulli(key, self.float(0), shape),
            "bernoulli_array" => random::bernoulli(key, logits(&[4, 1], dtype) / 3.0, shape),
            "categorical" => random::categorical(key, &logits(shape, dtype), self.int(0) as isize),
            "randint" => random::randint(key, shape, self.int(0), self.int(1), dtype),
            "randint_array" => {
                let by = if dtype == DType::I32 { 3 } else { 100 };
                random::randint(key, shape, -2, upper(by), dtype)
            }
            "permutation" => random::permutation(key, shape[0]),
            "permuted" => random::permuted(key, &counted(shape, dtype), self.int(0) as isize),
            "shuffled" => random::shuffled(key, &counted(shape, dtype), self.int(0) as isize),
            "choice" => random::choice(key, self.int(0) as usize, shape, self.int(1) != 0),
            "choice_from" => {
                let axis = self.int(1) as isize;
                random::choice_from(key, &counted(&[4, 9, 2], dtype), &[2, 3], self.int(0) != 0, axis)
            }
            "weighted_choice" => {
                let weights = (logits(&[23], DType::F32) + 0.1).cast(dtype);
                random::weighted_choice(key, &weights, shape, self.int(0) != 0)
            }
            other => panic!("no function {other}"),
        })
    }

    /// The numbers of a distribution with parameters; `None` for other functions.
    fn with_parameters(&self, key: Key) -> Option<Array> {
        let (shape, dtype) = (&self.shape[..], self.dtype);
        let a = |i: usize| self.float(i);
        let some = || logits(&[4, 1], dtype) + 0.2;
        let others = |by: usize| &shape[..shape.len() - by];
        Some(match self.function {
            "gamma" => random::gamma(key, a(0), shape, dtype),
            "gamma_array" => random::gamma(key, some(), shape, dtype),
            "loggamma" => random::loggamma(key, a(0), shape, dtype),
            "beta" => random::beta(key, a(0), a(1), shape, dtype),
            "beta_array" => random::beta(key, some(), logits(&[9], dtype) + 0.5, shape, dtype),
            "chisquare" => random::chisquare(key, a(0), shape, dtype),
            "f" => random::f(key, a(0), a(1), shape, dtype),
            "t" => random::t(key, a(0), shape, dtype),
            "lognormal" => random::lognormal(key, a(0), shape, dtype),
            "pareto" => random::pareto(key, a(0), shape, dtype),
            "rayleigh" => random::rayleigh(key, a(0), shape, dtype),
            "weibull_min" => random::weibull_min(key, a(0), a(1), shape, dtype),
            "triangular" => random::triangular(key, a(0), a(1), a(2), shape, dtype),
            "wald" => random::wald(key, a(0), shape, dtype),
            "generalized_normal" => random::generalized_normal(key, a(0), shape, dtype),
            "maxwell" => random::maxwell(key, shape, dtype),
            "double_sided_maxwell" => random::double_sided_maxwell(key, a(0), a(1), shape, dtype),
            "dirichlet" => random::dirichlet(key, &some().ravel(), others(1), dtype),
            "ball" => random::ball(key, shape[shape.len() - 1], self.number(0), others(1), dtype),
            "orthogonal" => random::orthogonal(key, shape[1], shape[2], others(2), dtype),
            "multivariate_normal" => {
                let cov = [2.0f32, 0.5, 0.0, 0.5, 1.0, -0.25, 0.0, -0.25, 0.5];
                let cov = Client::cpu().array(&cov, &[3, 3]).expect("it fits").cast(dtype);
                random::multivariate_normal(key, &logits(&[4, 3], dtype), &cov, others(1), dtype)
            }
            "multinomial" => random::multinomial(key, a(0), &(logits(&[3, 4], dtype) / 10.0), others(1), dtype),
            "binomial" => random::binomial(key, a(0), a(1), shape, dtype),
            "binomial_array" => {
                let trials = counted(&[9], dtype) * 10.0 - 1.0;
                random::binomial(key, trials, some() / 3.0, shape, dtype)
            }
            "poisson" => random::poisson(key, a(0), shape, dtype),
            "poisson_array" => random::poisson(key, logits(&[4, 9], DType::F32) * 10.0, shape, dtype),
            "geometric" => random::geometric(key, a(0), shape, dtype),
            _ => return None,
        })
    }

    /// Largest error that is allowed, in units in the last place.
    fn tolerance(&self) -> u64 {
        match self.function {
            // The last bit of the error function at a bound is many units of numbers beyond it.
            "truncated_normal" if self.dtype == DType::F64 => 64,
            "normal" | "truncated_normal" => 4,
            "exponential" | "gumbel" | "laplace" | "logistic" | "cauchy" => 8,
            _ => 0,
        }
    }

    /// Returns true for two elements that differ by rounding errors of a distribution with parameters, which are small
    /// beside its spread, but not beside each element.
    fn is_near(&self, x: u64, y: u64) -> bool {
        let [x, y] = [x, y].map(|bits| Literal { dtype: self.dtype, bits }.as_f64());
        let limit = if self.dtype == DType::F64 { 1e-13 } else { 1e-5 };
        ROUNDED.contains(&self.function) && (x - y).abs() <= limit * (0.1 + y.abs())
    }

    /// Panics unless an array is this line's; returns the largest distance in units in the last place.
    fn check(&self, x: &Array, how: &str) -> u64 {
        let bytes = x.to_bytes().unwrap_or_else(|e| panic!("{}\n{how}: {e}", self.line));
        let width = x.dtype().bytes();
        let bits = |element: &[u8]| element.iter().rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
        let found: Vec<u64> = bytes.chunks(width).map(bits).collect();
        if let Some(sum) = self.sum {
            let last = &found[found.len() - 4..];
            assert_eq!(last, self.elements, "{}\n{how}", self.line);
            let all = found.iter().fold(0u64, |sum, &bits| sum.wrapping_add(bits));
            assert_eq!(all, sum, "{}\n{how}: other elements", self.line);
            return 0;
        }
        assert_eq!(found.len(), self.elements.len(), "{}\n{how}", self.line);
        let order = |bits: u64| {
            let sign = 1u64 << (8 * width - 1);
            if bits & sign != 0 { -((bits & !sign) as i128) } else { i128::from(bits) }
        };
        let distance = |(i, (&x, &y)): (usize, (&u64, &u64))| {
            let by = (order(x) - order(y)).unsigned_abs() as u64;
            let is_close = by <= self.tolerance() || self.is_near(x, y);
            assert!(is_close, "{}\n{how}: element {i} is {x:x}, by {by} units", self.line);
            by
        };
        found.iter().zip(&self.elements).enumerate().map(distance).max().unwrap_or(0)
    }
}

#[test]
fn numbers_are_those_of_jax() {
    let mut most: BTreeMap<(&str, String), (u64, usize)> = BTreeMap::new();
    for case in cases() {
        let at_once = case.run(key(case.seed));
        let by = case.check(&at_once, "at once");
        let seen = most.entry((case.function, case.dtype.to_string())).or_default();
        *seen = (seen.0.max(by), seen.1 + 1);
    }
    for ((function, dtype), (by, lines)) in &most {
        println!("{function} {dtype}: {lines} lines, at most {by} units in the last place");
    }
    assert!(most.values().map(|(_, lines)| lines).sum::<usize>() > 500);
}

#[test]
fn numbers_are_the_same_under_jit() {
    // Distributions with parameters are several kernels at once, and one under `jit`: the last bits differ.
    let is_long = |case: &Case<'_>| ROUNDED.contains(&case.function) || COUNTED.contains(&case.function);
    let some = cases().filter(|case| !is_long(case));
    for case in some.map(std::sync::Arc::new) {
        let traced = case.clone();
        let jitted = jit(move |key: &Key| traced.run(key.clone()))(&key(case.seed));
        let jitted = jitted.unwrap_or_else(|e| panic!("{}: {e}", case.line));
        let at_once = case.run(key(case.seed));
        assert_eq!(at_once.dtype(), jitted.dtype());
        assert_eq!(at_once.to_bytes().expect("here"), jitted.to_bytes().expect("here"), "{}", case.line);
    }
}

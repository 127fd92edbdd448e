//! Each line of `jax.txt`, computed at once and under `jit`.
#![allow(clippy::print_stdout, reason = "how close numbers are")]
use super::key;
use crate::prelude::*;
use crate::random::{self, Key};
use crate::{Operand, jit};
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
    fn float(&self, i: usize) -> Operand {
        self.arguments[i].parse::<f64>().expect("a number").into()
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
        match self.function {
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
        }
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
            let is_close = by <= self.tolerance();
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
    for case in cases().map(std::sync::Arc::new) {
        let traced = case.clone();
        let jitted = jit(move |key: &Key| traced.run(key.clone()))(&key(case.seed));
        let jitted = jitted.unwrap_or_else(|e| panic!("{}: {e}", case.line));
        let at_once = case.run(key(case.seed));
        assert_eq!(at_once.dtype(), jitted.dtype());
        assert_eq!(at_once.to_bytes().expect("here"), jitted.to_bytes().expect("here"), "{}", case.line);
    }
}

//! `match` of numbers: decided by the host for host numbers, and at run time for run-time numbers.
#![allow(clippy::single_match, reason = "`match` is what is tested")]
use crate::both;
use pallas_rt::prelude::*;

const NINE: i32 = 9;

/// Literals, ranges, alternatives, guards, names and the wildcard; a tile and a scalar are carried.
#[kernel(grid = (1))]
fn matched(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, n: i32) {
    let (mut t, mut hits) = (x.load(), scalar(0));
    let value = match n + 1 {
        0 => scalar(100),
        -3 | -2 => {
            t += 0.5;
            scalar(200)
        }
        1..=3 => n * 10,
        k @ 4..6 if k % 2 == 0 => k * 1000,
        NINE => scalar(900),
        mut k if k > 5 => {
            k += 1;
            hits += k;
            match k {
                7 => scalar(7),
                8.. => k * 2,
                _ => scalar(-7),
            }
        }
        _ => {
            t = t * 2.0;
            scalar(-1)
        }
    };
    match n == 2 {
        true => hits += 1000,
        false => {}
    }
    if matches!(n, 3 | 5..=6 if hits > 0) {
        hits += 5000;
    }
    out.store(t * 10000.0 + (value + hits).cast::<f32>());
}

fn plain(x: f32, n: i32) -> f32 {
    let (mut t, mut hits) = (x, 0);
    let value = match n + 1 {
        0 => 100,
        -3 | -2 => {
            t += 0.5;
            200
        }
        1..=3 => n * 10,
        k @ 4..6 if k % 2 == 0 => k * 1000,
        NINE => 900,
        mut k if k > 5 => {
            k += 1;
            hits += k;
            match k {
                7 => 7,
                8.. => k * 2,
                _ => -7,
            }
        }
        _ => {
            t *= 2.0;
            -1
        }
    };
    match n == 2 {
        true => hits += 1000,
        false => {}
    }
    if matches!(n, 3 | 5..=6 if hits > 0) {
        hits += 5000;
    }
    t * 10000.0 + (value + hits) as f32
}

#[test]
fn arms_are_tried_in_order() {
    for n in -6..12 {
        assert_eq!(both([1.0, 2.0], |x| matched(x, n)), [1.0, 2.0].map(|x| plain(x, n)), "{n}");
    }
}

/// Tuples: literals, ranges, alternatives, names, guards, a host number beside run-time ones.
#[kernel(grid = (1))]
fn pairs(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    a: i32,
    b: i32,
    #[fixed] mode: usize,
) {
    let mut t = x.load();
    let value = match (a, b - 1, mode) {
        (0, 0, _) => scalar(1),
        (1, 2..=3, 0) | (2, _, 1) => {
            t = t * 2.0;
            a + 10
        }
        (n, 5, _) if n > 3 => n * b,
        (n, m, 1) => n - m,
        _ => scalar(-1),
    };
    if matches!((a, b), (2 | 3, 4..)) {
        t += 0.5;
    }
    out.store(t + value.cast::<f32>() * 100.0);
}

fn plain_pairs(x: f32, a: i32, b: i32, mode: usize) -> f32 {
    let mut t = x;
    let value = match (a, b - 1, mode) {
        (0, 0, _) => 1,
        (1, 2..=3, 0) | (2, _, 1) => {
            t *= 2.0;
            a + 10
        }
        (n, 5, _) if n > 3 => n * b,
        (n, m, 1) => n - m,
        _ => -1,
    };
    if matches!((a, b), (2 | 3, 4..)) {
        t += 0.5;
    }
    t + value as f32 * 100.0
}

#[test]
fn tuples_of_numbers_are_compared_element_by_element() {
    for (a, b, mode) in (-1..6).flat_map(|a| (0..8).flat_map(move |b| [(a, b, 0), (a, b, 1)])) {
        let found = both([1.0, 2.0], |x| pairs(x, a, b, mode));
        assert_eq!(found, [1.0, 2.0].map(|x| plain_pairs(x, a, b, mode)), "{a} {b} {mode}");
    }
}

/// Tuples of host values, some of them no numbers, have Rust's own semantics.
#[kernel(grid = (1))]
fn host_pairs(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[fixed] mode: Option<usize>,
) {
    let mut sum = 0;
    for pair in [(1usize, "one"), (2, "two"), (3, "three")] {
        sum += match pair {
            (1, _) => 1,
            (n, "two") => n * 10,
            (n, text) => n * 100 + text.len(),
        };
        let text = String::from(pair.1);
        let text = match (pair.0, text) {
            (1, text) => text + "!",
            (_, text) => text,
        };
        sum += match (text.len(), pair.0, mode) {
            (4, 1, Some(_)) => 1000,
            (5, 3, None) => 2000,
            _ => 0,
        };
    }
    out.store(x.load() + sum as f32);
}

#[test]
fn tuples_of_the_host_are_its_own() {
    assert_eq!(both([0.0], |x| host_pairs(x, Some(0))), [1326.0]);
    assert_eq!(both([0.0], |x| host_pairs(x, None)), [2326.0]);
}

/// Host numbers, references and values that are no numbers have Rust's own semantics.
#[kernel(grid = (1))]
fn host(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[fixed] mode: Option<usize>,
) {
    let mut sum = 0;
    for (i, e) in [5usize, 6, 7].iter().enumerate() {
        sum += match e {
            5 => 1,
            6 | 7 if i == 1 => 10,
            k => *k * 100,
        };
        match i {
            0 => continue,
            1 => {}
            _ => break,
        }
        sum += 1000;
    }
    let even = String::from("even");
    let name: &str = match sum % 2 {
        0 => &even,
        _ => "odd",
    };
    let scale = match mode {
        Some(0) => 2.0,
        Some(n) => n as f32,
        None => 1.0,
    };
    let level = 3;
    let deep: Box<dyn Fn(f32) -> f32> = match level {
        3 => Box::new(|x| x + 0.5),
        _ => Box::new(|x| x),
    };
    let late;
    match sum {
        0 => late = 0.0,
        _ => late = 1.0,
    }
    if matches!(mode, Some(2)) && matches!(name, "odd") && matches!(level, 1..=3) {
        sum += 20000;
    }
    out.store(x.load() * scale + sum as f32 + deep(0.0) + late)
}

#[test]
fn host_numbers_are_matched_while_tracing() {
    assert_eq!(both([1.0], |x| host(x, None)), [1.0 + 1711.0 + 1.5]);
    assert_eq!(both([1.0], |x| host(x, Some(2))), [2.0 + 21711.0 + 1.5]);
}

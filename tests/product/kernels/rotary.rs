//! Rotary embedding: positions and heads around the block, both layouts, and back.
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::rotary::{Pairs, rotary, rotary_backward, rotary_blocks, tables};
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 4.0;

fn reference(x: &[f64], cos: &[f64], sin: &[f64], [s, d]: [usize; 2], pairs: Pairs, inverse: bool) -> Vec<f64> {
    let mut out = x.to_vec();
    let half = d / 2;
    for (row, i) in (0..x.len() / d.max(1)).flat_map(|row| (0..half).map(move |i| (row, i))) {
        let (a, b) = match pairs {
            Pairs::Halves => (i, i + half),
            Pairs::Neighbours => (2 * i, 2 * i + 1),
        };
        let at = (row % s) * half + i;
        let (c, s) = (cos[at], if inverse { -sin[at] } else { sin[at] });
        (out[row * d + a], out[row * d + b]) =
            (x[row * d + a] * c - x[row * d + b] * s, x[row * d + a] * s + x[row * d + b] * c);
    }
    out
}

#[test]
fn every_extent_around_its_blocks() {
    for client in clients() {
        for ([n, s, half], size) in around([2, 6, 3]) {
            let d = 2 * half;
            let (cos, sin) = tables(&client, 3, s, d, 100.0).expect("it fits");
            for (&dtype, pairs) in runs(&client, size).iter().flat_map(|t| [(t, Pairs::Halves), (t, Pairs::Neighbours)])
            {
                let x = array(&client, dtype, &[n, s, d], &values(n * s * d, 1));
                let (x64, cos64, sin64) = (doubles(&x), doubles(&cos), doubles(&sin));
                for (inverse, heads) in [(false, 1), (true, 1), (false, 2), (true, 3)] {
                    let near = pairs == Pairs::Neighbours;
                    let out = typed!(dtype, E => rotary_blocks::<E>(&x, &cos, &sin, near, inverse, heads, B))
                        .expect("it runs");
                    let want = reference(&x64, &cos64, &sin64, [s, d], pairs, inverse);
                    close(&out, &want, 2, K, &format!("{n}x{s}x{d} {dtype} {pairs:?}, inverse {inverse}"));
                }
            }
        }
    }
}

#[test]
fn the_function_that_chooses_blocks() {
    let cpu = Client::cpu();
    for ([n, s, half], pairs) in drawn(60, 7).flat_map(|s| [(s, Pairs::Halves), (s, Pairs::Neighbours)]) {
        let (d, dtype) = (2 * half, FLOATS[(n + s) % 3]);
        let (cos, sin) = tables(&cpu, 3, s, d, 100.0).expect("it fits");
        let x = array(&cpu, dtype, &[n, s, d], &values(n * s * d, 1));
        let want = |inverse| reference(&doubles(&x), &doubles(&cos), &doubles(&sin), [s, d], pairs, inverse);
        let what = format!("{n}x{s}x{d} {dtype} {pairs:?}");
        close(&rotary(&x, &cos, &sin, pairs).expect("it runs"), &want(false), 2, K, &what);
        close(&rotary_backward(&x, &cos, &sin, pairs).expect("it runs"), &want(true), 2, K, &what);
    }
}

#[test]
fn there_and_back() {
    let cpu = Client::cpu();
    for (dtype, pairs) in FLOATS.into_iter().flat_map(|t| [(t, Pairs::Halves), (t, Pairs::Neighbours)]) {
        let (s, d) = (130, 64);
        let (cos, sin) = tables(&cpu, 100_000, s, d, 10_000.0).expect("it fits");
        let x = array(&cpu, dtype, &[2, 3, s, d], &values(6 * s * d, 1));
        let turned = rotary(&x, &cos, &sin, pairs).expect("it runs");
        let back = rotary_backward(&turned, &cos, &sin, pairs).expect("it runs");
        close(&back, &doubles(&x), 4, K, &format!("{dtype} {pairs:?}"));
        // An angle, by itself.
        let angle = 100_001.0 * 10_000f64.powf(-2.0 * 5.0 / 64.0);
        let table = doubles(&cos)[d / 2 + 5];
        assert!((table - angle.cos()).abs() < 1e-7, "{table}");
    }
    let odd = cpu.zeros(&[2, 5], DType::F32).expect("it fits");
    let (cos, sin) = tables(&cpu, 0, 2, 4, 100.0).expect("it fits");
    assert!(rotary(&odd, &cos, &sin, Pairs::Halves).is_err(), "five elements are no pairs");
}

//! `mean(vmap(loss))` under `grad` against the same loss written for a batch: values, temporaries and work of 60 drawn
//! pairs.
#![allow(clippy::print_stdout, reason = "what each pair takes")]
#[expect(unreachable_pub, reason = "the bench `batches` has the module too")]
mod pairs;

use crate::prelude::*;
use crate::{grad, jit, lower};
use pairs::{Pair, Scale, pair};

const PAIRS: u64 = 60;

/// Families that take more, and the ratios of temporaries and of work.
const EXCEPTIONS: &[(&str, [f64; 2])] = &[
    // A branch computes with zeros for examples that take another one, which keeps its gradient finite; `select` does
    // not. Work is that of the function as traced; most of the choices are gone from what is compiled.
    ("branch of each", [2.3, 1.06]),
    // Their values lie in another order, with other gaps, and elements of all steps are copied into the order of
    // products.
    ("gated recurrent net", [1.05, 1.01]),
    ("recurrent net", [1.3, 1.01]),
    // A value of the written form takes over the memory of another one.
    ("stated tangents", [1.02, 1.01]),
];

/// The pairs; `PALLAS_BATCHES` is their number, and `PALLAS_BATCHES_SEED` that of their sizes.
fn drawn(scale: Scale) -> impl Iterator<Item = Pair> {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let (count, seed) = (number("PALLAS_BATCHES").unwrap_or(PAIRS), number("PALLAS_BATCHES_SEED").unwrap_or(1));
    (0..count as usize).map(move |i| pair(i, seed, scale))
}

#[test]
fn gradients_of_a_mapped_loss_are_those_of_a_batch() {
    let client = Client::cpu();
    for pair in drawn(Scale::Small) {
        let (w, x) = pair.arrays(&client).expect("it fits");
        let want = jit(grad(pair.written()))(&w, &x).unwrap_or_else(|e| panic!("{}: {e}", pair.name));
        let mapped = jit(grad(pair.mapped()))(&w, &x).unwrap_or_else(|e| panic!("{}: {e}", pair.name));
        let each = jit(pair.each())(&w, &x).unwrap_or_else(|e| panic!("{}: {e}", pair.name));
        for (form, found) in [("mapped loss", mapped), ("mapped gradient", each)] {
            for (i, (want, found)) in want.iter().zip(&found).enumerate() {
                let (want, found) = (super::numbers(want), super::numbers(found));
                let most = want.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-5 * most;
                let is_near = want.len() == found.len() && want.iter().zip(&found).all(near);
                assert!(is_near, "{}, {form}, weight {i}:\n{want:?}\n{found:?}", pair.name);
            }
        }
    }
}

#[test]
fn a_mapped_loss_takes_no_more_memory_and_work_than_a_batch() {
    let client = Client::cpu();
    let mut worse = vec![];
    for pair in drawn(Scale::Large) {
        let types = pair.types(&client).expect("it fits");
        let costs = |f: Result<(usize, u64)>| f.unwrap_or_else(|e| panic!("{}: {e}", pair.name));
        let (w, x) = &types;
        let of = |memory: crate::plan::MemoryAnalysis, cost: crate::Cost| (memory.temporary_bytes, cost.flops);
        let want = costs(lower(grad(pair.written()))(w, x).map(|f| of(f.memory_analysis(), f.cost_analysis())));
        let found = costs(lower(grad(pair.mapped()))(w, x).map(|f| of(f.memory_analysis(), f.cost_analysis())));
        println!("{:52} {:>11} {:>11} {:>13} {:>13}", pair.name, want.0, found.0, want.1, found.1);
        let (name, [memory, work]) = (&pair.name, [found.0 as f64 / want.0 as f64, found.1 as f64 / want.1 as f64]);
        let more =
            EXCEPTIONS.iter().find(|(family, _)| name.starts_with(family)).map_or([1.0, 1.01], |(_, more)| *more);
        if memory > more[0] || work > more[1] {
            worse.push(format!("{}: {found:?} against {want:?}", pair.name));
        }
    }
    assert!(worse.is_empty(), "{}", worse.join("\n"));
}

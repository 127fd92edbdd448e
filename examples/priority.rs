//! Embeddings looked up by indices, both sharded by the same axis of a mesh: who has it?
//!
//! `cargo run --release --example priority`
//!
//! The weights are sharded by features, the indices by examples, and the result of the lookup has both dimensions; one
//! axis divides only one of them. Without priorities propagation decides, as Shardy does; a priority lets the user
//! decide. The exit code is 1 unless the winner of each case is the expected one.
mod usage;

use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put, dim};
use pallas_rt::{jit, partitioned};
use std::process::ExitCode;
use std::sync::Arc;

const VOCABULARY: usize = 64;
const FEATURES: usize = 32;
const EXAMPLES: usize = 16;
const LENGTH: usize = 8;

/// The axes of the result's first and last dimension are those of indices and weights.
const EXAMPLES_WIN: [usize; 3] = [4, 1, 1];
const FEATURES_WIN: [usize; 3] = [1, 1, 4];

fn lookup(weights: &Array, indices: &Array) -> Array {
    weights.take(indices, 0) * 2.0
}

/// The parts of the result by dimension, with priorities for weights and indices; also what is said about the loser.
fn parts(weights: u32, indices: u32) -> Result<(Vec<usize>, String)> {
    let mesh = Arc::new(Mesh::new(&[("model", 4)]).expect("one axis"));
    let put = |x: Array, spec| device_put(&x, &NamedSharding::new(&mesh, spec));
    let ids: Vec<i32> = (0..EXAMPLES * LENGTH).map(|i| (i * 7 % VOCABULARY) as i32).collect();
    let table: Vec<f32> = (0..VOCABULARY * FEATURES).map(|i| i as f32).collect();
    let (table, ids) =
        (Array::from_slice(&table, &[VOCABULARY, FEATURES])?, Array::from_slice(&ids, &[EXAMPLES, LENGTH])?);
    let expected = lookup(&table, &ids).to_vec::<f32>()?;
    let table = put(table, P((None, dim("model").priority(weights))))?;
    let ids = put(ids, P(dim("model").priority(indices)))?;
    let found = partitioned(lookup)(&table, &ids)?;
    let last = found.values().len() - 1;
    let text = format!("{}\n{}", found.why(last, "model")?, found.why_not(last, "model")?);
    let y = jit(lookup)(&table, &ids)?;
    assert_eq!(y.to_vec::<f32>()?, expected, "a division changes no number");
    Ok((y.sharding().expect("it is sharded").blocks_per_dim(), text))
}

/// Runs it; returns false if a case has another winner.
pub fn run() -> Result<bool> {
    let cases = [
        ("without priorities", 0, 0, None),
        ("indices first", 1, 0, Some(EXAMPLES_WIN)),
        ("weights first", 0, 1, Some(FEATURES_WIN)),
    ];
    let mut is_expected = true;
    for (name, weights, indices, winner) in cases {
        let (parts, text) = parts(weights, indices)?;
        println!("{name}: {parts:?}\n{text}\n");
        is_expected &=
            winner.is_none_or(|winner| parts == winner) && [EXAMPLES_WIN, FEATURES_WIN].iter().any(|w| parts == w);
    }
    Ok(is_expected)
}

fn main() -> ExitCode {
    usage::read(include_str!("priority.rs"), &[]);
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("not as expected: the operand with the stronger priority has the axis");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

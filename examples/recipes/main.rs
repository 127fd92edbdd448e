//! The ways in which models are sharded among devices, each as a program of its own. All of them compute what one
//! device computes, and count their exchanges.
//!
//! `cargo run --release --example recipes` runs all, `.. recipes pipeline ring` those with these names.
//!
//! | recipe | what is sharded | exchanges |
//! |---|---|---|
//! | `data_parallel` | the batch | a sum for each gradient |
//! | `fsdp` | the batch, and each weight (ZeRO-3) | each weight is gathered where it is read, each gradient scattered |
//! | `three_axes` | the batch, weights by rows, and layers by columns | weights are gathered, gradients summed, and a sum for both layers |
//! | `sequence` | the positions of attention, with heads in between (Ulysses) | all-to-alls |
//! | `experts` | the experts of a mixture, with a fixed capacity | all-to-alls |
//! | `pipeline` | the layers, with micro-batches (GPipe) | permutes |
//! | `ring` | an all-reduce by hand | permutes |
//! | `ring_attention` | the positions of attention, with keys that go around | permutes |
//! | `overlapped` | a product whose operand or result is exchanged block by block | permutes |
mod experts;
mod fsdp;
mod overlapped;
mod pipeline;
mod report;
mod ring;
mod ring_attention;
mod sequence;
#[path = "../usage/mod.rs"]
mod usage;

use pallas_rt::prelude::*;
use std::process::ExitCode;

/// A recipe; it returns false if it is not as it should be.
type Recipe = fn() -> Result<bool>;

/// All recipes by name.
pub const RECIPES: &[(&str, Recipe)] = &[
    ("data_parallel", fsdp::data_parallel),
    ("fsdp", fsdp::fully_sharded),
    ("three_axes", fsdp::three_axes),
    ("sequence", sequence::run),
    ("experts", experts::run),
    ("pipeline", pipeline::run),
    ("ring", ring::run),
    ("ring_attention", ring_attention::run),
    ("overlapped", overlapped::run),
];

fn main() -> ExitCode {
    usage::read(include_str!("main.rs"), &[]);
    let names: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = names.iter().find(|name| RECIPES.iter().all(|(own, _)| own != name)) {
        let all: Vec<&str> = RECIPES.iter().map(|(name, _)| *name).collect();
        eprintln!("no recipe `{unknown}`; there are {}", all.join(", "));
        return ExitCode::FAILURE;
    }
    let mut is_right = true;
    for (name, run) in RECIPES.iter().filter(|(name, _)| names.is_empty() || names.iter().any(|own| own == name)) {
        println!("== {name}");
        match run() {
            Ok(right) => is_right &= right,
            Err(error) => {
                eprintln!("{name}: {error}");
                is_right = false;
            }
        }
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

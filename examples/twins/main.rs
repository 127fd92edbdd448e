//! Programs beside the same ones in JAX: the `.py` files of this folder compute the same numbers.
//!
//! `cargo run --release --example twins` runs all, `.. twins kalman_filter hmc_sampler` those with these names.
//! `python examples/twins/main.py NAME..` prints what JAX computes.
//!
//! | program | shows |
//! |---|---|
//! | `logistic_regression` | `jit` of `value_and_grad`, a loop of steps |
//! | `kalman_filter` | a gradient through `scan`, with results beside the number |
//! | `gru_per_example_gradients` | `vmap` of `grad`, a struct of weights |
//! | `gaussian_process` | factors of matrices in a gradient |
//! | `hmc_sampler` | `vmap` of a `scan` whose steps have a `fori_loop` with gradients; random keys |
mod gaussian_process;
mod gru_per_example_gradients;
mod hmc_sampler;
mod kalman_filter;
mod logistic_regression;
#[path = "../usage/mod.rs"]
mod usage;

use pallas_rt::{Array, Result};
use std::process::ExitCode;

/// A program; it returns its results.
type Twin = fn() -> Result<Vec<Array>>;

/// All programs by name.
pub const TWINS: &[(&str, Twin)] = &[
    ("logistic_regression", logistic_regression::run),
    ("kalman_filter", kalman_filter::run),
    ("gru_per_example_gradients", gru_per_example_gradients::run),
    ("gaussian_process", gaussian_process::run),
    ("hmc_sampler", hmc_sampler::run),
];

fn main() -> ExitCode {
    usage::read(include_str!("main.rs"), &[]);
    let names: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = names.iter().find(|name| TWINS.iter().all(|(own, _)| own != name)) {
        let all: Vec<&str> = TWINS.iter().map(|(own, _)| *own).collect();
        eprintln!("there is no program `{unknown}`: {}", all.join(", "));
        return ExitCode::FAILURE;
    }
    match print(&names) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the results of the programs with these names, of all if there are none.
fn print(names: &[String]) -> Result<()> {
    for (name, run) in TWINS.iter().filter(|(name, _)| names.is_empty() || names.iter().any(|own| own == name)) {
        println!("== {name}");
        for x in run()? {
            let numbers: Vec<String> = x.to_vec::<f32>()?.iter().map(ToString::to_string).collect();
            println!("{}", numbers.join(" "));
        }
    }
    Ok(())
}

//! The kernel language as its users see it: every kernel runs as Rust (the interpreter's client steps through the body)
//! and as tile IR (the CPU client), with the same result.
#![allow(
    clippy::assign_op_pattern,
    clippy::eq_op,
    clippy::nonminimal_bool,
    clippy::useless_vec,
    reason = "kernels are tested in every spelling, the clumsy ones too"
)]
mod aliases;
mod clients;
mod consts;
mod control;
mod host;
mod items;
mod literals;
mod logic;
mod matches;
mod names;
mod operations;
mod places;
mod programs;
mod regions;
mod threefry;
mod trees;
mod views;

use pallas_rt::{Array, Client, Result};

/// Runs a call on both clients, each given the same input, and returns the common result.
fn both<const N: usize>(input: [f32; N], call: impl Fn(&Array) -> Result<Array>) -> Vec<f32> {
    let run = |client: &Client| {
        let x = client.array(&input, &[N]).expect("the input fits");
        let y = call(&x).unwrap_or_else(|e| panic!("{e}"));
        y.to_vec::<f32>().expect("the output is f32")
    };
    let (eager, traced) = (run(&Client::interpreter()), run(&Client::cpu()));
    assert_eq!(eager, traced, "the body as Rust and its tile IR disagree");
    eager
}

/// The error of a call, which is the same on both clients.
fn error<const N: usize>(input: [f32; N], call: impl Fn(&Array) -> Result<Array>) -> String {
    let run = |client: &Client| {
        let x = client.array(&input, &[N]).expect("the input fits");
        call(&x).expect_err("the kernel is wrong").to_string()
    };
    let (eager, traced) = (run(&Client::interpreter()), run(&Client::cpu()));
    assert_eq!(eager, traced);
    eager
}

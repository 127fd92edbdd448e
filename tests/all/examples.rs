//! The examples run on every device; they assert their own results.
#![allow(dead_code, clippy::duplicate_mod, reason = "each is a program of its own")]
use crate::support::clients;
use pallas_rt::Client;

#[path = "../../examples/add.rs"]
mod add;
#[path = "../../examples/attention_zoo.rs"]
mod attention_zoo;
#[path = "../../examples/decode.rs"]
mod decode;
#[path = "../../examples/gather.rs"]
mod gather;
#[path = "../../examples/matmul_epilogue.rs"]
mod matmul_epilogue;
#[path = "../../examples/ragged_softmax.rs"]
mod ragged_softmax;
#[path = "../../examples/state_space.rs"]
mod state_space;
#[path = "../../examples/wrong_kernel.rs"]
mod wrong_kernel;

#[test]
fn examples_run_on_every_device() {
    for client in clients() {
        let simple = [add::run, gather::run, matmul_epilogue::run, ragged_softmax::run];
        for run in simple.into_iter().chain([decode::run, state_space::run, wrong_kernel::run]) {
            run(&client).unwrap_or_else(|e| panic!("{client:?}: {e}"));
        }
    }
}

/// Not on a GPU: a shader for each option takes its driver long, and those are tested elsewhere.
#[test]
fn the_zoo_is_right() {
    for client in [Client::interpreter(), Client::cpu()] {
        attention_zoo::run(&client).unwrap_or_else(|e| panic!("{client:?}: {e}"));
    }
}

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
#[cfg(feature = "graph")]
#[path = "../../examples/train_digits/model.rs"]
mod train_digits;
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

/// The losses of two epochs, as `examples/train_digits/reference.py` computes them with JAX.
#[cfg(feature = "graph")]
#[test]
fn digits_are_learnt_as_in_jax() {
    let text = include_str!("../../examples/data/train_digits_jax.txt");
    let expected: Vec<f32> = text.lines().map(|line| line.parse().expect("a number")).collect();
    let digits = train_digits::Digits::load();
    for client in clients() {
        let mut trainer = train_digits::Trainer::new(&client, &digits);
        trainer.restart(1).unwrap_or_else(|e| panic!("{client:?}: {e}"));
        // The interpreter and software adapters take their time.
        let steps = if client.kind() == pallas_rt::DeviceKind::Cpu { [usize::MAX; 2].to_vec() } else { vec![2] };
        let epoch = |&most| trainer.epoch(most).unwrap_or_else(|e| panic!("{client:?}: {e}"));
        let losses: Vec<f32> = steps.iter().flat_map(epoch).collect();
        for (i, (found, expected)) in losses.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() < 1e-4, "{client:?}, step {i}: {found}, in JAX {expected}");
        }
        assert!(losses.len() == expected.len() || losses.len() == 2, "{} losses", losses.len());
    }
}

//! The CPU backend against the strict interpreter where its plan is daring: tiles that refer to operands' memory,
//! stores computed in place, accumulating products, strips over edges. Inputs are small integers, so that every order
//! of a sum gives the same bits.
mod memory;
mod products;
mod queue;
mod safety;
mod strips;

use pallas_rt::{Array, Client, Result};

/// Small integers, as floats.
fn numbers(client: &Client, shape: &[usize], seed: usize) -> Array {
    let n: usize = shape.iter().product();
    let x: Vec<f32> = (0..n).map(|i| ((i + 1) * (i + 7 * seed + 3) % 13) as f32 - 6.0).collect();
    client.array(&x, shape).expect("it fits")
}

/// Runs a call on both clients and compares all bits of its results.
#[track_caller]
fn check(call: impl Fn(&Client) -> Result<Vec<Array>>) -> Vec<Vec<u8>> {
    let run = |client: Client| {
        let outputs = call(&client).unwrap_or_else(|e| panic!("{e}"));
        outputs.iter().map(|y| y.to_bytes().expect("host memory")).collect::<Vec<_>>()
    };
    let (want, found) = (run(Client::interpreter()), run(Client::cpu()));
    for (output, (want, found)) in want.iter().zip(&found).enumerate() {
        let at = want.iter().zip(found).position(|(a, b)| a != b);
        assert_eq!(at, None, "output {output}: first byte that differs");
    }
    want
}

//! The first kernel: the sum of two arrays, a block of 256 elements a program.
//!
//! `cargo run --example add [-- --device cpu|gpu|interpret]`
mod device;
mod usage;

use pallas_rt::prelude::*;

// One program per block: `cdiv(N, B)` is N / B, rounded up. Program i sees block i of all three arrays; the last block
// overhangs them, and what it stores out there is dropped. The array `out` is made by the call.
#[kernel(grid = (cdiv(N, B)))]
fn add<const B: usize>(
    #[block([N] => [B], |i| (i,))] x: In<f32>,
    #[block([N] => [B], |i| (i,))] y: In<f32>,
    #[block([N] => [B], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}

fn main() -> Result<()> {
    usage::read(include_str!("add.rs"), &["--device"]);
    run(&device::client()?)
}

pub fn run(client: &Client) -> Result<()> {
    println!("on {}", client.why());
    let n = 5000;
    let x = client.array(&(0..n).map(|i| i as f32).collect::<Vec<_>>(), &[n])?;
    let y = client.full(&[n], 0.5f32)?;

    // On a GPU the call returns before the sum is there; reading waits for it.
    let sum = add::<256>(&x, &y)?;
    println!("{sum}");

    // The next call, of any length, compiles nothing. An array given by value donates its memory to the result.
    let sum = add::<256>(sum, &y)?;
    let expected: Vec<f32> = (0..n).map(|i| i as f32 + 1.0).collect();
    assert_eq!(sum.to_vec::<f32>()?, expected);

    // What does not fit is an error that says so.
    let shorter = client.zeros(&[n - 1], DType::F32)?;
    println!("\n{}", add::<256>(&x, &shorter).expect_err("4999 is not 5000"));
    Ok(())
}

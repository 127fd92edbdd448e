//! Wrong kernels, and what the strict interpreter says about them. Each of these may well give the right numbers on a
//! device, today and with these sizes: the interpreter does not try, it watches every element.
//!
//! `cargo run --example wrong_kernel [-- --device cpu|gpu]` (the device that the corrected kernel is held against)
mod device;
mod usage;

use pallas_rt::prelude::*;

// The sum of each row, in blocks of columns, one step a block. First attempt: nobody fills the sum before the first
// step.
#[kernel(grid = (R, cdiv(C, 4)), semantics = (parallel, arbitrary))]
fn first_attempt(
    #[block([R, C] => [1, 4], |i, j| (i, j), fill = 0.0)] x: In<f32>,
    #[block([R, 1] => [1, 1], |i, _| (i, 0))] out: Out<f32>,
    #[scratch([1, 1])] sum: Scratch<f32>,
) {
    sum.store(sum.load() + x.load().sum(1));
    out.store(sum.load());
}

// Nothing undefined is summed any more. But the steps of one row do not follow each other: the sum mixes rows, and a
// block of `out` comes back after another one.
#[kernel(grid = (cdiv(C, 4), R), semantics = (arbitrary, arbitrary))]
fn second_attempt(
    #[block([R, C] => [1, 4], |j, i| (i, j), fill = 0.0)] x: In<f32>,
    #[block([R, 1] => [1, 1], |_, i| (i, 0))] out: Out<f32>,
    #[scratch([1, 1])] sum: Scratch<f32>,
) {
    if program_id(0) == 0 {
        sum.fill(0.0);
    }
    sum.store(sum.load() + x.load().sum(1));
    out.store(sum.load());
}

// Rows one by one. But the last block of columns overhangs the array, and its sum takes in what lies there.
#[kernel(grid = (R, cdiv(C, 4)), semantics = (parallel, arbitrary))]
fn third_attempt(
    #[block([R, C] => [1, 4], |i, j| (i, j))] x: In<f32>,
    #[block([R, 1] => [1, 1], |i, _| (i, 0))] out: Out<f32>,
    #[scratch([1, 1])] sum: Scratch<f32>,
) {
    if program_id(1) == 0 {
        sum.fill(0.0);
    }
    sum.store(sum.load() + x.load().sum(1));
    out.store(sum.load());
}

#[kernel(grid = (R, cdiv(C, 4)), semantics = (parallel, arbitrary))]
fn row_sums(
    #[block([R, C] => [1, 4], |i, j| (i, j), fill = 0.0)] x: In<f32>,
    #[block([R, 1] => [1, 1], |i, _| (i, 0))] out: Out<f32>,
    #[scratch([1, 1])] sum: Scratch<f32>,
) {
    if program_id(1) == 0 {
        sum.fill(0.0);
    }
    sum.store(sum.load() + x.load().sum(1));
    out.store(sum.load());
}

fn main() -> Result<()> {
    usage::read(include_str!("wrong_kernel.rs"), &["--device"]);
    run(&device::client()?)
}

pub fn run(client: &Client) -> Result<()> {
    let interpreter = Client::interpreter();
    let x = interpreter.array(&(0..14).map(|i| i as f32).collect::<Vec<_>>(), &[2, 7])?;
    let attempts = [("first", first_attempt(&x)), ("second", second_attempt(&x)), ("third", third_attempt(&x))];
    for (attempt, result) in attempts {
        println!("{attempt} attempt\n  {}\n", result.expect_err("it is wrong"));
    }

    println!("row sums\n{}\n", row_sums(&x)?);
    // `check` runs a call on the interpreter and on its own device, and compares.
    let x = x.to_device(client)?;
    let checked = check(|| row_sums(&x))?;
    println!("{checked} on {}", client.device());
    Ok(())
}

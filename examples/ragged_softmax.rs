//! Softmax of rows of different lengths in one padded array; what lies behind a row's end is never looked at.
//!
//! `cargo run --example ragged_softmax [-- --device cpu|gpu|interpret]`
mod device;
mod usage;

use pallas_rt::prelude::*;

// Eight rows a program, and all their columns: C is a block's size here, so that the body sees it as a `usize`.
#[kernel(grid = (cdiv(R, 8)))]
fn ragged_softmax(
    #[block([R, C] => [8, C], |i| (i, 0))] x: In<f32>,
    #[block([R] => [8], |i| (i,), fill = 0)] lengths: In<i32>,
    #[block([R, C] => [8, C], |i| (i, 0))] out: Out<f32>,
) {
    // [1, C] against [8, 1]: axes of extent 1 stretch, as in numpy.
    let live = iota::<i32>([1, C], 1).lt(lengths.load().expand(1));
    // The padding may hold anything: `select` drops it, where a product with 0 would keep its NaN.
    let x = select(live, x.load(), f32::NEG_INFINITY);
    let max = x.max(1);
    // A row without elements has maximum -inf; its sum is made 1, so that it gives 0 and no NaN.
    let e = select(live, (x - select(max.is_finite(), max, 0.0)).exp(), 0.0);
    let sum = e.sum(1);
    out.store(e / select(sum.gt(0.0), sum, 1.0));
}

fn main() -> Result<()> {
    usage::read(include_str!("ragged_softmax.rs"), &["--device"]);
    run(&device::client()?)
}

pub fn run(client: &Client) -> Result<()> {
    println!("on {}", client.why());
    let (columns, lengths) = (6, [6, 1, 0, 3, 5, 2, 4, 6, 3, 1, 2i32]);
    let mut values = vec![f32::NAN; lengths.len() * columns];
    for (row, &length) in values.chunks_mut(columns).zip(&lengths) {
        row[..length as usize].iter_mut().enumerate().for_each(|(j, x)| *x = j as f32 * 0.5);
    }
    let x = client.array(&values, &[lengths.len(), columns])?;
    let y = ragged_softmax(&x, &client.array(&lengths, &[lengths.len()])?)?;
    println!("rows of {lengths:?} elements:\n{y}");

    for (row, &length) in y.to_vec::<f32>()?.chunks(columns).zip(&lengths) {
        let (live, padding) = row.split_at(length as usize);
        assert!(padding.iter().all(|&p| p == 0.0));
        let sum: f32 = live.iter().sum();
        assert!((sum - if length > 0 { 1.0 } else { 0.0 }).abs() < 1e-6, "{row:?}");
    }
    Ok(())
}

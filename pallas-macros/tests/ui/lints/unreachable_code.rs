#![deny(unused)]
use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    out.store(x.load());
    return;
    out.store(x.load() + 1.0);
}

fn main() {
    let _ = k(&Array::from_slice(&[1.0f32], &[1]).unwrap());
}

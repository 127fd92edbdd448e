#![deny(unused)]
use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut t = x.load();
    if program_id(0) == 0 {
        let spare = t + 1.0;
        t += 2.0;
    }
    out.store(t);
}

fn main() {
    let _ = k(&Array::from_slice(&[1.0f32], &[1]).unwrap());
}

use pallas_rt::prelude::*;

const HALVES: f32 = 2.5;

#[kernel(grid = ({HALVES}))]
fn k(#[block([N] => [2], |i| (i,))] x: In<f32>, #[block([N] => [2], |i| (i,))] out: Out<f32>) {
    out.store(x.load() + 1.0);
}

fn main() {}

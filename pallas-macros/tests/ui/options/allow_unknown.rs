use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 4)), allow(overflows))]
fn k(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    out.store(x.load());
}

fn main() {}

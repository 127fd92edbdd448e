use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 4)))]
fn k(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([M, N] => [1, 4], |i| (0, i))] out: Out<f32>) {
    out.store(x.load().expand(0));
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 4)))]
fn k(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    out.fill(x.at(-1).load());
}

fn main() {}

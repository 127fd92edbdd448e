use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 4), 2), semantics = (parallel))]
fn k(#[block([N] => [4], |i, _| (i,))] x: In<f32>, #[block([N] => [4], |i, _| (i,))] out: Out<f32>) {
    out.store(x.load());
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BN)), tune(BN = [0, 8]))]
fn k<const BN: usize>(#[block([N] => [BN], |i| (i,))] x: In<f32>, #[block([N] => [BN], |i| (i,))] out: Out<f32>) {
    out.store(x.load());
}

fn main() {}

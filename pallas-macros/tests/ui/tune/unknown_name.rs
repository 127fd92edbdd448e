use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BN)), tune(BQ = [32, 64]))]
fn k<const BN: usize, const BK: usize>(
    #[block([N] => [BN], |i| (i,))] x: In<f32>,
    #[block([N] => [BN], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + BK as f32);
}

fn main() {}

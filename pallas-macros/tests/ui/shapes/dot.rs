use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM), cdiv(N, BN)))]
fn k<const BM: usize, const BN: usize>(
    #[block([M, K] => [BM, K], |i, _| (i, 0))] a: In<f32>,
    #[block([K, N] => [K, BN], |_, j| (0, j))] b: In<f32>,
    #[block([M, N] => [BM, BN], |i, j| (i, j))] out: Out<f32>,
) {
    out.store(dot(a.load(), b.load().t()));
}

fn main() {}

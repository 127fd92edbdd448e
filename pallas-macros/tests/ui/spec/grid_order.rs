use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BN), cdiv(M, BM)))]
fn k<const BM: usize, const BN: usize>(
    #[block([M, N] => [BM, BN], |i, j| (i, j))] x: In<f32>,
    #[block([M, N] => [BM, BN], |i, j| (i, j))] out: Out<f32>,
) {
    out.store(x.load() * 2.0);
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BQ)), assume(BQ == BK, 2 * N == 3 * BK))]
fn k<const BQ: usize, const BK: usize>(
    #[block([N] => [BQ], |i| (i,))] x: In<f32>,
    #[block([N] => [BK], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load().reshape([BK]));
}

fn main() {}

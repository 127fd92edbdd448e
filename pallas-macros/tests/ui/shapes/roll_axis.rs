use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
) {
    out.store(x.load().roll(1, 2));
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, 4), cdiv(N, 4)))]
fn k(
    #[block([M, N] => [4, 4, 4], |i, j| (i, j))] x: In<f32>,
    #[block([M, N] => [4, 4], |i| (i, 0))] y: In<f32>,
    #[block([M, N] => [4, 4], |i, j| (i, j, 0))] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}

fn main() {}

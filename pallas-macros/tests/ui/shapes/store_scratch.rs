use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
    #[scratch([BM, 1])] s: Scratch<f32>,
) {
    s.store(x.load());
    out.store(x.load() - s.load());
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
) {
    let a = x.load() + program_id(0);
    out.store(a + x.load().sum(2));
}

fn main() {}

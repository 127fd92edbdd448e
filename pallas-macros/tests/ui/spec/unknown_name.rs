use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BQ)))]
fn k<const BQ: usize>(#[block([N] => [BK], |i| (i,))] x: In<f32>, #[block([N] => [BQ], |i| (i,))] out: Out<f32>) {
    out.store(x.load());
}

fn main() {}

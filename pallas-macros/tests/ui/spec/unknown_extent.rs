use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(L, BQ)))]
fn k<const BQ: usize>(#[block([N] => [BQ], |i| (i,))] x: In<f32>, #[block([N] => [BQ], |i| (i,))] out: Out<f32>) {
    out.store(x.load());
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 4)))]
fn k(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    out.fill(0.0);
    out.at(ds(0, 2)).store(x.at(strided(0, 2, 4)).load());
}

fn main() {}

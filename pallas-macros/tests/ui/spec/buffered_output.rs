use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BN)))]
fn k<const BN: usize>(
    #[block([N] => [BN], |i| (i,))] x: In<f32>,
    #[block([N] => [BN], |i| (i,), buffered = 2)] out: Out<f32>,
) {
    out.store(x.load());
}

fn main() {}

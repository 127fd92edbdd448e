use pallas_rt::prelude::*;

#[kernel(grid = (B))]
fn k(#[block([B, N] => [_, N], |b| (b, 0))] x: In<f32>, #[block([B, N] => [_, N], |b| (b, 0))] out: Out<f32>) {
    out.store(x.load() - x.load().sum(1));
}

fn main() {}

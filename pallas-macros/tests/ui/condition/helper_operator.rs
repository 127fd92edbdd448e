use pallas_rt::prelude::*;

fn clipped(t: Tile<f32>) -> Tile<f32> {
    select(t > 2.0, 2.0, t)
}

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    out.store(clipped(x.load()));
}

fn main() {}

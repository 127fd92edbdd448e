use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,), alias = y)] out: Out<f32>) {
    out.store(x.load());
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, s: Scratch<f32>) {
    s.store(x.load());
    out.store(s.load());
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, #[fixed] all: bool) {
    let t = x.load();
    out.store(select(all || t > 0.0, t, 0.0));
}

fn main() {}

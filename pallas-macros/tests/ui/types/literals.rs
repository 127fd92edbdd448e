use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let a = x.load() * 2;
    let b = x.load() > 0;
    let c = 2 * x.load();
    out.store(select(b, a, c));
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut y = x.load();
    while y < 2.0 {
        y += 1.0;
    }
    out.store(y);
}

fn main() {}

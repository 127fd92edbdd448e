use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let y;
    for _ in 0..2 {
        y = x.load();
    }
    out.store(y);
}

fn main() {}

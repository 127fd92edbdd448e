use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut acc = x.load();
    for _ in 0..=1.5 {
        acc += 1.0;
    }
    out.store(acc);
}

fn main() {}

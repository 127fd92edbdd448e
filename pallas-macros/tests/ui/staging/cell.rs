use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let c = std::cell::Cell::new(x.load());
    for _ in 0..2 {
        c.set(c.get() * 2.0);
    }
    out.store(c.get());
}

fn main() {}

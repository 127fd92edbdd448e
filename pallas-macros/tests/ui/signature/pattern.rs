use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[fixed] (a, b): (f32, f32),
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
) {
    out.store(x.load() * a + b);
}

fn main() {}

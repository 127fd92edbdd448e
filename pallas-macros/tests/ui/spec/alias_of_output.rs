use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] y: Out<f32>,
    #[block([N] => [N], |_i| (0,), alias = y)] out: Out<f32>,
) {
    y.store(x.load() + 1.0);
    out.store(x.load());
}

fn main() {}

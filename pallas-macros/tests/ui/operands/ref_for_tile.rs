use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    out.store(2.0 * x);
    out.store(x);
    out.store(x.exp());
    out.store(x.load().maximum(out.sum(0)));
}

fn main() {}

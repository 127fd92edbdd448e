use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    out.store(x.load());
}

fn call() -> Result<Array> {
    k(&[1.0f32, 2.0])
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[fixed]
    #[dim]
    n: usize,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
) {
    out.store(x.load() * n as f32);
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[fixed] weights: &[usize],
) {
    out.store(x.load() * weights[1] as f32);
}

fn main() {}

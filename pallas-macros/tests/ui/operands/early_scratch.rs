use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[scratch([N])] sum: Scratch<f32>,
) {
    sum.store(sum.load() + x.load());
    out.store(sum.load());
}

fn main() {}

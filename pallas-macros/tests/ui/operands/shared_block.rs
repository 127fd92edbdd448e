use pallas_rt::prelude::*;

#[kernel(grid = (R, cdiv(C, 4)))]
fn sums(
    #[block([R, C] => [_, 4], |r, j| (r, j), fill = 0.0)] x: In<f32>,
    #[block([R] => [1], |r, _| (r,))] out: Out<f32>,
) {
    out.store(x.load().sum(0));
}

fn main() {}

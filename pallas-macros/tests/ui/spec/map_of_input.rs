use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [2], |_| (t.at(0),))] x: In<f32>,
    t: In<i32>,
    #[block([2] => [2], |_| (0,))] out: Out<f32>,
) {
    out.store(x.load());
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [4], |_| (0,), fill = pad)] x: In<f32>,
    #[block([4] => [4], |_| (0,))] out: Out<f32>,
    pad: f32,
) {
    out.store(x.load());
}

fn main() {}

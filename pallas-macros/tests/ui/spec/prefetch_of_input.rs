use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[prefetch([B])] lens: In<i32>,
) {
    out.store(x.load() * lens.at(1).cast::<f32>());
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[fixed] w: &'static [f32],
) {
    let v = [1.0f32, 2.0];
    let mut acc = x.load();
    for j in 0..2 {
        acc += v[j];
        acc *= w[j];
    }
    out.store(acc);
}

fn main() {}

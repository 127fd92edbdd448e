use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut v = vec![x.load(); 2];
    for _ in 0..2 {
        for t in v.iter_mut() {
            *t = *t * 2.0;
        }
    }
    out.store(v[0] + v[1]);
}

fn main() {}

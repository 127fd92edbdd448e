use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut v = vec![x.load()];
    if program_id(0) == 0 {
        v.push(x.load());
    }
    out.store(v[0]);
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut n = 0usize;
    if program_id(0) == 0 {
        n += 1;
    }
    out.store(x.load() * n as f32);
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let n = if program_id(0) == 0 { 1usize } else { 2 };
    out.store(x.load() * n as f32);
}

fn main() {}

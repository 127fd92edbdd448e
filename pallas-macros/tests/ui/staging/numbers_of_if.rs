use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let y = if program_id(0) == 0 { 1.0 } else { 2.0 };
    out.store(x.load() * y);
}

fn main() {}

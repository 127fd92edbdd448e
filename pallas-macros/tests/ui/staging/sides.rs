use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let y = if program_id(0) == 0 { x.load() } else { x.load().cast::<i32>() };
    out.store(y);
}

fn main() {}

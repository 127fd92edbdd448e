use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let (y, z) = match program_id(0) {
        0 => (x.load(), 2),
        _ => (x.load() * 2.0, 3),
    };
    out.store(y * z as f32);
}

fn main() {}

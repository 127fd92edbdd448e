use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let i = 3u64 * program_id(0);
    out.store(x.load() + i.cast::<f32>());
}

fn main() {}

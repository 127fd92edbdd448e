use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 4)))]
fn k(
    #[block([N] => [4], |i| (i,))] x: In<f32>,
    #[block([N] => [4], |i| (i,))] out: Out<f32>,
    #[prefetch([B])] lens: Prefetch<i32>,
) {
    out.store(x.load() * lens.at((0, 0)).cast::<f32>());
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    struct P;
    let (a, b) = (P, P);
    if a == b {}
    if 1 < "x" {}
    out.store(x.load());
}

fn main() {}

use pallas_rt::prelude::*;

/// The last row of each block.
#[kernel(grid = (cdiv(N, B)))]
fn k<const B: usize>(
    #[block([N, D] => [B, D], |i| (i, 0))] x: In<f32>,
    #[block([G, D] => [1, D], |i| (i, 0))] out: Out<f32>,
    #[dim] G: usize,
) {
    out.store(x.load().slice([B, 0], [1, D]));
}

fn main() {}

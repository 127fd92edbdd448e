use pallas_rt::prelude::*;

#[kernel(grid = (B, cdiv(C, BC), cdiv(T, BT)))]
fn k<const BT: usize, const BC: usize>(
    #[block([B, T, C] => [_, BT, BC], |b, c, t| (b, c, t))] x: In<f32>,
    #[block([B, T, C] => [_, BT, BC], |b, c, t| (b, t, c))] out: Out<f32>,
) {
    out.store(x.load() * 2.0);
}

fn main() {}

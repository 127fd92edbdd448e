use pallas_rt::prelude::*;

fn clipped(t: Tile<f32>) -> Tile<f32> {
    select(t.gt(2.0), 2.0, t)
}

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    out.store(clipped(x.load()));
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 1.0, 2.0, 2.0]);
}

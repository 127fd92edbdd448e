use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, scale: f32, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    out.store(x.load() * scale);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x, 2.0), &[0.0, 2.0, 4.0, 6.0]);
}

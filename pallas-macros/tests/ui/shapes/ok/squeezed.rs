use pallas_rt::prelude::*;

#[kernel(grid = (B))]
fn k(#[block([B, N] => [_, N], |b| (b, 0))] x: In<f32>, #[block([B, N] => [_, N], |b| (b, 0))] out: Out<f32>) {
    out.store(x.load() - x.load().sum(0));
}

#[test]
fn runs() {
    crate::gives([&[2, 2]], |[x]| k(x), &[-1.0, 0.0, -3.0, -2.0]);
}

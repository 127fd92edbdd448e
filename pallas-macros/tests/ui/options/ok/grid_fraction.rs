use pallas_rt::prelude::*;

#[kernel(grid = (2))]
fn k(#[block([N] => [2], |i| (i,))] x: In<f32>, #[block([N] => [2], |i| (i,))] out: Out<f32>) {
    out.store(x.load() + 1.0);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[1.0, 2.0, 3.0, 4.0]);
}

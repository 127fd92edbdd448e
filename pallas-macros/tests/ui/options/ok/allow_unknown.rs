use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 4)), allow(overflow))]
fn k(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    out.store(x.load());
}

#[test]
fn runs() {
    crate::gives([&[3]], |[x]| k(x), &[0.0, 1.0, 2.0]);
}

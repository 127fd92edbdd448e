use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    out.store(2.0 * x.load());
    out.store(x.load());
}

#[test]
fn runs() {
    crate::gives([&[3]], |[x]| k(x), &[0.0, 1.0, 2.0]);
}

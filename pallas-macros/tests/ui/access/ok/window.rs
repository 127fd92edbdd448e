use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 4)))]
fn k(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    out.fill(0.0);
    out.at(ds(0, 3)).store(x.at(ds(1, 3)).load());
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[1.0, 2.0, 3.0, 0.0]);
}

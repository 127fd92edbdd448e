use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, 2), cdiv(N, 2)))]
fn k(#[block([M, N] => [2, 2], |i, j| (i, j))] x: In<f32>, #[block([M, N] => [2, 2], |i, j| (i, j))] out: Out<f32>) {
    out.store(x.load() * 2.0);
}

#[test]
fn runs() {
    crate::gives([&[2, 2]], |[x]| k(x), &[0.0, 2.0, 4.0, 6.0]);
}

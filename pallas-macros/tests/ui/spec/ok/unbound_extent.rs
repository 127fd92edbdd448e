use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 4)))]
fn k(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([M, N] => [1, 4], |i| (0, i))] out: Out<f32>, #[dim] M: usize) {
    out.store(x.load().expand(0));
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x, 1), &[0.0, 1.0, 2.0, 3.0]);
}

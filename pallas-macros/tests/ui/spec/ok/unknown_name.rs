use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BQ)))]
fn k<const BQ: usize>(#[block([N] => [BQ], |i| (i,))] x: In<f32>, #[block([N] => [BQ], |i| (i,))] out: Out<f32>) {
    out.store(x.load());
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k::<2>(x), &[0.0, 1.0, 2.0, 3.0]);
}

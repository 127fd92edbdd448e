use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BQ)), assume(BQ == BK))]
fn k<const BQ: usize, const BK: usize>(
    #[block([N] => [BQ], |i| (i,))] x: In<f32>,
    #[block([N] => [BK], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load().reshape([BK]));
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k::<4, 4>(x), &[0.0, 1.0, 2.0, 3.0]);
}

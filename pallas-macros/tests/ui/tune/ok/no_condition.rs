use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BN)), tune(BN = [4, 8]), tune_if = BN + 1 < 9)]
fn k<const BN: usize, const BK: usize>(
    #[block([N] => [BN], |i| (i,))] x: In<f32>,
    #[block([N] => [BN], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + BK as f32);
}

#[test]
fn runs() {
    crate::gives([&[3]], |[x]| k_tuned::<1>(x), &[1.0, 2.0, 3.0]);
}

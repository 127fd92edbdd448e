use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BN)), tune(BN = [4, 8], BK = [1, 2]), tune_if = BK > 1 && BN > BK)]
fn k<const BN: usize, const BK: usize>(
    #[block([N] => [BN], |i| (i,))] x: In<f32>,
    #[block([N] => [BN], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + BK as f32);
}

#[test]
fn runs() {
    crate::gives([&[3]], |[x]| k_tuned(x), &[2.0, 3.0, 4.0]);
}

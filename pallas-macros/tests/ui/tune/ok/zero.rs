use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BN)), tune(BN = [4, 8]))]
fn k<const BN: usize>(#[block([N] => [BN], |i| (i,))] x: In<f32>, #[block([N] => [BN], |i| (i,))] out: Out<f32>) {
    out.store(x.load());
}

#[test]
fn runs() {
    crate::gives([&[3]], |[x]| k_tuned(x), &[0.0, 1.0, 2.0]);
}

use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BN)))]
fn k<const BN: usize>(
    #[block([N] => [BN], |i| (i,), buffered = 2)] x: In<f32>,
    #[block([N] => [BN], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load());
}

#[test]
fn runs() {
    crate::gives([&[3]], |[x]| k::<2>(x), &[0.0, 1.0, 2.0]);
}

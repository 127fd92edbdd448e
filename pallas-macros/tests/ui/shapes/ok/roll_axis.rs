use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
) {
    out.store(x.load().roll(1, 1));
}

#[test]
fn runs() {
    crate::gives([&[2, 3]], |[x]| k::<1>(x), &[2.0, 0.0, 1.0, 5.0, 3.0, 4.0]);
}

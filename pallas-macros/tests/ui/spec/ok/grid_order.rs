use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, BN), cdiv(M, BM)))]
fn k<const BM: usize, const BN: usize>(
    #[block([M, N] => [BM, BN], |j, i| (i, j))] x: In<f32>,
    #[block([M, N] => [BM, BN], |j, i| (i, j))] out: Out<f32>,
) {
    out.store(x.load() * 2.0);
}

#[test]
fn runs() {
    crate::gives([&[2, 3]], |[x]| k::<1, 2>(x), &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
}

use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM), cdiv(N, BN)))]
fn k<const BM: usize, const BN: usize>(
    #[block([M, K] => [BM, K], |i, _| (i, 0))] a: In<f32>,
    #[block([K, N] => [K, BN], |_, j| (0, j))] b: In<f32>,
    #[block([M, N] => [BM, BN], |i, j| (i, j))] out: Out<f32>,
) {
    out.store(dot(a.load(), b.load()));
}

#[test]
fn runs() {
    crate::gives([&[2, 3], &[3, 2]], |[a, b]| k::<2, 1>(a, b), &[10.0, 13.0, 28.0, 40.0]);
}

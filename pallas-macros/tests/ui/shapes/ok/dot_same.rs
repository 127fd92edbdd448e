use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM), cdiv(N, BN)))]
fn k<const BM: usize, const BN: usize>(
    #[block([M, K] => [BM, K], |i, _| (i, 0))] a: In<f32>,
    #[block([K, N] => [K, BN], |_, j| (0, j))] b: In<f32>,
    #[block([M, N] => [BM, BN], |i, j| (i, j))] out: Out<f32>,
) {
    let squares = dot(a.load(), a.load().t()).sum([0, 1]);
    out.store(squares.broadcast([BM, BN]) * dot(a.load(), b.load()));
}

#[test]
fn runs() {
    crate::gives([&[2, 3], &[3, 2]], |[a, b]| k::<1, 2>(a, b), &[50.0, 65.0, 1400.0, 2000.0]);
}

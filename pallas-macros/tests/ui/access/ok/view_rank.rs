use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
) {
    out.fill(x.at((0, 0)).load());
}

#[test]
fn runs() {
    crate::gives([&[2, 3]], |[x]| k::<1>(x), &[0.0, 0.0, 0.0, 3.0, 3.0, 3.0]);
}

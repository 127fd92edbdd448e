use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
) {
    let one = x.load().take_along_axis(full([BM, 1], 1), 1);
    out.store(x.load() - one);
}

#[test]
fn runs() {
    crate::gives([&[2, 3]], |[x]| k::<1>(x), &[-1.0, 0.0, 1.0, -1.0, 0.0, 1.0]);
}

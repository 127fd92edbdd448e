use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
) {
    let best = x.load().argmax(1);
    out.store(x.load() * best.cast::<f32>());
}

#[test]
fn runs() {
    crate::gives([&[2, 3]], |[x]| k::<1>(x), &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
}

use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
) {
    let a = x.load().sum(1);
    let b = dot(x.load(), x.load().t()).sum(1);
    out.store(x.load().t().t());
    out.store(x.load() + a + b);
}

#[test]
fn runs() {
    crate::gives([&[2, 3]], |[x]| k::<1>(x), &[8.0, 9.0, 10.0, 65.0, 66.0, 67.0]);
}

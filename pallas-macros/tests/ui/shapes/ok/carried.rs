use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
) {
    let mut a = x.load();
    for _ in 0..2 {
        a = a.t().t() * 2.0;
    }
    out.store(a);
}

#[test]
fn runs() {
    crate::gives([&[2, 3]], |[x]| k::<1>(x), &[0.0, 4.0, 8.0, 12.0, 16.0, 20.0]);
}

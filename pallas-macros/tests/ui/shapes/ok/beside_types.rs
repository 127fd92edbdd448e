use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
) {
    let a = x.load() + program_id(0).cast::<f32>();
    out.store(a + x.load().sum(1));
}

#[test]
fn runs() {
    crate::gives([&[2, 3]], |[x]| k::<1>(x), &[3.0, 4.0, 5.0, 16.0, 17.0, 18.0]);
}

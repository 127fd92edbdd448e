use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
) {
    let y = if program_id(0) == 0 { x.load() } else { x.load().sum(1).broadcast([BM, N]) };
    out.store(y);
}

#[test]
fn runs() {
    crate::gives([&[2, 3]], |[x]| k::<1>(x), &[0.0, 1.0, 2.0, 12.0, 12.0, 12.0]);
}

use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(M, BM)))]
fn k<const BM: usize>(
    #[block([M, N] => [BM, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [BM, N], |i| (i, 0))] out: Out<f32>,
) {
    let mut a = x.load();
    if program_id(0) == 0 {
        a = a.sum(1).broadcast([BM, N]);
    }
    out.store(a);
}

#[test]
fn runs() {
    crate::gives([&[2, 3]], |[x]| k::<1>(x), &[3.0, 3.0, 3.0, 3.0, 4.0, 5.0]);
}

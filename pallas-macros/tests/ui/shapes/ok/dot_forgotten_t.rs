use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(S, BQ), cdiv(L, BK)))]
fn k<const BQ: usize, const BK: usize>(
    #[block([S, D] => [BQ, D], |i, _| (i, 0))] q: In<f32>,
    #[block([L, D] => [BK, D], |_, j| (j, 0))] k: In<f32>,
    #[block([S, L] => [BQ, BK], |i, j| (i, j))] out: Out<f32>,
) {
    out.store(dot(q.load(), k.load().t()));
}

#[test]
fn runs() {
    crate::gives([&[2, 2], &[2, 2]], |[a, b]| k::<1, 2>(a, b), &[1.0, 3.0, 3.0, 13.0]);
}

use pallas_rt::prelude::*;

#[kernel(grid = (1), assume(BQ == BK))]
fn k<const BQ: usize, const BK: usize>(
    #[block([S] => [BQ], |i| (i,))] x: In<f32>,
    #[block([S] => [BK], |i| (i,))] y: In<f32>,
    #[block([S] => [BQ], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}

#[test]
fn runs() {
    crate::gives([&[4], &[4]], |[x, y]| k::<4, 4>(x, y), &[0.0, 2.0, 4.0, 6.0]);
}

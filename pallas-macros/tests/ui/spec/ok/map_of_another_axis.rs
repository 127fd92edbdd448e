use pallas_rt::prelude::*;

#[kernel(grid = (B, cdiv(C, BC), cdiv(T, BT)))]
fn k<const BT: usize, const BC: usize>(
    #[block([B, T, C] => [_, BT, BC], |b, c, t| (b, t, c))] x: In<f32>,
    #[block([B, T, C] => [_, BT, BC], |b, c, t| (b, t, c))] out: Out<f32>,
) {
    out.store(x.load() * 2.0);
}

#[test]
fn runs() {
    crate::gives([&[1, 2, 3]], |[x]| k::<1, 2>(x), &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
}

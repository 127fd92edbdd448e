use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [2], |i| (i + first,))] x: In<f32>,
    #[block([2] => [2], |_| (0,))] out: Out<f32>,
    #[fixed] first: i32,
) {
    out.store(x.load());
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x, 1), &[2.0, 3.0]);
}

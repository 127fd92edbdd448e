use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[fixed] a: i32,
    #[fixed] b: i32,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
) {
    out.store(x.load() * a as f32 + b as f32);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x, 2, 1), &[1.0, 3.0, 5.0, 7.0]);
}

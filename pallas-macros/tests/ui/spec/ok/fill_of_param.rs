use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [4], |_| (0,), fill = pad)] x: In<f32>,
    #[block([4] => [4], |_| (0,))] out: Out<f32>,
    #[fixed] pad: f32,
) {
    out.store(x.load());
}

#[test]
fn runs() {
    crate::gives([&[3]], |[x]| k(x, 9.0), &[0.0, 1.0, 2.0, 9.0]);
}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut y = x.load();
    for _ in 0..2 {
        y = y * 2.0;
    }
    out.store(y);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 4.0, 8.0, 12.0]);
}

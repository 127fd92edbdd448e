use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut y = x.load();
    while (y < 2.0).any(0).item() {
        y += 1.0;
    }
    out.store(y);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[2.0, 3.0, 4.0, 5.0]);
}

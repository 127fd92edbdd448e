use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, #[fixed] all: bool) {
    let t = x.load();
    out.store(select(t > 0.0 || all, t, 0.0));
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x, true), &[0.0, 1.0, 2.0, 3.0]);
}

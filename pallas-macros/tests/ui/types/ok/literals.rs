use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let a = x.load() * 2.0;
    let b = x.load() > 0.0;
    let c = 2.0 * x.load();
    out.store(select(b, a, c));
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 2.0, 4.0, 6.0]);
}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mask = x.load() > iota::<f32>([N], 0);
    out.store(select(mask, x.load(), 0.0));
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 0.0, 0.0, 0.0]);
}

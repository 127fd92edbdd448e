use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let n = iota::<f32>([N], 0);
    out.store(x.load() + n);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 2.0, 4.0, 6.0]);
}

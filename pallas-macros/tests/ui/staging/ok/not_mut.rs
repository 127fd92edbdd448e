use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut acc = x.load();
    for _ in 0..4 {
        acc = acc + x.load();
    }
    out.store(acc);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 5.0, 10.0, 15.0]);
}

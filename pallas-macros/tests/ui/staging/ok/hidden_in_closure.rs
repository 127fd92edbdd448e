use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut acc = x.load();
    let add = |t: Tile<f32>| t + 1.0;
    for _ in 0..4 {
        acc = add(acc);
    }
    out.store(acc);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[4.0, 5.0, 6.0, 7.0]);
}

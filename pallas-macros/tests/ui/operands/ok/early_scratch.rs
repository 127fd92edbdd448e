use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[scratch([N])] sum: Scratch<f32>,
) {
    sum.fill(1.0);
    sum.store(sum.load() + x.load());
    out.store(sum.load());
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[1.0, 2.0, 3.0, 4.0]);
}

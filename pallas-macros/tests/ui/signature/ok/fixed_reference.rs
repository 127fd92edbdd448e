use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[fixed] weights: [usize; 2],
) {
    out.store(x.load() * weights[1] as f32);
}

#[test]
fn runs() {
    crate::gives([&[3]], |[x]| k(x, [5, 2]), &[0.0, 2.0, 4.0]);
}

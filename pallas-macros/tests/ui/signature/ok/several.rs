use pallas_rt::prelude::*;

#[kernel(grid = (1), semantics = (parallel))]
fn k(scale: f32, #[block([N])] y: In<f32>, #[block([N])] out: Out<f32>) {
    out.store(y.load() * scale);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(2.0, x), &[0.0, 2.0, 4.0, 6.0]);
}

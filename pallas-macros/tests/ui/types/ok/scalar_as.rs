use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let i = program_id(0).cast::<f32>() + 2.0;
    out.store(x.load() * i);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 2.0, 4.0, 6.0]);
}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let y = if program_id(0) == 0 { scalar(1.0f32) } else { scalar(2.0f32) };
    out.store(x.load() * y);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 1.0, 2.0, 3.0]);
}

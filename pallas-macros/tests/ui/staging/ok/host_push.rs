use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut v = [x.load()];
    if program_id(0) == 0 {
        v[0] = x.load() * 2.0;
    }
    out.store(v[0]);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 2.0, 4.0, 6.0]);
}

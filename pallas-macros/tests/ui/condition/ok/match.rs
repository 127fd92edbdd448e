use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    if program_id(0) == 0 {
        out.store(x.load());
    } else {
        out.store(x.load() * 2.0);
    }
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 1.0, 2.0, 3.0]);
}

#![deny(unused)]
use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut t = x.load();
    if program_id(0) == 0 {
        t += 2.0;
    }
    out.store(t);
}

#[test]
fn runs() {
    crate::gives([&[3]], |[x]| k(x), &[2.0, 3.0, 4.0]);
}

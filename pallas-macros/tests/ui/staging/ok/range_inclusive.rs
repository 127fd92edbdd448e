use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut acc = x.load();
    for _ in 0..=program_id(0) {
        acc += 1.0;
    }
    out.store(acc);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[1.0, 2.0, 3.0, 4.0]);
}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut n = scalar(0);
    let mut k = scalar(0);
    while k < 2 {
        n += 1;
        k += 1;
    }
    out.store(x.load() * (k + n).cast::<f32>());
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 4.0, 8.0, 12.0]);
}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [2], |_| (t.at(0),))] x: In<f32>,
    #[prefetch([1])] t: Prefetch<i32>,
    #[block([2] => [2], |_| (0,))] out: Out<f32>,
) {
    out.store(x.load());
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x, &crate::table(x, &[1])), &[2.0, 3.0]);
}

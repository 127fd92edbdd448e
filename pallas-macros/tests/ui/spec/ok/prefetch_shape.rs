use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[prefetch([B])] lens: Prefetch<i32>,
) {
    out.store(x.load() * lens.at(1).cast::<f32>());
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x, &crate::table(x, &[3, 2])), &[0.0, 2.0, 4.0, 6.0]);
}

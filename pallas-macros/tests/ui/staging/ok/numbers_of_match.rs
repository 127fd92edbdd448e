use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let (y, z) = match program_id(0) {
        0 => (x.load(), scalar(2)),
        _ => (x.load() * 2.0, scalar(3)),
    };
    out.store(y * z.cast::<f32>());
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 2.0, 4.0, 6.0]);
}

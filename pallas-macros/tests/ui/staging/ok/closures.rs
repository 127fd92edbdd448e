use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let steps: Vec<Box<dyn Fn(Tile<f32>) -> Tile<f32> + Sync>> = vec![Box::new(|t| t + 1.0)];
    let mut acc = x.load();
    for _ in 0..2 {
        acc = steps[0](acc);
    }
    out.store(acc);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[2.0, 3.0, 4.0, 5.0]);
}

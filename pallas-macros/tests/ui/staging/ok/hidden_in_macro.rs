use pallas_rt::prelude::*;

macro_rules! double {
    ($t:ident) => {
        $t * 2.0
    };
}

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut acc = x.load();
    for _ in 0..4 {
        acc = double!(acc);
    }
    out.store(acc);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 16.0, 32.0, 48.0]);
}

use pallas_rt::prelude::*;

struct Twice;

impl Twice {
    #[kernel(grid = (1))]
    fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
        out.store(x.load() * 2.0);
    }
}

fn call(x: &Array) -> Result<Array> {
    Twice::k(x)
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| call(x), &[0.0, 2.0, 4.0, 6.0]);
}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    macro_rules! twice {
        ($t:expr) => {
            $t * 2.0
        };
    }
    out.store(twice!(x.load()));
}

fn main() {}

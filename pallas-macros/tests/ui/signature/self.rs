use pallas_rt::prelude::*;

struct Scaled(f32);

impl Scaled {
    #[kernel(grid = (1))]
    fn k(&self, #[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
        out.store(x.load() * self.0);
    }
}

fn main() {}

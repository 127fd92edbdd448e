use pallas_rt::prelude::*;

struct Sums {
    tile: Tile<f32>,
}
impl Sums {
    fn add(&mut self, t: Tile<f32>) {
        self.tile = self.tile + t;
    }
}

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut sums = Sums { tile: x.load() };
    #[unroll]
    for _ in 0..2 {
        sums.add(x.load());
    }
    out.store(sums.tile);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 3.0, 6.0, 9.0]);
}

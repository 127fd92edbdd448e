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
    for _ in 0..2 {
        sums.add(x.load());
    }
    out.store(sums.tile);
}

fn main() {}

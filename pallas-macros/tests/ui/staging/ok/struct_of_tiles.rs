use pallas_rt::prelude::*;

struct Sums {
    tile: Tile<f32>,
}

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let sums = Sums { tile: x.load() };
    let mut tile = sums.tile;
    for _ in 0..2 {
        tile = tile + x.load();
    }
    out.store(tile);
}

#[test]
fn runs() {
    crate::gives([&[4]], |[x]| k(x), &[0.0, 3.0, 6.0, 9.0]);
}

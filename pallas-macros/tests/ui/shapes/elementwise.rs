use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k<const BQ: usize, const BK: usize>(
    #[block([S] => [BQ], |i| (i,))] x: In<f32>,
    #[block([S] => [BK], |i| (i,))] y: In<f32>,
    #[block([S] => [BQ], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}

fn main() {}

use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn k(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut k = scalar(0);
    while k < 3 {
        k += 1;
        if k == 2 {
            break;
        }
    }
    if program_id(0) == 0 {
        return;
    }
    out.store(x.load());
}

fn main() {}

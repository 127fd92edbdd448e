use pallas_rt::prelude::*;

// The default semantics are parallel: every program has a buffer of its own, and the first fills only its own.
#[kernel(grid = (R, cdiv(C, 4)))]
fn sums(
    #[block([R, C] => [_, 4], |r, j| (r, j), fill = 0.0)] x: In<f32>,
    #[block([R] => [1], |r, _| (r,))] out: Out<f32>,
    #[scratch([1])] sum: Scratch<f32>,
) {
    if program_id(1) == 0 {
        sum.fill(0.0);
    }
    sum.store(sum.load() + x.load().sum(0));
    if program_id(1) == num_programs(1) - 1 {
        out.store(sum.load());
    }
}

fn main() {}

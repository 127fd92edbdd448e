use pallas_rt::prelude::*;

#[kernel(grid = (R, cdiv(C, 4)), semantics = (parallel, arbitrary))]
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

#[test]
fn runs() {
    crate::gives([&[2, 6]], |[x]| sums(x), &[15.0, 51.0]);
}

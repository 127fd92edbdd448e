use pallas_rt::prelude::*;

// The last of the parallel programs stores, and no other.
#[kernel(grid = (R, cdiv(C, 4)))]
fn sums(
    #[block([R, C] => [_, 4], |r, j| (r, j), fill = 0.0)] x: In<f32>,
    #[block([R] => [1], |r, _| (r,))] out: Out<f32>,
) {
    if program_id(1) == num_programs(1) - 1 {
        out.store(x.load().sum(0));
    }
}

#[test]
fn runs() {
    crate::gives([&[2, 6]], |[x]| sums(x), &[9.0, 21.0]);
}

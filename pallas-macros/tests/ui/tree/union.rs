use pallas_rt::prelude::*;

#[derive(Clone, Copy)]
struct Step(u32);

#[derive(Clone, Copy, Tree)]
union State {
    step: Step,
    none: (),
}

fn main() {}

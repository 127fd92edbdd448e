use pallas_rt::prelude::*;

#[derive(Clone, Tree)]
struct Norm {
    gain: Array,
    #[tree(skip)]
    groups: u32,
}

fn main() {}

use pallas_rt::prelude::*;

#[derive(Clone, Tree)]
#[tree(fixed)]
struct Layer {
    weight: Array,
}

fn main() {}

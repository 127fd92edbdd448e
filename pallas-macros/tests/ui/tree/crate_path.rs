use pallas_rt::prelude::*;

#[derive(Clone, Tree)]
#[tree(crate = ::elsewhere)]
struct Layer {
    weight: Array,
}

fn main() {}

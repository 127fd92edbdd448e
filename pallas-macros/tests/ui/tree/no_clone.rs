use pallas_rt::prelude::*;

#[derive(Tree)]
struct Layer {
    weight: Array,
}

fn main() {}

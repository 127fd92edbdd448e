use pallas_rt::prelude::*;

#[derive(Clone, Tree)]
struct Layer {
    weight: Array,
    eps: Vec<u32>,
}

fn main() {}

use pallas_rt::prelude::*;

#[derive(Clone, Tree)]
struct Norm {
    gain: Array,
    #[tree(fixed)]
    eps: f32,
}

fn main() {}

use pallas_rt::prelude::*;

#[derive(Clone, Tree)]
enum Layer {
    #[tree(fixed)]
    Scaled(Array, u32),
}

fn main() {}

use pallas_rt::prelude::*;

fn names(x: &Array) -> Vec<String> {
    pallas_rt::tree::paths(&(x.clone(), "bias"))
}

fn main() {}

use pallas_rt::prelude::*;
use pallas_rt::jit;

fn twice(x: Array) -> Array {
    x * 2.0
}

pub fn doubled(x: &Array) -> Result<Array> {
    let double = jit(twice);
    double(x)
}

fn main() {}

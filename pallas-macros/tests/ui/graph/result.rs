use pallas_rt::prelude::*;
use pallas_rt::jit;

fn both(x: &Array) -> (Array, f32) {
    (x * 2.0, 2.0)
}

pub fn doubled(x: &Array) -> Result<Array> {
    let double = jit(both);
    Ok(double(x)?.0)
}

fn main() {}

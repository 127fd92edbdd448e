use pallas_rt::prelude::*;
use pallas_rt::jit;

pub fn doubled(x: &Array) -> Result<Array> {
    let double = jit(|x: Array| x * 2.0);
    double(x)
}

fn main() {}

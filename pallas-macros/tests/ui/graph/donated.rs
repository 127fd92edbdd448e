use pallas_rt::prelude::*;
use pallas_rt::jit_donating;

pub fn doubled(x: Array) -> Result<Array> {
    let double = jit_donating(|x: &Array| x * 2.0);
    Ok(double(x)? + x)
}

fn main() {}

use pallas_rt::prelude::*;
use pallas_rt::jit;

pub fn doubled(x: &Array) -> Result<Array> {
    let double = jit(|x: &Array| (x * 2.0, 2.0f32));
    Ok(double(x)?.0)
}

fn main() {}

use pallas_rt::prelude::*;
use pallas_rt::{Arg, jit};

pub fn doubled(x: Array) -> Result<Array> {
    let double = jit(|x: &Array| x * 2.0).donate_argnums(Arg::<0>);
    Ok(double(x)? + x)
}

fn main() {}

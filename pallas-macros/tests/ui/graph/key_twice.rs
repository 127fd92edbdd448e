use pallas_rt::prelude::*;
use pallas_rt::random::{self, Key};

pub fn noise(key: Key) -> Array {
    let other = key;
    random::normal(key, &[2], DType::F32) + random::normal(other, &[2], DType::F32)
}

fn main() {}

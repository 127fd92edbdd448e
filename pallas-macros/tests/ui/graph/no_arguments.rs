use pallas_rt::prelude::*;
use pallas_rt::grad;

fn square() -> Array {
    pallas_rt::ops::full(&[], 1.5, DType::F32).square()
}

pub fn slope(x: Array) -> Result<Array> {
    let slope = grad(square);
    slope(&x)
}

fn main() {}

use pallas_rt::prelude::*;
use pallas_rt::grad;

pub fn slope(x: Array) -> Result<Array> {
    let square = grad(move || (&x * &x).sum(..));
    square()
}

fn main() {}

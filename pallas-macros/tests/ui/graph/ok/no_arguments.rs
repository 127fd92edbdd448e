use pallas_rt::grad;
use pallas_rt::prelude::*;

fn square(x: &Array) -> Array {
    x.square().sum(..)
}

pub fn slope(x: Array) -> Result<Array> {
    let slope = grad(square);
    slope(&x)
}

#[test]
fn runs() {
    let x = Client::cpu().full(&[2], 1.5f32).expect("it fits");
    assert_eq!(slope(x).and_then(|y| y.to_vec::<f32>()), Ok(vec![3.0; 2]));
}

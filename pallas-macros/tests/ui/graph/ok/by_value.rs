use pallas_rt::jit;
use pallas_rt::prelude::*;

fn twice(x: &Array) -> Array {
    x * 2.0
}

pub fn doubled(x: &Array) -> Result<Array> {
    let double = jit(twice);
    double(x)
}

#[test]
fn runs() {
    let x = Client::cpu().full(&[2], 1.5f32).expect("it fits");
    assert_eq!(doubled(&x).and_then(|y| y.to_vec::<f32>()), Ok(vec![3.0; 2]));
}

use pallas_rt::jit;
use pallas_rt::prelude::*;

fn both(x: &Array) -> (Array, Array) {
    (x * 2.0, x.sum(..))
}

pub fn doubled(x: &Array) -> Result<Array> {
    let double = jit(both);
    Ok(double(x)?.0)
}

#[test]
fn runs() {
    let x = Client::cpu().full(&[2], 1.5f32).expect("it fits");
    assert_eq!(doubled(&x).and_then(|y| y.to_vec::<f32>()), Ok(vec![3.0; 2]));
}

use pallas_rt::prelude::*;
use pallas_rt::{Arg, jit};

pub fn doubled(x: Array) -> Result<Array> {
    let double = jit(|x: &Array| x * 2.0).donate_argnums(Arg::<0>);
    Ok(double(x.clone())? + x)
}

#[test]
fn runs() {
    let x = Client::cpu().full(&[2], 1.5f32).expect("it fits");
    assert_eq!(doubled(x).and_then(|y| y.to_vec::<f32>()), Ok(vec![4.5; 2]));
}

use pallas_rt::prelude::*;
use pallas_rt::random::{self, Key};

pub fn noise(key: Key) -> Array {
    let [key, other] = random::split(key);
    random::normal(key, &[2], DType::F32) + random::normal(other, &[2], DType::F32)
}

#[test]
fn runs() {
    assert_eq!(noise(random::key(0)).shape(), [2]);
}

use pallas_rt::prelude::*;

#[derive(Clone, Tree)]
struct Layer {
    weight: Array,
}

#[test]
fn runs() {
    let x = Client::cpu().full(&[2], 1.0f32).expect("it fits");
    assert_eq!(pallas_rt::tree::structure(&Layer { weight: x }).to_string(), "Layer { weight: * }");
}

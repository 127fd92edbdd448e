use pallas_rt::prelude::*;

#[derive(Clone, Tree)]
struct Layer {
    weight: Array,
    eps: Vec<Array>,
}

#[test]
fn runs() {
    let x = Client::cpu().full(&[2], 1.0f32).expect("it fits");
    assert_eq!(
        pallas_rt::tree::structure(&Layer { weight: x, eps: vec![] }).to_string(),
        "Layer { weight: *, eps: [] }"
    );
}

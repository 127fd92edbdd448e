use pallas_rt::prelude::*;

#[derive(Clone, Tree)]
enum Layer {
    Scaled(Array, #[tree(fixed)] u32),
}

#[test]
fn runs() {
    let x = Client::cpu().full(&[2], 1.0f32).expect("it fits");
    assert_eq!(pallas_rt::tree::structure(&Layer::Scaled(x, 2)).to_string(), "Layer::Scaled(1 = 2, *)");
}

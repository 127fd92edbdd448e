use pallas_rt::prelude::*;

#[derive(Clone, Tree)]
struct Norm {
    gain: Array,
    #[tree(fixed)]
    eps: u32,
}

#[test]
fn runs() {
    let x = Client::cpu().full(&[2], 1.0f32).expect("it fits");
    assert_eq!(
        pallas_rt::tree::structure(&Norm { gain: x, eps: 1e-5f32.to_bits() }).to_string(),
        format!("Norm {{ eps = {}, gain: * }}", 1e-5f32.to_bits())
    );
}

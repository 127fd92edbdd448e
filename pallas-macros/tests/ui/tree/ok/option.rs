use pallas_rt::prelude::*;

#[derive(Clone, Tree)]
struct Norm {
    gain: Array,
    #[tree(fixed)]
    groups: u32,
}

#[test]
fn runs() {
    let x = Client::cpu().full(&[2], 1.0f32).expect("it fits");
    assert_eq!(pallas_rt::tree::structure(&Norm { gain: x, groups: 4 }).to_string(), "Norm { groups = 4, gain: * }");
}

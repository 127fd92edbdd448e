use pallas_rt::prelude::*;

fn names(x: &Array) -> Vec<String> {
    pallas_rt::tree::paths(&(x.clone(), vec![x.clone()]))
}

#[test]
fn runs() {
    let x = Client::cpu().full(&[2], 1.0f32).expect("it fits");
    assert_eq!(names(&x), ["0", "1[0]"]);
}

use pallas_rt::prelude::*;

#[derive(Clone, Copy, Hash, Debug)]
struct Step(u32);

#[derive(Clone, Copy, Tree)]
enum State {
    Step(#[tree(fixed)] Step),
    None(()),
}

#[test]
fn runs() {
    let x = Client::cpu().full(&[2], 1.0f32).expect("it fits");
    assert_eq!(
        [State::Step(Step(3)), State::None(())].map(|s| pallas_rt::tree::structure(&(s, x.clone())).to_string()),
        ["(State::Step(0 = Step(3)), *)", "(State::None(()), *)"]
    );
}

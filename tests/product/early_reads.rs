//! Sums that one program begins for the others: refused at the first call on every client, however the condition is
//! spelled, at its line; the same bodies along an `arbitrary` axis run.
use pallas_rt::prelude::*;

/// A sum of ten elements in blocks of four, which begins where the block says, and the line of that block.
macro_rules! sums {
    ($($name:ident |$s:ident| { $($begin:tt)* })*) => {
        mod forgotten {
            use super::*;
            $(sum! { $name |$s| (parallel) { $($begin)* } })*
        }
        mod given {
            use super::*;
            $(sum! { $name |$s| (arbitrary) { $($begin)* } })*
        }
        #[test]
        fn every_spelling_is_judged() {
            for client in [Client::interpreter(), Client::cpu()] {
                let x = client.full(&[10], 1.0f32).expect("it fits");
                $(
                    let e = forgotten::$name(&x).expect_err(stringify!($name));
                    let text = e.to_string();
                    assert!(e.code() == "early-read", "{}: {e}", stringify!($name));
                    assert!(text.contains("early_reads.rs:") && text.contains("scratch `s` is begun by one program"), "{e}");
                    assert!(text.contains("help: steps that share memory run in order"), "{e}");
                    let found = given::$name(&x).and_then(|y| y.to_vec::<f32>());
                    assert_eq!(found.expect("steps in order"), [10.0], stringify!($name));
                )*
            }
        }
    };
}
macro_rules! sum {
    ($name:ident |$s:ident| ($semantics:ident) { $($begin:tt)* }) => {
        #[kernel(grid = (cdiv(N, 4)), semantics = ($semantics))]
        pub(super) fn $name(
            #[block([N] => [4], |i| (i,), fill = 0.0)] x: In<f32>,
            #[block([1] => [1], |_| (0,))] out: Out<f32>,
            #[scratch([1])] $s: Scratch<f32>,
        ) {
            $($begin)*
            $s.store($s.load() + x.load().sum(0));
            if program_id(0) == num_programs(0) - 1 {
                out.store($s.load());
            }
        }
    };
}
sums! {
    named |s| { let i = program_id(0); if i == 0 { s.fill(0.0); } }
    in_a_tuple |s| { let (i, _) = (program_id(0), 3); if i == 0 { s.fill(0.0); } }
    decided |s| { let first = program_id(0) == 0; if first { s.fill(0.0); } }
    matched |s| { match program_id(0) { 0 => s.fill(0.0), _ => {} } }
    below |s| { if program_id(0) < 1 { s.fill(0.0); } }
    sides |s| { if 0 == program_id(0) { s.fill(0.0); } }
    not_equal |s| { if program_id(0) != 0 {} else { s.fill(0.0); } }
    scaled |s| { if program_id(0) * 4 == 0 { s.fill(0.0); } }
    from_the_end |s| { if num_programs(0) - program_id(0) == num_programs(0) { s.fill(0.0); } }
    both |s| { if program_id(0) == 0 && num_programs(0) > 0 { s.fill(0.0); } }
    by_a_helper |s| { if is_first(program_id(0)) { s.fill(0.0); } }
    counted |s| { for i in 0..1 { if program_id(0) == i { s.fill(0.0); } } }
}
fn is_first(i: Scalar<i32>) -> Scalar<bool> {
    i.eq(0)
}

//! Looks at jitted functions: `check`, `explain` and `cost` at their kernels, and the search for NaN.
use super::*;
use crate::{check, cost, debug_nans, disable_jit, explain, vmap};

#[kernel(grid = (cdiv(N, 4)))]
fn scaled(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    out.store(x.load() * 2.0);
}
/// Reads beyond the array without a fill.
#[kernel(grid = (cdiv(N, 4)))]
fn wrong(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    out.store(x.load() + x.load().sum(0));
}
const WRONG: u32 = line!() - 2;
#[kernel(grid = (cdiv(N, 4)))]
fn rooted(#[block([N] => [4], |i| (i,), fill = 1.0)] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    let x = x.load();
    out.store((x - 1.0).sqrt() + x);
}
const ROOTED: u32 = line!() - 2;

fn ten() -> Array {
    array(&(0..10).map(|i| i as f32 + 1.0).collect::<Vec<_>>(), &[10])
}

#[test]
fn kernels_of_jitted_functions_are_checked() {
    let right = jit(|x: &Array| scaled(&(x + 1.0)).map(|y| y.sum(..)));
    assert_eq!(check(|| right(&ten())).expect("it is right").kernels, 1);
    let f = jit(|x: &Array| wrong(&(x + 1.0)).map(|y| y.sum(..)));
    let line = WRONG;
    let e = check(|| f(&ten())).expect_err("the last block reads beyond the array");
    assert!(e.code() == "poison" && e.to_string().contains(&format!("watched.rs:{line}:")), "{e}");
    assert!(e.to_string().contains("called at"), "{e}");
    // A call that is compiled by now, and one without `jit`.
    assert_eq!(check(|| f(&ten())).expect_err("still").code(), "poison");
    let guard = disable_jit();
    assert_eq!(check(|| f(&ten())).expect_err("still").code(), "poison");
    drop(guard);
    assert!(f(&ten()).is_ok(), "nothing looks any more");
}

#[test]
fn kernels_of_batches_are_checked() {
    let rows = ten().reshape(&[1, 10]);
    let f = jit(vmap(|x: &Array| wrong(x)));
    assert_eq!(check(|| f(&rows)).expect_err("the last block of the row").code(), "poison");
    let f = jit(vmap(|x: &Array| scaled(x)));
    assert_eq!(check(|| f(&rows)).expect("it is right").kernels, 1);
}

#[test]
fn kernels_of_jitted_functions_are_explained_and_counted() {
    let f = jit(|x: &Array| scaled(x).and_then(|y| scaled(&y)).map(|y| y.tanh()));
    let explained = explain(|| f(&ten())).expect("it is traced");
    let names: Vec<&str> = explained.kernels.iter().map(|k| k.name.as_str()).collect();
    assert_eq!(names, ["scaled", "scaled"]);
    assert_eq!(explained.kernels[0].grid, [3]);
    let (one, two) = (cost(|| scaled(ten())).expect("it is traced"), cost(|| f(&ten())).expect("it is traced"));
    assert!(one.flops > 0 && two.flops == 2 * one.flops && two.bytes_accessed == 2 * one.bytes_accessed, "{two:?}");
    let steps = jit(|x: &Array| crate::fori_loop(0..5, x, |_: &Array, x: &Array| scaled(x)));
    assert_eq!(cost(|| steps(&ten())).expect("it is traced").flops, 5 * one.flops, "one for each step");
}

/// A look at the kernels of a call.
type Look = fn(&dyn Fn() -> Result<Array>);

/// Nothing of a look stays: the first call compiles the function, and the kernels of a look do not run.
#[test]
fn a_function_that_was_explained_first_computes_afterwards() {
    let looks: [Look; 3] = [
        |f| assert_eq!(explain(f).expect("it is traced").kernels.len(), 1),
        |f| assert!(cost(f).expect("it is traced").flops > 0),
        |f| assert_eq!(check(f).expect("it is right").kernels, 1),
    ];
    for look in looks {
        let f = jit(|x: &Array| scaled(x).map(|y| y + 1.0));
        look(&|| f(&ten()));
        let expected: Vec<f32> = (1..11).map(|i| 2.0 * i as f32 + 1.0).collect();
        assert_eq!(f(&ten()).and_then(|y| y.to_vec::<f32>()).expect("it runs"), expected);
    }
}

#[test]
fn the_operation_that_makes_nan_is_named() {
    let f = jit(|x: &Array| {
        let difference = x - 3.0;
        let root = difference.sqrt();
        root.sum(..) * 2.0
    });
    let line = line!() - 3;
    assert!(f(&ten()).is_ok(), "nothing looks");
    let guard = debug_nans();
    let e = f(&ten()).expect_err("the root of -2");
    let text = e.to_string();
    assert!(e.code() == "nan" && text.contains(&format!("watched.rs:{line}:")), "{e}");
    assert!(text.contains("`sqrt` of -2") && text.contains("element [0] of f32[10]"), "{e}");
    // NaN that is given is nobody's fault, and functions without NaN run.
    assert!(f(&array(&[f32::NAN; 10], &[10])).is_ok());
    assert!(f(&(ten() + 2.0)).is_ok());
    // Operations at once, and gradients.
    let e = (ten() - 3.0).sqrt().to_vec::<f32>().expect_err("at once");
    assert!(e.code() == "nan" && e.to_string().contains("`sqrt` of -2"), "{e}");
    let slope = jit(grad(|x: &Array| (x - 1.0).abs().sqrt().sum(..) * 0.0));
    let e = slope(&ten()).expect_err("0 times infinity");
    assert_eq!(e.code(), "nan", "{e}");
    drop(guard);
    assert!(f(&ten()).is_ok());
}

#[test]
fn the_step_of_a_loop_that_makes_nan_is_named() {
    let f = jit(|x: &Array| crate::fori_loop(0..5, x, |_: &Array, x: &Array| (x - 1.0).sqrt()));
    let _guard = debug_nans();
    let e = f(&array(&[4.0], &[1])).expect_err("4, 1.73, 0.86, NaN");
    assert!(e.code() == "nan" && e.to_string().contains("in step 2 of a loop"), "{e}");
}

#[test]
fn the_operation_of_a_kernel_that_makes_nan_is_named() {
    let line = ROOTED;
    let f = jit(|x: &Array| rooted(&(x - 6.0)).map(|y| y * 2.0));
    let _guard = debug_nans();
    for e in [f(&ten()).expect_err("in a function"), rooted(&(ten() - 6.0)).expect_err("at once")] {
        let text = e.to_string();
        assert!(e.code() == "nan" && text.contains(&format!("watched.rs:{line}:")), "{e}");
        assert!(text.contains("`sqrt` of -6") && text.contains("program [0]"), "{e}");
    }
    assert!(f(&(ten() + 6.0)).is_ok());
}

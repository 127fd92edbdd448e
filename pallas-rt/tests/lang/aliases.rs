//! Outputs that alias an input: kernels that the interpreter accepts have the same result on every device.
use crate::both;
use pallas_rt::prelude::*;

/// Returns the error code of a call on the interpreter, `ok` without an error.
fn verdict(call: impl Fn(&Array) -> Result<Array>) -> String {
    let x = Client::interpreter().array(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &[8]).expect("it fits");
    call(&x).map_or_else(|e| e.code().to_string(), |_| "ok".to_string())
}
const X: [f32; 8] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];

#[kernel(grid = (cdiv(N, 2)))]
fn read_again(#[block([N] => [2], |i| (i,))] x: In<f32>, #[block([N] => [2], |i| (i,), alias = x)] out: Out<f32>) {
    out.store(x.load() + 100.0);
    out.store(out.load() + x.load());
}
#[kernel(grid = (cdiv(N, 2)))]
fn read_first(#[block([N] => [2], |i| (i,))] x: In<f32>, #[block([N] => [2], |i| (i,), alias = x)] out: Out<f32>) {
    let old = x.load();
    out.store(old + 100.0);
    out.store(out.load() + old);
}
/// Step i reads what step i - 1 stored.
#[kernel(grid = (cdiv(N, 2)), semantics = (arbitrary))]
fn shifted(
    #[block([N] => [2], |i| (max(i - 1, 0),))] x: In<f32>,
    #[block([N] => [2], |i| (i,), alias = x)] out: Out<f32>,
) {
    out.store(x.load() + 1.0);
}
/// Step i reads what step i + 1 will store.
#[kernel(grid = (cdiv(N, 2)), semantics = (arbitrary))]
fn shifted_back(
    #[block([N] => [2], |i| (min(i + 1, cdiv(N, 2) - 1),))] x: In<f32>,
    #[block([N] => [2], |i| (i,), alias = x)] out: Out<f32>,
) {
    out.store(x.load() + 1.0);
}
#[kernel(grid = (1))]
fn stencil(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([N] => [N], |_| (0,), alias = x)] out: Out<f32>) {
    for i in 1..7 {
        let around = x.at(ds(i - 1, 1)).load() + x.at(ds(i + 1, 1)).load();
        out.at(ds(i, 1)).store(around);
    }
}
/// The whole block is read before any of it is stored: reversed, rotated, summed with its neighbours.
#[kernel(grid = (cdiv(N, 4)))]
fn reversed(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,), alias = x)] out: Out<f32>) {
    let back = x.load().reverse(0);
    let first = x.at(ds(0, 2)).load();
    out.store(back * 10.0);
    out.at(ds(2, 2)).store(out.at(ds(0, 2)).load() + first);
}
/// Elements outside of the mask are unchanged, and may be read.
#[kernel(grid = (cdiv(N, 4)))]
fn partly(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,), alias = x)] out: Out<f32>) {
    let first = iota::<i32>([4], 0) < 2;
    out.store_masked(x.load() * 10.0, first);
    out.store_masked(x.load_masked(!first, 0.0) + 1.0, !first);
}

#[test]
fn an_aliased_input_is_read_before_its_memory_is_stored() {
    assert_eq!(verdict(|x| read_again(x)), "overwritten");
    assert_eq!(verdict(|x| shifted(x)), "overwritten");
    assert_eq!(verdict(|x| stencil(x)), "overwritten");
    // `check` reports the alias as the user's error, not as a difference between executions.
    let x = Client::cpu().array(&X, &[8]).expect("it fits");
    assert_eq!(check(|| read_again(&x)).expect_err("read after the store").code(), "overwritten");
    assert_eq!(both(X, |x| read_first(x)), X.map(|x| 2.0 * x + 100.0));
    assert_eq!(both(X, |x| shifted_back(x)), [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 8.0, 9.0]);
    assert_eq!(both(X, |x| reversed(x)), [40.0, 30.0, 41.0, 32.0, 80.0, 70.0, 85.0, 76.0]);
    assert_eq!(both(X, |x| partly(x)), [10.0, 20.0, 4.0, 5.0, 50.0, 60.0, 8.0, 9.0]);
}

#[kernel(grid = (cdiv(N, 2)))]
fn read_by_all(
    #[block([N] => [N], |_| (0,))] x: In<f32>,
    #[block([N] => [2], |i| (i,), alias = x)] out: Out<f32>,
    #[fixed] from: usize,
) {
    out.store(x.at(ds(from, 1)).load().broadcast([2]));
}
/// For every order of programs in the interpreter, and every owner of the element that all of them read.
#[test]
fn programs_that_read_what_one_of_them_stores_race() {
    for programs in 2..6 {
        for from in 0..2 * programs {
            let x = Client::interpreter().full(&[2 * programs], 1.0f32).expect("it fits");
            let e = read_by_all(&x, from).expect_err("program 0 stores what the others read");
            assert_eq!(e.code(), "race", "{programs} programs read element {from}: {e}");
        }
    }
}

/// A window that extends beyond its block where the mask is false.
#[kernel(grid = (1))]
fn beyond(
    #[block([N] => [N], |_| (0,))] x: In<f32>,
    #[block([N] => [N], |_| (0,))] out: Out<f32>,
    start: i32,
    live: i32,
) {
    out.store(x.load());
    let mask = iota::<i32>([4], 0) < live;
    let window = x.at(ds(start, 4)).load_masked(mask, 0.0);
    out.at(ds(start, 4)).store_masked(window * 10.0, mask);
}
#[test]
fn masked_elements_may_lie_outside_of_the_block() {
    assert_eq!(both(X, |x| beyond(x, 6, 2)), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 70.0, 80.0]);
    assert_eq!(both(X, |x| beyond(x, 4, 4)), [1.0, 2.0, 3.0, 4.0, 50.0, 60.0, 70.0, 80.0]);
    assert_eq!(both(X, |x| beyond(x, 20, 0)), X);
    assert_eq!(verdict(|x| beyond(x, 6, 3)), "view-range");
}

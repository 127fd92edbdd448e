//! Windows into blocks: indices, ranges, strides, masks, chains, exchange.
use crate::both;
use pallas_rt::prelude::*;

#[kernel(grid = (1))]
fn windows(#[block([N] => [8], |_i| (0,))] x: In<f32>, #[block([N] => [8], |_i| (0,))] out: Out<f32>, k: i32) {
    // Elements 1, 3, 5; of these the last two; one of them.
    let odd = x.at(strided(1, 3, 2));
    let pair = odd.at(ds(1, 2)).load();
    let one = odd.at(k).load().item();
    out.fill(one);
    out.at(ds(2, 2)).store(pair);
    out.at(7).store(x.at(k + 1).load());
    let old = out.at(ds(0, 2)).swap(x.at(ds(k, 2)).load());
    let live = iota::<i32>([2], 0).lt(1);
    out.at(ds(4, 2)).store_masked(old * 10.0, live);
    let masked = x.at(ds(6, 2)).load_masked(live, -1.0);
    out.at(ds(5, 2)).store(masked);
}

#[test]
fn windows_chain() {
    let x = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    // one = x[3]; pair = x[3], x[5]; x[2] at 7; x[1..3] at 0; 10 one at 4 (then 5.. overwritten by x[6], -1).
    assert_eq!(both(x, |x| windows(x, 1)), [1.0, 2.0, 3.0, 5.0, 30.0, 6.0, -1.0, 2.0]);
}

/// Rows by a run-time index, a squeezed dimension, the last block overhanging.
#[kernel(grid = (R, cdiv(N, 4)))]
fn rows(
    #[block([R, N] => [_, 4], |r, i| (r, i), fill = 0.0)] x: In<f32>,
    #[block([R, N] => [_, 4], |r, i| (r, i))] out: Out<f32>,
) {
    let inside = select(x.valid(0), 1.0, 0.0);
    out.store(x.load() * 10.0 + inside.sum(0));
}

#[test]
fn edges_are_masked() {
    for client in [Client::interpreter(), Client::cpu()] {
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let x = client.array(&values, &[2, 6]).expect("it fits");
        let y = rows(&x).and_then(|y| y.to_vec::<f32>()).expect("it runs");
        let expected: Vec<f32> = (0..12).map(|i| i as f32 * 10.0 + if i % 6 < 4 { 4.0 } else { 2.0 }).collect();
        assert_eq!(y, expected);
    }
}

/// Without a fill the interpreter refuses what lies outside; the CPU reads 0.
#[kernel(grid = (1))]
fn unfilled(
    #[block([N] => [4], |_i| (0,))] x: In<f32>,
    #[block([M] => [1], |_i| (0,))] out: Out<f32>,
    #[dim] M: usize,
) {
    out.store(x.load().sum(0));
}

#[test]
fn an_undefined_element_is_a_fault() {
    let run = |client: Client| {
        let x = client.array(&[1.0f32, 2.0, 3.0], &[3]).expect("it fits");
        unfilled(&x, 1).and_then(|y| y.to_vec::<f32>())
    };
    let error = run(Client::interpreter()).expect_err("poison reaches the output");
    assert_eq!(error.code(), "poison", "{error}");
}

/// A sum over sequential steps, of which the last block overhangs the array; only step `first` sets the sum to 0.
#[kernel(grid = (cdiv(N, 4)), semantics = (arbitrary))]
fn ragged_sum(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([1] => [1], |_| (0,))] out: Out<f32>, first: i32) {
    if program_id(0) == first {
        out.fill(0.0);
    }
    out.store(out.load() + x.load().sum(0));
}

#[test]
fn the_hint_for_an_undefined_sum_fits_what_is_undefined() {
    let hint = |first: i32| {
        let x = Client::interpreter().array(&[1.0f32; 6], &[6]).expect("it fits");
        let e = ragged_sum(&x, first).expect_err("poison reaches the output");
        assert_eq!(e.code(), "poison", "{e}");
        e.to_string()
    };
    let ragged = hint(0);
    assert!(ragged.contains("declare `fill = ..`") && !ragged.contains("arbitrary"), "{ragged}");
    let begun = hint(1);
    assert!(begun.contains("element [0] of `out` (block [0]), which was read before it was stored"), "{begun}");
    assert!(begun.contains("arbitrary"), "{begun}");
}

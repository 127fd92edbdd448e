//! Grids: program ids, prefetched tables, accumulation over sequential axes, several outputs.
use crate::both;
use pallas_rt::prelude::*;

/// Sums the row's blocks in scratch; the count of programs is a constant where literals size it.
#[kernel(grid = (cdiv(N, 2)), semantics = (arbitrary))]
fn total(
    #[block([N] => [2], |i| (i,), fill = 0.0)] x: In<f32>,
    #[block([M] => [M], |_i| (0,))] out: Out<f32>,
    #[scratch([2])] acc: Scratch<f32>,
    #[dim] M: usize,
) {
    if program_id(0) == 0 {
        acc.fill(0.0);
    }
    acc.store(acc.load() + x.load());
    if program_id(0) == num_programs(0) - 1 {
        out.store(acc.load().sum(0).broadcast([M]));
    }
}

#[test]
fn scratch_lives_over_sequential_steps() {
    assert_eq!(both([1.0, 2.0, 3.0, 4.0, 5.0], |x| total(x, 3)), [15.0; 3]);
}

/// Blocks chosen by a table, lengths read in the body.
#[kernel(grid = (B))]
fn chosen(
    #[prefetch([B])] table: Prefetch<i32>,
    #[block([N] => [2], |b| (table.at(b),))] x: In<f32>,
    #[block([B, W] => [_, 2], |b| (b, 0))] out: Out<f32>,
    #[dim] W: usize,
) {
    let row = table.at(program_id(0)).cast::<f32>();
    out.store(x.load() + row * 100.0);
}

#[test]
fn tables_choose_blocks() {
    for client in [Client::interpreter(), Client::cpu()] {
        let table = client.array(&[2i32, 0, 1], &[3]).expect("it fits");
        let x = client.array(&[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0], &[6]).expect("it fits");
        let y = chosen(&table, &x, 2).and_then(|y| y.to_vec::<f32>()).expect("it runs");
        assert_eq!(y, [204.0, 205.0, 0.0, 1.0, 102.0, 103.0]);
    }
}

/// Two outputs, in the order of the parameters.
#[kernel(grid = (cdiv(N, 2)))]
fn split(
    #[block([N] => [2], |i| (i,))] x: In<f32>,
    #[block([N] => [2], |i| (i,))] low: Out<f32>,
    #[block([N] => [2], |i| (i,))] high: Out<f32>,
) {
    low.store(x.load().minimum(2.0));
    high.store(x.load().maximum(2.0));
}

#[test]
fn several_outputs() {
    for client in [Client::interpreter(), Client::cpu()] {
        let x = client.array(&[1.0f32, 2.0, 3.0, 4.0], &[4]).expect("it fits");
        let (low, high) = split(&x).expect("it runs");
        assert_eq!(low.to_vec::<f32>().expect("f32"), [1.0, 2.0, 2.0, 2.0]);
        assert_eq!(high.to_vec::<f32>().expect("f32"), [2.0, 2.0, 3.0, 4.0]);
    }
}

//! Sums of products in scratch need neither be zeros first nor be copied where they end, but only where nobody can
//! tell.
//!
//! The shortcuts are the CPU's, for blocks too large for code that keeps them in registers; elements are small
//! integers, whose sums are the same in any order.
use pallas_rt::prelude::*;

/// One or two blocks along each axis, whole or not, and one to three turns.
const SIZES: [[usize; 3]; 5] = [[128, 256, 12], [64, 256, 8], [71, 130, 10], [64, 128, 4], [1, 256, 9]];

#[kernel(grid = (cdiv(M, 64), cdiv(N, 128), cdiv(K, 4)), semantics = (parallel, parallel, arbitrary))]
fn plain(
    #[block([M, K] => [64, 4], |i, _, p| (i, p), fill = 0.0)] a: In<f32>,
    #[block([K, N] => [4, 128], |_, j, p| (p, j), fill = 0.0)] b: In<f32>,
    #[block([M, N] => [64, 128], |i, j, _| (i, j))] out: Out<f32>,
    #[scratch([64, 128])] sums: Scratch<f32>,
) {
    if program_id(2) == 0 {
        sums.fill(0.0);
    }
    sums.store(sums.load() + dot(a.load(), b.load()));
    if program_id(2) == num_programs(2) - 1 {
        out.store(sums.load());
    }
}

/// What is stored is not what was summed.
#[kernel(grid = (cdiv(M, 64), cdiv(N, 128), cdiv(K, 4)), semantics = (parallel, parallel, arbitrary))]
fn changed(
    #[block([M, K] => [64, 4], |i, _, p| (i, p), fill = 0.0)] a: In<f32>,
    #[block([K, N] => [4, 128], |_, j, p| (p, j), fill = 0.0)] b: In<f32>,
    #[block([M, N] => [64, 128], |i, j, _| (i, j))] out: Out<f32>,
    #[scratch([64, 128])] sums: Scratch<f32>,
) {
    if program_id(2) == 0 {
        sums.fill(0.0);
    }
    sums.store(sums.load() + dot(a.load(), b.load()));
    if program_id(2) == num_programs(2) - 1 {
        out.store(sums.load() * 2.0 + 1.0);
    }
}

/// The first rows alone are stored, over what is there.
#[kernel(grid = (cdiv(M, 64), cdiv(N, 128), cdiv(K, 4)), semantics = (parallel, parallel, arbitrary))]
fn first_rows(
    #[block([M, K] => [64, 4], |i, _, p| (i, p), fill = 0.0)] a: In<f32>,
    #[block([K, N] => [4, 128], |_, j, p| (p, j), fill = 0.0)] b: In<f32>,
    #[block([M, N] => [64, 128], |i, j, _| (i, j))] before: In<f32>,
    #[block([M, N] => [64, 128], |i, j, _| (i, j), alias = before)] out: Out<f32>,
    #[scratch([64, 128])] sums: Scratch<f32>,
) {
    if program_id(2) == 0 {
        sums.fill(0.0);
    }
    sums.store(sums.load() + dot(a.load(), b.load()));
    if program_id(2) == num_programs(2) - 1 && program_id(0) == 0 {
        out.store(sums.load());
    }
}

/// A turn that is known late is stored, over what is there.
#[kernel(grid = (cdiv(M, 64), cdiv(N, 128), cdiv(K, 4)), semantics = (parallel, parallel, arbitrary))]
fn one_turn(
    #[block([M, K] => [64, 4], |i, _, p| (i, p), fill = 0.0)] a: In<f32>,
    #[block([K, N] => [4, 128], |_, j, p| (p, j), fill = 0.0)] b: In<f32>,
    #[block([M, N] => [64, 128], |i, j, _| (i, j))] before: In<f32>,
    #[block([M, N] => [64, 128], |i, j, _| (i, j), alias = before)] out: Out<f32>,
    #[scratch([64, 128])] sums: Scratch<f32>,
    at: i32,
) {
    if program_id(2) == 0 {
        sums.fill(0.0);
    }
    sums.store(sums.load() + dot(a.load(), b.load()));
    if program_id(2) == at {
        out.store(sums.load());
    }
}

/// Added to what the output's memory has until then.
#[kernel(grid = (cdiv(M, 64), cdiv(N, 128), cdiv(K, 4)), semantics = (parallel, parallel, arbitrary))]
fn added(
    #[block([M, K] => [64, 4], |i, _, p| (i, p), fill = 0.0)] a: In<f32>,
    #[block([K, N] => [4, 128], |_, j, p| (p, j), fill = 0.0)] b: In<f32>,
    #[block([M, N] => [64, 128], |i, j, _| (i, j))] before: In<f32>,
    #[block([M, N] => [64, 128], |i, j, _| (i, j), alias = before)] out: Out<f32>,
    #[scratch([64, 128])] sums: Scratch<f32>,
    #[scratch([64, 128])] rest: Scratch<f32>,
) {
    if program_id(2) == 0 {
        sums.fill(0.0);
    }
    sums.store(sums.load() + dot(a.load(), b.load()));
    if program_id(2) == num_programs(2) - 1 {
        rest.store(before.load());
    }
    if program_id(2) == num_programs(2) - 1 {
        out.store(sums.load());
    }
    if program_id(2) == num_programs(2) - 1 {
        out.store(out.load() + rest.load());
    }
}

/// The block that is stored last is, in the first turn, that of another program.
#[kernel(grid = (cdiv(M, 64), cdiv(N, 128), cdiv(K, 4)), semantics = (parallel, parallel, arbitrary))]
fn moving(
    #[block([M, K] => [64, 4], |i, _, p| (i, p), fill = 0.0)] a: In<f32>,
    #[block([K, N] => [4, 128], |_, j, p| (p, j), fill = 0.0)] b: In<f32>,
    #[block([M, N] => [64, 128], |i, j, p| (i, (j + p) % num_programs(1)))] out: Out<f32>,
    #[scratch([64, 128])] sums: Scratch<f32>,
) {
    if program_id(2) == 0 {
        sums.fill(0.0);
    }
    sums.store(sums.load() + dot(a.load(), b.load()));
    if program_id(2) == num_programs(2) - 1 {
        out.store(sums.load());
    }
}

/// Sums begin anew in a turn that is known late, and one turn adds nothing.
#[kernel(grid = (cdiv(M, 64), cdiv(N, 128), cdiv(K, 4)), semantics = (parallel, parallel, arbitrary))]
fn in_some_turns(
    #[block([M, K] => [64, 4], |i, _, p| (i, p), fill = 0.0)] a: In<f32>,
    #[block([K, N] => [4, 128], |_, j, p| (p, j), fill = 0.0)] b: In<f32>,
    #[block([M, N] => [64, 128], |i, j, _| (i, j))] out: Out<f32>,
    #[scratch([64, 128])] again: Scratch<f32>,
    #[scratch([64, 128])] some: Scratch<f32>,
    at: i32,
) {
    if program_id(2) == 0 {
        again.fill(3.0);
        some.fill(0.0);
    }
    if program_id(2) == at {
        again.fill(0.0);
    }
    again.store(again.load() + dot(a.load(), b.load()));
    if program_id(2) != at {
        some.store(some.load() + dot(a.load(), b.load()));
    }
    if program_id(2) == num_programs(2) - 1 {
        out.store(again.load() + some.load() * 0.5);
    }
}

/// The zeros are read: by the product itself, by what comes before it, and as they are.
#[kernel(grid = (cdiv(M, 64), cdiv(N, 128), cdiv(K, 4)), semantics = (parallel, parallel, arbitrary))]
fn read_before(
    #[block([M, K] => [64, 4], |i, _, p| (i, p), fill = 0.0)] a: In<f32>,
    #[block([K, N] => [4, 128], |_, j, p| (p, j), fill = 0.0)] b: In<f32>,
    #[block([M, N] => [64, 128], |i, j, _| (i, j))] out: Out<f32>,
    #[scratch([64, 64])] own: Scratch<f32>,
    #[scratch([64, 128])] early: Scratch<f32>,
    #[scratch([64, 128])] late: Scratch<f32>,
) {
    if program_id(2) == 0 {
        own.fill(0.0);
    }
    if program_id(2) == 0 {
        early.fill(0.0);
    }
    if program_id(2) == 0 {
        late.fill(0.0);
    }
    let sums = own.load();
    own.store(sums + dot(sums, sums));
    let sums = early.load();
    let more = sums.sum(1);
    early.store(sums + dot(a.load(), b.load()));
    let sums = late.load();
    let first = sums.slice([0, 0], [1, 128]);
    late.store(sums + dot(a.load(), b.load() + first));
    if program_id(2) == num_programs(2) - 1 {
        out.store(early.load() + late.load() + more + own.load().sum(1));
    }
}

/// Elements from 0 to 6.
fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 31 + seed * 17) % 7) as f32).collect()
}

#[test]
fn sums_of_products_are_what_they_are_without_shortcuts() {
    let mut found: Vec<Vec<Vec<f32>>> = vec![];
    for client in [Client::interpreter(), Client::cpu()] {
        let mut results = vec![];
        for [m, n, k] in SIZES {
            let array = |rows: usize, columns: usize, seed: usize| {
                client.array(&numbers(rows * columns, seed), &[rows, columns]).expect("it fits")
            };
            let (a, b, before) = (array(m, k, 1), array(k, n, 2), array(m, n, 3));
            // Twice each: scratch then holds what the last programs left there.
            for turn in 0..2 {
                for result in [
                    plain(&a, &b),
                    changed(&a, &b),
                    first_rows(&a, &b, &before),
                    one_turn(&a, &b, &before, turn),
                    added(&a, &b, &before),
                    moving(&a, &b),
                    in_some_turns(&a, &b, turn),
                    in_some_turns(&a, &b, 2),
                    read_before(&a, &b),
                ] {
                    results.push(result.expect("it runs").to_vec::<f32>().expect("f32"));
                }
            }
            let rows = (0..m * n).map(|at| {
                let (x, y) = (numbers(m * k, 1), numbers(k * n, 2));
                (0..k).map(|p| x[at / n * k + p] * y[p * n + at % n]).sum::<f32>()
            });
            assert_eq!(results[results.len() - 9], rows.collect::<Vec<f32>>(), "{client:?} {m} {n} {k}");
        }
        found.push(results);
    }
    for (at, (result, expected)) in found[1].iter().zip(&found[0]).enumerate() {
        assert!(result == expected, "result {at}");
    }
}

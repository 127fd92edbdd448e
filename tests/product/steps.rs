//! Sequential ranges longer than a driver's loop limit: several dispatches, one result.
use crate::support::{clients, gpu};
use pallas_rt::prelude::*;

/// Running sums; `before` keeps the sum of the blocks so far.
#[kernel(grid = (cdiv(N, B)), semantics = (arbitrary))]
fn running<const B: usize>(
    #[block([N] => [B], |i| (i,), fill = 0)] x: In<i32>,
    #[block([N] => [B], |i| (i,))] out: Out<i32>,
    #[scratch([1])] before: Scratch<i32>,
) {
    if program_id(0) == 0 {
        before.fill(0);
    }
    let x = x.load();
    out.store(x.cumsum(0) + before.load());
    before.store(before.load() + x.sum(0));
}

/// The sum of every row and of all rows above it.
#[kernel(grid = (P, R, C), semantics = (parallel, arbitrary, arbitrary))]
fn rows_above(
    #[block([P, R, C] => [_, 1, 1], |p, r, c| (p, r, c))] x: In<i32>,
    #[block([P, R] => [_, 1], |p, r, _| (p, r))] out: Out<i32>,
    #[scratch([1, 1])] sum: Scratch<i32>,
) {
    if program_id(1) == 0 && program_id(2) == 0 {
        sum.fill(0);
    }
    sum.store(sum.load() + x.load());
    if program_id(2) == num_programs(2) - 1 {
        out.store(sum.load().reshape([1]));
    }
}

/// `x + n`, one by one.
#[kernel(grid = (N))]
fn counting(#[block([N] => [1], |i| (i,))] x: In<i32>, #[block([N] => [1], |i| (i,))] out: Out<i32>, n: i32) {
    let mut sum = x.load();
    for _ in 0..n {
        sum += 1;
    }
    out.store(sum);
}

/// A weighted sum of the rows so far, the last one first, which begins anew at a step.
#[kernel(grid = (T), semantics = (arbitrary))]
fn begun_again<const B: usize>(
    #[block([T, N] => [_, B], |t| (num_programs(0) - 1 - t, 0))] x: In<f32>,
    #[block([T, N] => [_, B], |t| (t, 0))] out: Out<f32>,
    #[scratch([B])] sum: Scratch<f32>,
    at: i32,
) {
    if program_id(0) == 0 {
        sum.fill(0.0);
    }
    if program_id(0) == at {
        sum.fill(8.0);
    }
    sum.store(sum.load() * 0.5 + x.load());
    out.store(sum.load());
}

#[test]
fn a_branch_may_be_taken_in_any_step() {
    let (steps, columns) = (20usize, 4usize);
    let x: Vec<f32> = (0..steps * columns).map(|i| (i % 13) as f32).collect();
    for client in clients() {
        let rows = client.array(&x, &[steps, columns]).expect("it fits");
        for at in [-1, 0, 1, 2, 11, 18, 19, 20] {
            let (mut sum, mut want) = (vec![0.0f32; columns], vec![]);
            for step in 0..steps {
                if step as i32 == at {
                    sum.fill(8.0);
                }
                let row = &x[(steps - 1 - step) * columns..][..columns];
                sum.iter_mut().zip(row).for_each(|(sum, x)| *sum = *sum * 0.5 + x);
                want.extend_from_slice(&sum);
            }
            let found = begun_again::<4>(&rows, at).expect("it runs").to_vec::<f32>();
            assert_eq!(found, Ok(want), "{client:?}, at step {at}");
        }
    }
}

#[test]
fn ranges_over_the_loop_limit_take_several_dispatches() {
    let (blocks, p, r, c) = (30_001usize, 2usize, 5usize, 9_001usize);
    let data: Vec<i32> = (0..2 * blocks as i32 - 1).map(|i| i % 7 - 3).collect();
    let mut sum = 0;
    let sums: Vec<i32> = data
        .iter()
        .map(|x| {
            sum += x;
            sum
        })
        .collect();
    let table: Vec<i32> = (0..(p * r * c) as i32).map(|i| i % 5 - 1).collect();
    let above: Vec<i32> = (0..p * r).map(|i| table[i / r * r * c..(i + 1) * c].iter().sum()).collect();
    for client in clients().into_iter().skip(1) {
        let x = client.array(&data, &[data.len()]).expect("it fits");
        assert_eq!(running::<2>(&x).expect("it runs").to_vec::<i32>(), Ok(sums.clone()), "{client:?}");
        let x = client.array(&table, &[p, r, c]).expect("it fits");
        assert_eq!(rows_above(&x).expect("it runs").to_vec::<i32>(), Ok(above.clone()), "{client:?}");
    }
}

#[test]
fn a_step_over_the_loop_limit_is_refused_by_name() {
    let Some(gpu) = gpu() else { return };
    let zero = gpu.array(&[0], &[1]).expect("it fits");
    let run = |n: i32| counting(&zero, n).and_then(|out| out.to_vec::<i32>());
    assert_eq!(run(1000), Ok(vec![1000]));
    match gpu.target().max_loop_iterations {
        None => assert_eq!(run(100_000), Ok(vec![100_000])),
        Some(limit) => {
            assert_eq!(run(limit as i32 / 16), Ok(vec![limit as i32 / 16]));
            let error = run(limit as i32).expect_err("the driver would stop it").to_string();
            let names = [&format!("needs the {limit} loop iterations"), "llvmpipe", "or the CPU"];
            assert!(names.iter().all(|name| error.contains(*name)), "{error}");
        }
    }
    assert_eq!(run(7), Ok(vec![7]), "the client works on");
}

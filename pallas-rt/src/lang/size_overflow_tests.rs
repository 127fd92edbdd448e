//! Sizes that fit an i32 but have terms that do not: the launch computes them once, and every device runs with its
//! numbers.
use super::random::gpus;
use crate::prelude::*;

fn clients() -> Vec<Client> {
    [Client::interpreter(), Client::cpu()].into_iter().chain(gpus()).collect()
}

/// Two arrays of 65,536 ones, whose lengths multiply to 2^32.
fn ones(client: &Client) -> Result<(Array, Array)> {
    Ok((client.full(&[65_536], 1i32)?, client.full(&[65_536], 1i32)?))
}

/// Stores the number of its steps in `out[0]`, and the number that `num_programs` gives in `out[1]`.
#[kernel(grid = (cdiv(N * M, 67108864)), semantics = (arbitrary))]
fn steps(
    #[block([N] => [1], |_| (0,))] x: In<i32>,
    #[block([M] => [1], |_| (0,))] y: In<i32>,
    #[block([2] => [2], |_| (0,))] out: Out<i32>,
) {
    if program_id(0) == 0 {
        out.fill(0);
    }
    out.at(0..1).store(out.at(0..1).load() + (x.load() * y.load()));
    out.at(1..2).store(x.load() * y.load() * num_programs(0));
}

/// Stores the number of programs in an array that has a row for each, as many as a term beyond 32 bits gives.
#[kernel(grid = (cdiv(N * M, 67108864)))]
fn number(
    #[block([N] => [1], |_| (0,))] x: In<i32>,
    #[block([M] => [1], |_| (0,))] y: In<i32>,
    #[block([cdiv(N * M, 67108864), 3] => [_, 3], |i| (i, 0))] out: Out<i32>,
) {
    out.store((x.load() * y.load() * num_programs(0)).broadcast([3]));
}

/// Sums up to 2^31 - 1 elements in one step.
#[kernel(grid = (cdiv(K, 2147483647)), semantics = (arbitrary))]
fn whole(#[block([K] => [K], |_| (0,))] x: In<f32>, #[block([1] => [1], |_| (0,))] out: Out<f32>) {
    out.fill(x.load().sum(0));
}

#[test]
fn the_grid_has_the_extents_of_the_launch() {
    for client in clients() {
        let (x, y) = ones(&client).expect("they fit");
        assert_eq!(steps(&x, &y).and_then(|y| y.to_vec::<i32>()), Ok(vec![64, 64]), "{client:?}");
        let all = number(&x, &y).expect("it runs");
        assert_eq!((all.shape(), all.to_vec::<i32>()), (&[64, 3][..], Ok(vec![64; 192])), "{client:?}");
        let six = client.full(&[6], 1.0f32).and_then(|x| whole(&x)).and_then(|y| y.to_vec::<f32>());
        assert_eq!(six, Ok(vec![6.0]), "{client:?}");
    }
}

/// Adds 1 to the 8 blocks of each parallel program. If the number of steps were wrong, programs on other threads would
/// change the same blocks.
#[kernel(grid = (16, 72 - cdiv(N * M, 67108864)), semantics = (parallel, arbitrary))]
fn count(
    #[block([N] => [1], |_, _| (0,))] x: In<i32>,
    #[block([M] => [1], |_, _| (0,))] y: In<i32>,
    #[block([K] => [512], |p, s| (p * 8 + s,))] zeros: In<i32>,
    #[block([K] => [512], |p, s| (p * 8 + s,), alias = zeros)] out: Out<i32>,
) {
    out.store(out.load() + x.load() * y.load());
}

#[test]
fn programs_keep_to_their_own_blocks() {
    for client in clients() {
        let (x, y) = ones(&client).expect("they fit");
        let zeros = client.zeros(&[16 * 8 * 512], DType::I32).expect("it fits");
        let counts = count(&x, &y, zeros).and_then(|y| y.to_vec::<i32>()).expect("it runs");
        assert!(counts.iter().all(|&n| n == 1), "{client:?}: {:?}", counts.iter().max());
    }
}

#[kernel(grid = (cdiv(N * N * N * N, M * M * M * M)))]
fn beyond(#[block([N] => [1], |_| (0,))] x: In<i32>, #[block([M] => [1], |i| (i,))] out: Out<i32>, #[dim] M: usize) {
    out.store(x.load());
}

#[kernel(grid = (cdiv(N, M - 4)))]
fn divided(#[block([N] => [1], |_| (0,))] x: In<i32>, #[block([M] => [1], |i| (i,))] out: Out<i32>, #[dim] M: usize) {
    out.store(x.load());
}

#[kernel(grid = (1, cdiv(N - 10, 4) + 1), semantics = (parallel, arbitrary))]
fn negative(#[block([N] => [1], |_, _| (0,))] x: In<i32>, #[block([1] => [1], |_, _| (0,))] out: Out<i32>) {
    out.store(x.load());
}

#[test]
fn sizes_that_can_not_be_computed_are_refused() {
    for client in clients() {
        let x = |n: usize| client.full(&[n], 1i32).expect("it fits");
        let code = |result: Result<Array>| result.and_then(|y| y.to_vec::<i32>()).map_err(|e| e.code());
        assert_eq!(code(beyond(x(65_536), 65_536)), Err("size"), "2^64 / 2^64 on {client:?}");
        for m in [3, 4] {
            assert_eq!(code(divided(x(8), m)), Err("size"), "division by {m} - 4 on {client:?}");
        }
        // Quotients are rounded up on both sides of 0.
        assert_eq!(code(negative(x(2))), Err("grid"), "-2 + 1 on {client:?}");
        assert_eq!(negative(x(9)).map(|y| y.shape().to_vec()), Ok(vec![1]), "0 + 1 on {client:?}");
    }
}

/// Program i writes its number to block i * 2^20: the array has one block, so programs other than 0 write nothing.
#[kernel(grid = (1025))]
fn far(
    #[block([N] => [4096], |i| (i * 1048576,))] x: In<f32>,
    #[block([N] => [4096], |i| (i * 1048576,))] out: Out<f32>,
) {
    out.store(x.load() * 0.0 + program_id(0).cast::<f32>());
}

/// Reads a block whose index wraps around 32 bits before it is divided.
#[kernel(grid = (4))]
fn wrapped(
    #[block([N] => [8], |i| (i * 2000000000 / 2000000000,))] x: In<f32>,
    #[block([4, 8] => [_, 8], |i| (i, 0))] out: Out<f32>,
) {
    out.store(x.load());
}

/// Reads blocks that are far beyond the array, where elements are the fill.
#[kernel(grid = (4))]
fn beside(
    #[block([N] => [8], |i| (min(i, 2) * 1000000000,), fill = -1.0)] x: In<f32>,
    #[block([4, 8] => [_, 8], |i| (i, 0))] out: Out<f32>,
) {
    out.store(x.load());
}

/// Selects elements by positions that wrap around 32 bits in the second program.
#[kernel(grid = (2))]
fn masked(#[block([2, 8] => [_, 8], |i| (i, 0))] x: In<f32>, #[block([2, 8] => [_, 8], |i| (i, 0))] out: Out<f32>) {
    let at = iota::<i32>([8], 0) + (program_id(0) + 1) * 2_000_000_000;
    out.store(select(at.gt(0), x.load(), 0.0));
}

#[test]
fn blocks_begin_at_positions() {
    for client in clients() {
        let x = client.full(&[4096], 1.0f32).expect("it fits");
        let error = far(&x).expect_err("program 1024 begins at 2^42");
        assert_eq!(error.code(), "block-range", "{error} on {client:?}");
        assert!(error.to_string().contains("0 to 1073741824"), "{error}");
    }
    // The interpreter refuses a block outside of its array.
    for client in clients().into_iter().skip(1) {
        let x = client.full(&[32], 1.0f32).expect("it fits");
        let rows = beside(&x).and_then(|y| y.to_vec::<f32>()).expect("it runs");
        assert!(rows[..8].iter().all(|&x| x == 1.0) && rows[8..].iter().all(|&x| x == -1.0), "{client:?}: {rows:?}");
    }
}

#[test]
fn positions_that_wrap_around_are_faults() {
    let x = |client: &Client, shape: &[usize]| client.full(shape, 1.0f32).expect("it fits");
    let interpreter = Client::interpreter();
    let faults = [masked(x(&interpreter, &[2, 8])), wrapped(x(&interpreter, &[32]))];
    for result in faults {
        let error = result.and_then(|y| y.to_vec::<f32>()).expect_err("it wraps around");
        assert_eq!(error.code(), "position", "{error}");
    }
    // Elsewhere any element may come out, of this array alone.
    for client in clients().into_iter().skip(1) {
        for result in [masked(x(&client, &[2, 8])), wrapped(x(&client, &[32]))] {
            let rows = result.and_then(|y| y.to_vec::<f32>()).expect("it runs");
            assert!(rows.iter().all(|&x| x == 0.0 || x == 1.0), "{client:?}: {rows:?}");
        }
    }
}

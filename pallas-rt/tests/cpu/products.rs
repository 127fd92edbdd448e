//! Products over edges, orientations and element types.
use crate::{check, numbers};
use pallas_rt::prelude::*;

/// All four orientations, with blocks that do not divide the sizes.
#[kernel(grid = (cdiv(M, 16), cdiv(N, 24), cdiv(K, 8)), semantics = (parallel, parallel, arbitrary))]
fn product<E: Float>(
    #[block([M, K] => [16, 8], |i, _, p| (i, p), fill = 0.0)] a: In<E>,
    #[block([K, N] => [8, 24], |_, j, p| (p, j), fill = 0.0)] b: In<E>,
    #[block([M, N] => [16, 24], |i, j, _| (i, j))] out: Out<f32>,
    #[scratch([16, 24])] acc: Scratch<f32>,
    #[fixed] orientation: usize,
) {
    if program_id(2) == 0 {
        acc.fill(0.0);
    }
    let (a, b) = (a.load(), b.load());
    let sum = match orientation {
        0 => dot(a, b),
        1 => dot(a.t().t(), b),
        2 => dot(b.t(), a.t()).t(),
        _ => dot_general(a, b, &[(1, 0)], &[]),
    };
    acc.store(acc.load() + sum);
    if program_id(2) == num_programs(2) - 1 {
        out.store(acc.load());
    }
}

#[test]
fn products_over_edges() {
    for (m, n, k) in [(1, 1, 1), (16, 24, 8), (17, 25, 9), (33, 50, 31), (5, 100, 3)] {
        for orientation in 0..4 {
            let operands = |client: &Client| (numbers(client, &[m, k], 1), numbers(client, &[k, n], 2));
            check(|client| {
                let (a, b) = operands(client);
                product::<f32>(&a, &b, orientation).map(|y| vec![y])
            });
        }
    }
}

#[test]
fn products_of_halves_sum_in_single_precision() {
    check(|client| {
        let half = |shape: &[usize], seed| {
            let x = numbers(client, shape, seed).to_vec::<f32>()?;
            client.array(&x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>(), shape)
        };
        product::<bf16>(&half(&[20, 9], 1)?, &half(&[9, 30], 2)?, 0).map(|y| vec![y])
    });
}

/// Batches, several free and contracted axes, integers and doubles.
#[kernel(grid = (1))]
fn general(
    #[block([A, B] => [A, B], |_i| (0, 0))] x: In<f32>,
    #[block([A, B] => [A, B], |_i| (0, 0))] ints: Out<i32>,
    #[block([A, B] => [A, B], |_i| (0, 0))] doubles: Out<f64>,
    #[block([A, B] => [A, B], |_i| (0, 0))] batched: Out<f32>,
    #[block([A, B] => [A, B], |_i| (0, 0))] pairs: Out<f32>,
) {
    let x = x.load();
    let i = x.cast::<i32>();
    ints.store(dot(i, dot(i.t(), i)) + i);
    let d = x.cast::<f64>();
    doubles.store(dot(dot(d, d.t()), d));
    // [2, 3, 4] by batches of the first axis, and of the last.
    let t = x.reshape([2, A / 2, B]);
    let squares = dot_general(t, t, &[(2, 2)], &[(0, 0)]);
    let back = dot_general(squares, t, &[(2, 1)], &[(0, 0)]);
    batched.store(back.reshape([A, B]));
    let sums = dot_general(t, t, &[(0, 0), (1, 1)], &[]);
    pairs.store(dot(x, sums) + dot_general(t, full([2, A / 2], 1.0f32), &[(0, 0), (1, 1)], &[]).reshape([1, B]));
}

#[test]
fn products_of_any_rank_and_type() {
    check(|client| general(numbers(client, &[6, 4], 5)).map(|(a, b, c, d)| vec![a, b, c, d]));
}

/// A few rows times weights of another type, which lie by rows and by columns, and a column of them times a vector.
#[kernel(grid = (cdiv(N, 24), cdiv(K, 8)), semantics = (parallel, arbitrary))]
fn few_rows<E: Number>(
    #[block([M, K] => [M, 8], |_, p| (0, p), fill = 0.0)] x: In<f32>,
    #[block([K, N] => [8, 24], |j, p| (p, j), fill = 0)] w: In<E>,
    #[block([N, K] => [24, 8], |j, p| (j, p), fill = 0)] turned: In<E>,
    #[block([M, N] => [M, 24], |j, _| (0, j))] out: Out<f32>,
    #[block([M, N] => [M, 24], |j, _| (0, j))] other: Out<f32>,
    #[block([N, 1] => [24, 1], |j, _| (j, 0))] column: Out<f32>,
    #[scratch([M, 24])] acc: Scratch<f32>,
    #[scratch([M, 24])] second: Scratch<f32>,
    #[scratch([24, 1])] third: Scratch<f32>,
) {
    if program_id(1) == 0 {
        acc.fill(0.0);
        second.fill(0.0);
        third.fill(0.0);
    }
    let x = x.load();
    acc.store(acc.load() + dot(x, w.load().cast::<f32>()));
    // The transpose of a cast; a sum that is used twice.
    let product = dot(x, turned.load().cast::<f32>().t());
    second.store(second.load() + product - product * 0.5);
    third.store(third.load() + dot(turned.load().cast::<f32>(), full([8, 1], 2.0f32)));
    if program_id(1) == num_programs(1) - 1 {
        out.store(acc.load());
        other.store(second.load());
        column.store(third.load());
    }
}

#[test]
fn products_of_few_rows_read_weights_of_any_type() {
    for (m, n, k) in [(1, 24, 8), (3, 50, 19), (8, 7, 33), (9, 30, 9)] {
        macro_rules! each {
            ($($T:ty: $from:expr),*) => {$(
                check(|client| {
                    let weights = |shape: &[usize]| -> Result<Array> {
                        let x = numbers(client, shape, 2).to_vec::<f32>()?;
                        client.array(&x.into_iter().map($from).collect::<Vec<$T>>(), shape)
                    };
                    let x = numbers(client, &[m, k], 1);
                    few_rows::<$T>(&x, &weights(&[k, n])?, &weights(&[n, k])?).map(|(a, b, c)| vec![a, b, c])
                });
            )*};
        }
        each! { f32: |x| x, f16: f16::from_f32, bf16: bf16::from_f32, i8: |x| x as i8, u8: |x| x.abs() as u8, i16: |x| x as i16 }
    }
}

/// One product of matrices that lie by rows and by columns, alone and added to another one.
#[kernel(grid = (1))]
fn whole<E: Float>(
    #[block([M, K] => [M, K], |_i| (0, 0))] x: In<E>,
    #[block([K, M] => [K, M], |_i| (0, 0))] x_turned: In<E>,
    #[block([K, N] => [K, N], |_i| (0, 0))] w: In<E>,
    #[block([N, K] => [N, K], |_i| (0, 0))] w_turned: In<E>,
    #[block([M, N] => [M, N], |_i| (0, 0))] rows: Out<f32>,
    #[block([M, N] => [M, N], |_i| (0, 0))] columns: Out<f32>,
    #[block([M, N] => [M, N], |_i| (0, 0))] both: Out<f32>,
) {
    let (x, x_turned, w, w_turned) = (x.load(), x_turned.load(), w.load(), w_turned.load());
    rows.store(dot(x, w));
    columns.store(dot(x, w_turned.t()));
    both.store(dot(x_turned.t(), w_turned.t()) + dot(x_turned.t(), w));
}

#[test]
fn products_of_few_rows_or_columns_of_one_type() {
    // Around the numbers of rows, columns and terms from which on another kernel multiplies.
    for (m, n, k) in [
        (2, 16, 16),
        (2, 33, 129),
        (4, 16, 512),
        (4, 40, 513),
        (11, 17, 15),
        (12, 16, 600),
        (15, 50, 31),
        (16, 16, 15),
        (17, 2, 1),
        (17, 8, 31),
        (40, 3, 32),
        (40, 7, 600),
        (1030, 2, 2),
        (1030, 5, 9),
        (33, 9, 33),
        (9, 530, 40),
    ] {
        macro_rules! each {
            ($($T:ty: $from:expr),*) => {$(
                check(|client| {
                    let numbers = |shape: &[usize], seed| -> Result<Array> {
                        let x = numbers(client, shape, seed).to_vec::<f32>()?;
                        client.array(&x.into_iter().map($from).collect::<Vec<$T>>(), shape)
                    };
                    let (x, w) = ((numbers(&[m, k], 1)?, numbers(&[k, m], 2)?), (numbers(&[k, n], 3)?, numbers(&[n, k], 4)?));
                    whole::<$T>(&x.0, &x.1, &w.0, &w.1).map(|(a, b, c)| vec![a, b, c])
                });
            )*};
        }
        each! { f32: |x| x, f16: f16::from_f32, bf16: bf16::from_f32 }
    }
}

#[kernel(grid = (1))]
fn halves(
    #[block([M, K] => [M, K], |_i| (0, 0))] x: In<f32>,
    #[block([K, N] => [K, N], |_i| (0, 0))] w: In<u8>,
    #[block([M, N] => [M, N], |_i| (0, 0))] out: Out<f32>,
    #[block([K, N] => [K, N], |_i| (0, 0))] plain: Out<u8>,
) {
    let (x, bytes) = (x.load(), w.load());
    let (low, high) = (bytes & 15, (bytes & 240).cast::<f32>());
    out.store(dot(x, low.cast::<f32>()) - dot(x, high) + dot(x, (bytes & 48).cast::<f32>()));
    plain.store(low + 1);
}

#[test]
fn products_take_halves_of_bytes() {
    for (m, n, k) in [(1, 40, 8), (3, 1, 19), (8, 70, 33), (20, 30, 9)] {
        check(|client| {
            let bytes: Vec<u8> = (0..k * n).map(|i| (i * 37 + i / 7) as u8).collect();
            halves(numbers(client, &[m, k], 1), client.array(&bytes, &[k, n])?).map(|(a, b)| vec![a, b])
        });
    }
}

/// Both halves of bytes, in products of a batch each, and in plain ones of bytes as they lie and of turned ones.
#[kernel(grid = (1))]
fn both_halves(
    #[block([S, M, K] => [S, M, K], |_i| (0, 0, 0))] x: In<f32>,
    #[block([S, M, K] => [S, M, K], |_i| (0, 0, 0))] y: In<f32>,
    #[block([S, K, N] => [S, K, N], |_i| (0, 0, 0))] w: In<u8>,
    #[block([M, N] => [M, N], |_i| (0, 0))] z: In<f32>,
    #[block([S, M, N] => [S, M, N], |_i| (0, 0, 0))] out: Out<f32>,
    #[block([M, N] => [M, N], |_i| (0, 0))] first: Out<f32>,
    #[block([M, N] => [M, N], |_i| (0, 0))] other: Out<f32>,
    #[block([M, K] => [M, K], |_i| (0, 0))] turned: Out<f32>,
) {
    let (x, y, bytes) = (x.load(), y.load(), w.load());
    let (low, high) = ((bytes & 15).cast::<f32>(), (bytes & 240).cast::<f32>());
    let product = |x, w| dot_general(x, w, &[(2, 1)], &[(0, 0)]);
    out.store(product(x, low) + product(y, high) - x.sum(2));
    let [x, y] = [x, y].map(|x| x.at((0, .., ..)).reshape([M, K]));
    let [bytes, last] = [0, S - 1].map(|at| bytes.at((at, .., ..)).reshape([K, N]));
    let (low, high) = ((bytes & 15).cast::<f32>(), (bytes & 240).cast::<f32>());
    let (sum, later) = (z.load() * 2.0 + dot(x, low) + dot(y, high), dot(y, low));
    let (x, y) = (x + 1.0, y + 1.0);
    first.store(maximum(sum, later) + dot(x, low) + dot(y, (last & 240).cast::<f32>()));
    // The same bits twice, and the high ones first.
    let (x, y) = (x + 1.0, y + 1.0);
    other.store(dot(x, low) + dot(y, low) + dot(y, high) + dot(x + y, low));
    let bytes = bytes ^ 1;
    let [low, high] = [15, 240].map(|mask| (bytes & mask).cast::<f32>().t());
    turned.store(dot(z.load(), low) + dot(z.load() + 1.0, high));
}

#[test]
fn products_take_both_halves_of_bytes_at_once() {
    for (s, m, n, k) in [(1, 1, 40, 8), (3, 3, 1, 19), (2, 8, 70, 33), (2, 16, 5, 40), (1, 17, 30, 9), (4, 2, 3, 32)] {
        check(|client| {
            let bytes: Vec<u8> = (0..s * k * n).map(|i| (i * 37 + i / 7) as u8).collect();
            let w = client.array(&bytes, &[s, k, n])?;
            let (x, y) = (numbers(client, &[s, m, k], 1), numbers(client, &[s, m, k], 2));
            both_halves(x, y, w, numbers(client, &[m, n], 3)).map(|(a, b, c, d)| vec![a, b, c, d])
        });
    }
}

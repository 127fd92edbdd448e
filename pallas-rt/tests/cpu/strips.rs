//! Elementwise chains and reductions over tiles longer than a strip, with every way an operand can stretch.
use crate::{check, numbers};
use pallas_rt::prelude::*;

macro_rules! tiles {
    ($name:ident, |$x:ident, $row:ident, $col:ident| $body:expr) => {
        #[kernel(grid = (1), allow(overflow))]
        fn $name<const M: usize, const N: usize>(
            #[block([M, N] => [M, N], |_i| (0, 0))] $x: In<f32>,
            #[block([1, N] => [1, N], |_i| (0, 0))] $row: In<f32>,
            #[block([M, 1] => [M, 1], |_i| (0, 0))] $col: In<f32>,
            #[block([M, N] => [M, N], |_i| (0, 0))] out: Out<f32>,
        ) {
            let ($x, $row, $col) = ($x.load(), $row.load(), $col.load());
            out.store($body);
        }
    };
}
tiles!(stretched, |x, row, col| (x + row) * col - select(row.gt(col), x, row * 2.0));
tiles!(outer, |x, row, col| (row + col) * 1.0 + (x * 0.0));
tiles!(strided, |x, row, col| {
    let doubled = concat([x, x + row], 0);
    doubled.strided_slice([1, 0], [M, N], [1, 1]) + doubled.reverse(1).slice([0, 0], [M, N]) + col
});
tiles!(reduced, |x, row, col| {
    let cube = x.reshape([1, M, N]);
    x.sum(1)
        + x.max(0)
        + x.min([0, 1])
        + cube.sum([0, 1]).reshape([1, N])
        + cube.transpose([2, 0, 1]).sum(0).reshape([M, 1])
        + row
        + col
});
tiles!(scanned, |x, row, col| x.cumsum(0) + x.cummax(1) + x.reverse(1).cummin(1) + row + col);
tiles!(placed, |x, row, col| (x + x.argmax(1).cast::<f32>() + x.argmin(0).cast::<f32>()) * row.abs() + col);
tiles!(typed, |x, row, col| {
    let i = (x + row).cast::<i8>();
    let wide = (i * 50).cast::<i64>() << 3;
    let half = (x * col).cast::<f16>().cast::<bf16>();
    wide.cast::<f32>() + half.cast::<f32>() + x.cast::<bool>().cast::<u16>().cast::<f64>().cast::<f32>()
});
// Chains and folds of the same rows, which run a few rows at a time.
tiles!(swept, |x, row, col| {
    let a = x - x.max(1) + col;
    let (low, sum) = (a.min(1), (a * row).sum(1));
    let b = select(a.gt(low + 2.0), a - low, row) * (sum - col);
    b + b.max(1) - (a + b * 0.0).sum(1)
});
// Folds of rows and of columns by the same chains.
tiles!(both_ways, |x, row, col| {
    let a = (x - x.max(1)) * row;
    let (columns, most, rows) = (a.sum(0), (a + col).max(0), a.sum(1) + x.sum(1));
    x + columns - most * 2.0 + rows + (a + x).sum(0) + row.sum(0)
});
tiles!(counted, |x, row, col| select(iota::<i32>([M, N], 0) * 3 > iota::<i32>([M, N], 1), x, row + col));

#[test]
fn tiles_of_all_sizes() {
    macro_rules! sizes {
        ($($name:ident)*; $m:literal $n:literal) => {
            let operands = |client: &Client| {
                (numbers(client, &[$m, $n], 1), numbers(client, &[1, $n], 2), numbers(client, &[$m, 1], 3))
            };
            $(check(|client| {
                let (x, row, col) = operands(client);
                $name::<$m, $n>(&x, &row, &col).map(|y| vec![y])
            });)*
        };
    }
    macro_rules! all {
        ($($m:literal $n:literal),*) => {$(
            sizes! { stretched outer strided reduced scanned placed typed counted swept both_ways; $m $n }
        )*};
    }
    all!(1 1, 1 700, 700 1, 3 5, 64 64, 5 513, 130 7, 9 1100, 7 300, 3 2500);
}

/// Rows of a few elements beside the same from the other end: of all rows, and of those of each matrix.
#[kernel(grid = (1))]
fn turned<const A: usize, const M: usize, const N: usize>(
    #[block([A, M, N] => [A, M, N], |_i| (0, 0, 0))] x: In<f32>,
    #[block([A, M, N] => [A, M, N], |_i| (0, 0, 0))] out: Out<f32>,
) {
    let x = x.load();
    out.store((x.reverse(1) * 2.0 + x) * (x.reverse([0, 1]) - 1.0));
}

#[test]
fn short_rows_lie_in_reverse() {
    macro_rules! all {
        ($($a:literal $m:literal $n:literal),*) => {
            $(check(|client| turned::<$a, $m, $n>(&numbers(client, &[$a, $m, $n], 1)).map(|y| vec![y]));)*
        };
    }
    all!(1 300 2, 3 300 2, 2 130 7, 4 200 3, 3 700 1, 2 90 8, 5 40 33);
}

/// Blocks of rows, where the operand's own memory may be overwritten.
#[kernel(grid = (cdiv(R, 4)))]
fn in_place(
    #[block([R, C] => [4, C], |i| (i, 0), fill = 0.0)] x: In<f32>,
    #[block([R, C] => [4, C], |i| (i, 0))] out: Out<f32>,
) {
    let x = x.load();
    let y = (x - x.max(1)) * (x * x).sum(1);
    out.store(y + y.min(1) - x);
}

/// Rows of a block in the opposite order.
#[kernel(grid = (cdiv(R, 4)))]
fn taken(
    #[block([R, C] => [4, C], |i| (i, 0), fill = 0.0)] x: In<f32>,
    #[block([R, C] => [4, C], |i| (i, 0))] out: Out<f32>,
) {
    let x = x.load();
    let at = iota::<i32>([4, x.shape()[1]], 0) * -1 + 3;
    out.store(x.take_along_axis(at, 0));
}

#[test]
fn donated_rows_are_read_before_they_are_written() {
    for [rows, columns] in [[1, 5], [4, 300], [9, 1030], [6, 2100]] {
        check(|client| in_place(numbers(client, &[rows, columns], 1)).map(|y| vec![y]));
        check(|client| taken(numbers(client, &[rows, columns], 1)).map(|y| vec![y]));
    }
}

/// Results past the caches: rows that are whole vectors, and rows that are not.
#[test]
fn large_results_are_written_past_the_caches() {
    let cpu = Client::cpu();
    for [rows, columns] in [[2100, 1024], [2050, 1030], [2_100_000, 1]] {
        let x = numbers(&cpu, &[rows, columns], 1);
        let values = x.to_vec::<f32>().expect("f32");
        let want = values.chunks(columns).flat_map(|row| {
            let (max, square) = (row.iter().copied().fold(f32::MIN, f32::max), row.iter().map(|x| x * x).sum::<f32>());
            let y: Vec<f32> = row.iter().map(|x| (x - max) * square).collect();
            let min = y.iter().copied().fold(f32::MAX, f32::min);
            row.iter().zip(y).map(|(x, y)| y + min - x).collect::<Vec<f32>>()
        });
        let found = in_place(&x).and_then(|y| y.to_vec::<f32>()).unwrap_or_else(|e| panic!("{e}"));
        let at = want.zip(&found).position(|(a, b)| a != *b);
        assert_eq!(at, None, "{rows}x{columns}: the first element that differs");
    }
}

/// NaN and infinities go through maxima, minima and choices as IEEE and the table say.
#[kernel(grid = (1))]
fn special(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([K] => [8], |_i| (0,))] out: Out<f32>,
    #[dim] N: usize,
    #[dim] K: usize,
) {
    let x = x.load();
    let parts = [x.max(0), x.min(0), x.sum(0), (x * 0.0).max(0), x.argmax(0).cast::<f32>(), x.argmin(0).cast::<f32>()];
    out.store(concat(parts, 0).pad([0], [2], 0.0));
}

#[test]
fn special_values_survive() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for n in [1, 3, 16, 17, 40] {
        for (at, value) in [(0, nan), (n - 1, nan), (n / 2, inf), (n / 2, -inf), (0, -0.0)] {
            let mut x = vec![-1.0; n];
            x[at] = value;
            let run = |client: Client| {
                let x = client.array(&x, &[n]).expect("it fits");
                special(&x, n, 8).and_then(|y| y.to_vec::<f32>()).unwrap_or_else(|e| panic!("{e}"))
            };
            let (want, found) = (run(Client::interpreter()), run(Client::cpu()));
            let same = want.iter().zip(&found).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()));
            assert!(same, "{n} elements, {value} at {at}: {found:?}, expected {want:?}");
        }
    }
}

//! Rows that a kernel looks up in an array are multiplied where they lie, but only where nothing else needs their copy.
//!
//! Elements are small integers, whose sums are the same in any order.
use pallas_rt::prelude::*;

/// Products with the pages of a table that `which` names, and with their transposes.
#[kernel(grid = (1))]
fn products<E: Number, const M: usize>(
    #[block([M, D] => [M, D], |_| (0, 0))] a: In<f32>,
    #[block([P, R, D] => [P, R, D], |_| (0, 0, 0))] table: In<E>,
    #[block([G] => [G], |_| (0,))] which: In<i32>,
    #[block([M, N] => [M, G * R], |_| (0, 0))] scores: Out<f32>,
    #[block([M, D] => [M, D], |_| (0, 0))] sums: Out<f32>,
    #[dim] N: usize,
) {
    let index = which.load().reshape([G, 1, 1]).broadcast([G, R, D]);
    let rows = || table.load().take_along_axis(index, 0).reshape([G * R, D]).cast::<f32>();
    let found = dot(a.load(), rows().t());
    scores.store(found);
    sums.store(dot(found, rows()));
}

/// What is looked up is also added up.
#[kernel(grid = (1))]
fn added(
    #[block([M, D] => [M, D], |_| (0, 0))] a: In<f32>,
    #[block([P, R, D] => [P, R, D], |_| (0, 0, 0))] table: In<f32>,
    #[block([G] => [G], |_| (0,))] which: In<i32>,
    #[block([M, N] => [M, G * R], |_| (0, 0))] scores: Out<f32>,
    #[block([1, D] => [1, D], |_| (0, 0))] sums: Out<f32>,
    #[dim] N: usize,
) {
    let index = which.load().reshape([G, 1, 1]).broadcast([G, R, D]);
    let rows = table.load().take_along_axis(index, 0).reshape([G * R, D]);
    scores.store(dot(a.load(), rows.t()));
    sums.store(rows.sum(0));
}

/// A block beyond the table, of which there is a copy.
#[kernel(grid = (1))]
fn overhanging(
    #[block([M, D] => [M, D], |_| (0, 0))] a: In<f32>,
    #[block([P, R, D] => [Q, R, D], |_| (0, 0, 0), fill = 1.0)] table: In<f32>,
    #[block([G] => [G], |_| (0,))] which: In<i32>,
    #[block([M, N] => [M, G * R], |_| (0, 0))] scores: Out<f32>,
    #[dim] N: usize,
    #[dim] Q: usize,
) {
    let index = which.load().reshape([G, 1, 1]).broadcast([G, R, D]);
    let rows = table.load().take_along_axis(index, 0).reshape([G * R, D]);
    // Takes the place of the copy, if there is one that nobody needs.
    let other = a.load().exp().sum(1) * 0.0;
    scores.store(dot(a.load(), rows.t()) + other);
}

/// Columns of a table, the last ones behind its end: of whole rows, and each of a row of its own.
#[kernel(grid = (BLOCKS))]
fn columns<E: Number, const C: usize>(
    #[block([P, D] => [P, C], |c| (0, c), fill = 3.0)] table: In<E>,
    #[block([G] => [G], |_| (0,))] which: In<i32>,
    #[block([G, D] => [G, C], |c| (0, c), fill = 0)] each: In<i32>,
    #[block([G, N] => [G, C], |c| (0, c))] rows: Out<E>,
    #[block([G, BLOCKS] => [G, 1], |c| (0, c))] sums: Out<f32>,
    #[block([G, N] => [G, C], |c| (0, c))] elements: Out<E>,
    #[dim] BLOCKS: usize,
    #[dim] N: usize,
) {
    let index = which.load().reshape([G, 1]).broadcast([G, C]);
    let found = table.load().take_along_axis(index, 0);
    rows.store(found);
    sums.store(found.cast::<f32>().sum(1).reshape([G, 1]));
    elements.store(table.load().take_along_axis(each.load(), 0));
}

/// Rows of the table are written between the lookup and the product.
#[kernel(grid = (1))]
fn written(
    #[block([M, D] => [M, D], |_| (0, 0))] a: In<f32>,
    #[block([P, R, D] => [P, R, D], |_| (0, 0, 0))] table: In<f32>,
    #[block([G] => [G], |_| (0,))] which: In<i32>,
    #[block([P, R, D] => [P, R, D], |_| (0, 0, 0), alias = table)] changed: Out<f32>,
    #[block([M, N] => [M, G * R], |_| (0, 0))] scores: Out<f32>,
    #[dim] N: usize,
) {
    let index = which.load().reshape([G, 1, 1]).broadcast([G, R, D]);
    let rows = table.load().take_along_axis(index, 0).reshape([G * R, D]);
    changed.store(table.load() + 1.0);
    let later = changed.load().reshape([P * R, D]).max(0) * 0.0;
    scores.store(dot(a.load() + later, rows.t()));
}

/// Pages are transposed one by one, which makes another order of all elements.
#[kernel(grid = (1))]
fn turned(
    #[block([M, R] => [M, R], |_| (0, 0))] a: In<f32>,
    #[block([P, R, D] => [P, R, D], |_| (0, 0, 0))] table: In<f32>,
    #[block([G] => [G], |_| (0,))] which: In<i32>,
    #[block([M, N] => [M, G * D], |_| (0, 0))] scores: Out<f32>,
    #[dim] N: usize,
) {
    let index = which.load().reshape([G, 1, 1]).broadcast([G, R, D]);
    let rows = table.load().take_along_axis(index, 0).t().reshape([G * D, R]);
    scores.store(dot(a.load(), rows.t()));
}

/// In turns of a loop, other pages in each.
#[kernel(grid = (1))]
fn turns(
    #[block([M, D] => [M, D], |_| (0, 0))] a: In<f32>,
    #[block([P, R, D] => [P, R, D], |_| (0, 0, 0))] table: In<f32>,
    #[block([G] => [G], |_| (0,))] which: In<i32>,
    #[block([M, D] => [M, D], |_| (0, 0))] sums: Out<f32>,
    times: i32,
) {
    let mut total = zeros::<f32>([M, D]);
    for t in 0..times {
        let index = ((which.load() + t) % P as i32).reshape([G, 1, 1]).broadcast([G, R, D]);
        let rows = table.load().take_along_axis(index, 0).reshape([G * R, D]);
        let weights = dot(a.load(), rows.t());
        total += dot(weights, rows);
    }
    sums.store(total);
}

fn small(client: &Client, shape: &[usize], by: usize) -> Array {
    let n: usize = shape.iter().product();
    let x: Vec<f32> = (0..n).map(|i| ((i * by + i / 7) % 5) as f32 - 2.0).collect();
    client.array(&x, shape).expect("it fits")
}

/// The results of a call on the CPU, which are those of the interpreter.
fn agree(what: &str, call: impl Fn(&Client) -> Result<Vec<Array>>) {
    let [found, expected] = [Client::cpu(), Client::interpreter()].map(|client| {
        let all = call(&client).unwrap_or_else(|e| panic!("{what}: {e}"));
        all.iter().map(|x| x.to_vec::<f32>().expect("f32")).collect::<Vec<_>>()
    });
    assert_eq!(found, expected, "{what}");
}

/// Pages, rows of a page, elements of a row, and pages that are looked up, one of them twice.
const SIZES: [[usize; 4]; 8] = [
    [3, 2, 4, 2],
    [5, 16, 128, 4],
    [9, 13, 40, 7],
    [4, 9, 5, 3],
    [2, 33, 17, 5],
    [6, 4, 1, 4],
    [7, 8, 600, 6],
    [3, 16, 1, 2],
];

fn which(client: &Client, [pages, .., count]: [usize; 4]) -> Array {
    let all: Vec<i32> = (0..count).map(|i| ((i * 5 + 1) % pages) as i32).collect();
    client.array(&all, &[count]).expect("it fits")
}

#[test]
fn pages_of_each_type_are_multiplied_where_they_lie() {
    for sizes @ [pages, rows, d, count] in SIZES {
        let n = count * rows;
        let arguments = |client: &Client, m: usize| {
            (small(client, &[m, d], 3), small(client, &[pages, rows, d], 3), which(client, sizes))
        };
        macro_rules! case {
            ($($E:ident $dtype:ident $M:literal),*) => {$(
                agree(&format!("{} of {sizes:?}, {} rows", stringify!($E), $M), |client| {
                    let (a, table, which) = arguments(client, $M);
                    let (x, y) = products::<$E, $M>(&a, &table.cast(DType::$dtype), &which, n)?;
                    Ok(vec![x, y])
                });
            )*};
        }
        case!(f32 F32 4, f32 F32 1, f32 F32 17, i8 I8 4, i8 I8 1, i8 I8 16, bf16 Bf16 3, f16 F16 8, i32 I32 4);
    }
}

#[test]
fn pages_that_something_else_needs_are_copied() {
    for sizes @ [pages, rows, d, count] in SIZES {
        let n = count * rows;
        let arguments =
            |client: &Client| (small(client, &[4, d], 3), small(client, &[pages, rows, d], 3), which(client, sizes));
        agree(&format!("added, {sizes:?}"), |client| {
            let (a, table, which) = arguments(client);
            let (x, y) = added(&a, &table, &which, n)?;
            Ok(vec![x, y])
        });
        agree(&format!("overhanging, {sizes:?}"), |client| {
            let (a, table, which) = arguments(client);
            Ok(vec![overhanging(&a, &table, &which, n, pages + 1)?])
        });
        agree(&format!("written, {sizes:?}"), |client| {
            let (a, table, which) = arguments(client);
            let (x, y) = written(&a, table, &which, n)?;
            Ok(vec![x, y])
        });
        agree(&format!("turned, {sizes:?}"), |client| {
            let (_, table, which) = arguments(client);
            Ok(vec![turned(small(client, &[4, rows], 3), &table, &which, count * d)?])
        });
        agree(&format!("turns, {sizes:?}"), |client| {
            let (a, table, which) = arguments(client);
            Ok(vec![turns(&a, &table, &which, 3)?])
        });
    }
}

#[test]
fn columns_behind_a_table_have_its_fill() {
    for [pages, _, d, count] in SIZES {
        let arguments = |client: &Client| {
            let each: Vec<i32> = (0..count * d).map(|i| ((i * 7 + i / 3) % pages) as i32).collect();
            let which = which(client, [pages, 1, d, count]);
            (small(client, &[pages, d], 3), which, client.array(&each, &[count, d]).expect("it fits"))
        };
        macro_rules! case {
            ($($E:ident $dtype:ident $C:literal),*) => {$(
                // The results end where the table does, or have all of the last block.
                for n in [d, d.next_multiple_of($C)] {
                    agree(&format!("{} of {pages}x{d} in blocks of {} to {n}", stringify!($E), $C), |client| {
                        let (table, which, each) = arguments(client);
                        let table = table.cast(DType::$dtype);
                        let (x, y, z) = columns::<$E, $C>(&table, &which, &each, d.div_ceil($C), n)?;
                        Ok(vec![x.cast(DType::F32), y, z.cast(DType::F32)])
                    });
                }
            )*};
        }
        case!(f32 F32 16, f32 F32 7, i8 I8 48, bf16 Bf16 33, i32 I32 1000);
    }
}

//! Slices of computed tiles: at 0 and elsewhere, combined with each other and with the whole tile, reduced, carried by
//! a loop.
use super::random::{again, gpus};
use crate::prelude::*;

/// Adds two windows of each row.
#[kernel(grid = (1))]
fn windows(#[block([4, 10] => [4, 10], |_| (0, 0))] x: In<f32>, #[block([4, 8] => [4, 8], |_| (0, 0))] out: Out<f32>) {
    let a = x.load() * 2.0;
    out.store(a.slice([0, 0], [4, 8]) + a.slice([0, 2], [4, 8]));
}
/// Stores the first columns only.
#[kernel(grid = (1))]
fn prefix(#[block([4, 10] => [4, 10], |_| (0, 0))] x: In<f32>, #[block([4, 8] => [4, 8], |_| (0, 0))] out: Out<f32>) {
    out.store((x.load() * 2.0).slice([0, 0], [4, 8]));
}
/// Divides a prefix by a sum of the whole tile.
#[kernel(grid = (1))]
fn used(#[block([4, 10] => [4, 10], |_| (0, 0))] x: In<f32>, #[block([4, 8] => [4, 8], |_| (0, 0))] out: Out<f32>) {
    let a = x.load().exp();
    out.store(a.slice([0, 0], [4, 8]) / a.sum(1));
}
/// Adds two windows of rows.
#[kernel(grid = (1))]
fn rows(#[block([10, 4] => [10, 4], |_| (0, 0))] x: In<f32>, #[block([8, 4] => [8, 4], |_| (0, 0))] out: Out<f32>) {
    let a = x.load() * 2.0;
    out.store(a.slice([0, 0], [8, 4]) + a.slice([2, 0], [8, 4]));
}
/// Adds two windows of a tile with one axis, and stores the sum to a part of the block.
#[kernel(grid = (1))]
fn line(#[block([10] => [10], |_| (0,))] x: In<f32>, #[block([20] => [20], |_| (0,))] out: Out<f32>) {
    out.fill(7.0);
    let a = x.load() * 2.0;
    out.at(ds(0, 8)).store(a.slice([0], [8]) + a.slice([2], [8]));
}
/// Sums the products of two windows along rows.
#[kernel(grid = (1))]
fn sums(#[block([4, 10] => [4, 10], |_| (0, 0))] x: In<f32>, #[block([4, 1] => [4, 1], |_| (0, 0))] out: Out<f32>) {
    let a = x.load() * 2.0;
    out.store((a.slice([0, 0], [4, 8]) * a.slice([0, 2], [4, 8])).sum(1));
}
/// Sums a slice along rows.
#[kernel(grid = (1))]
fn sum(#[block([4, 10] => [4, 10], |_| (0, 0))] x: In<f32>, #[block([4, 1] => [4, 1], |_| (0, 0))] out: Out<f32>) {
    out.store((x.load() * 2.0).slice([0, 0], [4, 8]).sum(1));
}
/// Sums the products of two slices over all axes.
#[kernel(grid = (1))]
fn inner(#[block([10] => [10], |_| (0,))] x: In<f32>, #[block([1] => [1], |_| (0,))] out: Out<f32>) {
    let a = x.load() * 2.0;
    let product = dot_general(a.slice([0], [8]), a.slice([2], [8]), &[(0, 0)], &[]);
    out.store(product.reshape([1]) + a.slice([0], [1]));
}
/// Adds two windows of a row in each of several programs.
#[kernel(grid = (P))]
fn programs(#[block([P, 10] => [_, 10], |p| (p, 0))] x: In<f32>, #[block([P, 8] => [_, 8], |p| (p, 0))] out: Out<f32>) {
    let a = x.load() * 2.0;
    out.store(a.slice([0], [8]) + a.slice([2], [8]));
}
/// Adds three windows of 64 columns, a number of whole vectors, in rows of 66 columns.
#[kernel(grid = (cdiv(M, 32)))]
fn wide(#[block([M, 66] => [32, 66], |i| (i, 0))] x: In<f32>, #[block([M, 64] => [32, 64], |i| (i, 0))] out: Out<f32>) {
    let a = x.load() * 2.0;
    out.store(a.slice([0, 0], [32, 64]) + a.slice([0, 1], [32, 64]) + a.slice([0, 2], [32, 64]));
}
/// Joins the difference and the sum of two halves, as rotary embeddings do.
#[kernel(grid = (cdiv(M, 8)))]
fn halves(#[block([M, 64] => [8, 64], |i| (i, 0))] x: In<f32>, #[block([M, 64] => [8, 64], |i| (i, 0))] out: Out<f32>) {
    let a = x.load() * 2.0;
    let (l, r) = (a.slice([0, 0], [8, 32]), a.slice([0, 32], [8, 32]));
    out.store(concat([l - r, l + r], 1));
}
/// Multiplies one half of a computed tile by `silu` of the other: a gated linear unit.
#[kernel(grid = (cdiv(M, 8)))]
fn gated(#[block([M, 64] => [8, 64], |i| (i, 0))] x: In<f32>, #[block([M, 32] => [8, 32], |i| (i, 0))] out: Out<f32>) {
    let a = x.load() * 2.0;
    out.store(a.slice([0, 0], [8, 32]) * a.slice([0, 32], [8, 32]).silu());
}
/// Adds up a prefix of a tile that changes in every iteration of a loop.
#[kernel(grid = (cdiv(M, 8)))]
fn carried(
    #[block([M, 64] => [8, 64], |i| (i, 0))] x: In<f32>,
    #[block([M, 32] => [8, 32], |i| (i, 0))] out: Out<f32>,
    turns: i32,
) {
    let mut all = x.load();
    let mut some = zeros::<f32>([8, 32]);
    for _ in 0..turns {
        some += all.slice([0, 0], [8, 32]);
        all = all * 0.5 + 0.25;
    }
    out.store(some);
}

/// Combines parts that indices select: by ranges, steps and dropped axes.
#[kernel(grid = (1))]
fn indexed(#[block([4, 10] => [4, 10], |_| (0, 0))] x: In<f32>, #[block([3, 4] => [3, 4], |_| (0, 0))] out: Out<f32>) {
    let a = x.load() * 2.0;
    let last = a.at((3, ds(6, 4)));
    out.store(a.at((0..3, 1..5)) + a.at((1..4, strided(0, 4, 3))) * a.at(0).at(2..6).expand(0) + last.expand(0).ln());
}

type Run = fn(&Array) -> Result<Array>;
const TABLE: [(&str, &[usize], Run); 14] = [
    ("windows", &[4, 10], |x| windows(x)),
    ("prefix", &[4, 10], |x| prefix(x)),
    ("used", &[4, 10], |x| used(x)),
    ("rows", &[10, 4], |x| rows(x)),
    ("line", &[10], |x| line(x)),
    ("sums", &[4, 10], |x| sums(x)),
    ("sum", &[4, 10], |x| sum(x)),
    ("inner", &[10], |x| inner(x)),
    ("programs", &[50, 10], |x| programs(x)),
    ("wide", &[70, 66], |x| wide(x)),
    ("halves", &[20, 64], |x| halves(x)),
    ("gated", &[20, 64], |x| gated(x)),
    ("carried", &[20, 64], |x| carried(x, 3)),
    ("indexed", &[4, 10], |x| indexed(x)),
];

#[test]
fn slices_of_computed_tiles_mean_the_same_everywhere() {
    let mut wrong = vec![];
    for (name, shape, run) in TABLE {
        let data: Vec<f32> = (0..shape.iter().product()).map(|v| ((v * 37) % 101) as f32 * 0.02).collect();
        let on = |client: &Client| -> Vec<f32> {
            let x = client.array(&data, shape).expect("it fits");
            run(&x).and_then(|y| y.to_vec()).unwrap_or_else(|e| panic!("{name} on {client:?}: {e}"))
        };
        let want = on(&Client::interpreter());
        for client in [Client::cpu()].into_iter().chain(gpus()) {
            let found = on(&client);
            let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-4 * b.abs().max(1.0);
            if found.iter().zip(&want).any(far) {
                wrong.push(format!("{name} on {}: {found:?}, not {want:?}", client.device()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `indexed` gives the parts that its indices name, element by element.
#[test]
fn an_index_selects_what_it_says() -> Result<()> {
    let data: Vec<f32> = (0..40).map(|v| v as f32 + 1.0).collect();
    let a = |row: usize, column: usize| 2.0 * data[10 * row + column];
    let found = indexed(&Array::from_slice(&data, &[4, 10])?)?.to_vec::<f32>()?;
    for (i, found) in found.iter().enumerate() {
        let (row, column) = (i / 4, i % 4);
        let want = a(row, 1 + column) + a(1 + row, 3 * column) * a(0, 2 + column) + a(3, 6 + column).ln();
        assert!((found - want).abs() < 1e-3 * want, "[{row}, {column}]: {found}, not {want}");
    }
    Ok(())
}

#[kernel(grid = (1))]
fn outside(
    #[block([4] => [4], |_| (0,))] x: In<f32>,
    #[block([1] => [1], |_| (0,))] out: Out<f32>,
    #[fixed] at: usize,
) {
    out.store((x.load() * 2.0).at(at..at + 1));
}
#[kernel(grid = (2))]
fn moving(#[block([4] => [4], |_| (0,))] x: In<f32>, #[block([2] => [1], |i| (i,))] out: Out<f32>) {
    out.store((x.load() * 2.0).at(ds(program_id(0), 1)));
}
#[test]
fn positions_of_tiles_are_inside_and_known() {
    let x = Array::zeros(&[4], DType::F32).expect("it fits");
    assert!(outside(&x, 3).is_ok());
    let error = outside(&x, 4).expect_err("one element too far").to_string();
    assert!(error.contains("lang/slice_tests.rs:") && error.contains("axis 0"), "{error}");
    let error = moving(&x).expect_err("a program's position").to_string();
    assert!(error.contains("a run-time position along axis 0 of a computed tile"), "{error}");
}

/// Slices mean the same with tiles placed as for a GPU and with all tiles in memory, on the adapter at hand.
#[test]
fn slices_of_computed_tiles_in_other_profiles() {
    if !gpus().is_empty() {
        for profile in ["gpu", "baseline"] {
            let test = "lang::slice_tests::slices_of_computed_tiles_mean_the_same_everywhere";
            again(test, &[("PALLAS_PROFILE", profile)]);
        }
    }
}

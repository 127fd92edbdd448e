//! Matrix products: sizes around the blocks in every layout, epilogues, batches, data that is no number.
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::matmul::{
    Layout, matmul, matmul_blocks, matmul_int8, matmul_nt_blocks, matmul_tn_blocks, matmul_tt_blocks, matmul_with,
};
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 4.0;

const LAYOUTS: [Layout; 4] = [
    Layout { a_transposed: false, b_transposed: false },
    Layout { a_transposed: true, b_transposed: false },
    Layout { a_transposed: false, b_transposed: true },
    Layout { a_transposed: true, b_transposed: true },
];

fn shapes([m, k, n]: [usize; 3], layout: Layout) -> [[usize; 2]; 2] {
    let a = if layout.a_transposed { [k, m] } else { [m, k] };
    [a, if layout.b_transposed { [n, k] } else { [k, n] }]
}

fn reference(a: &[f64], b: &[f64], [m, k, n]: [usize; 3], layout: Layout) -> Vec<f64> {
    let at = |i: usize, p: usize| if layout.a_transposed { a[p * m + i] } else { a[i * k + p] };
    let bt = |p: usize, j: usize| if layout.b_transposed { b[j * k + p] } else { b[p * n + j] };
    (0..m * n).map(|e| (0..k).map(|p| at(e / n.max(1), p) * bt(p, e % n.max(1))).sum()).collect()
}

/// The kernel of a layout with blocks of [`B`].
fn product<E: Float>(a: &Array, b: &Array, layout: Layout, f: fn(Tile<f32>) -> Tile<f32>) -> Result<Array> {
    let epilogue = move |x| f(x);
    match (layout.a_transposed, layout.b_transposed) {
        (false, false) => matmul_blocks::<E, E>(a, b, epilogue, B, B, B),
        (true, false) => matmul_tn_blocks::<E, E>(a, b, epilogue, B, B, B),
        (false, true) => matmul_nt_blocks::<E, E>(a, b, epilogue, B, B, B),
        (true, true) => matmul_tt_blocks::<E, E>(a, b, epilogue, B, B, B),
    }
}

#[test]
fn every_extent_around_its_blocks_in_every_layout() {
    for client in clients() {
        for (mkn, size) in around([5, 6, 7]) {
            let [m, k, n] = mkn;
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            for (layout, &dtype) in LAYOUTS.into_iter().flat_map(|l| runs(&client, size).iter().map(move |t| (l, t))) {
                let [[a0, a1], [b0, b1]] = shapes(mkn, layout);
                let (x, y) = (array(&client, dtype, &[1, a0, a1], &a), array(&client, dtype, &[1, b0, b1], &b));
                let out = typed!(dtype, E => product::<E>(&x, &y, layout, |x| x)).expect("it runs");
                close(&out, &reference(&a, &b, mkn, layout), k, K, &format!("{mkn:?} {layout:?} {dtype}"));
            }
        }
        for g in (0..=2 * B + 1).filter(|g| !runs(&client, *g).is_empty()) {
            let (a, b) = (values(g * 6, 5), values(g * 6, 6));
            let (x, y) = (array(&client, DType::F32, &[g, 2, 3], &a), array(&client, DType::F32, &[g, 3, 2], &b));
            let each = |i: usize| reference(&a[i * 6..][..6], &b[i * 6..][..6], [2, 3, 2], Layout::default());
            let want: Vec<f64> = (0..g).flat_map(each).collect();
            let out = product::<f32>(&x, &y, Layout::default(), |x| x).expect("it runs");
            close(&out, &want, 3, K, &format!("{g} products"));
        }
    }
}

#[test]
fn an_epilogue_is_applied_to_finished_sums() {
    let mkn = [9, 7, 5];
    let (a, b) = (values(9 * 7, 3), values(7 * 5, 4));
    for (client, layout) in clients().iter().flat_map(|c| LAYOUTS.map(|l| (c, l))) {
        let want: Vec<f64> = reference(&a, &b, mkn, layout).into_iter().map(|x| (x * 0.5).max(0.0)).collect();
        let [a_shape, b_shape] = shapes(mkn, layout);
        let (x, y) = (array(client, DType::F32, &a_shape, &a), array(client, DType::F32, &b_shape, &b));
        let out = matmul_with(&x, &y, layout, |x| maximum(x * 0.5, 0.0)).expect("it runs");
        close(&out, &want, 7, K, &format!("{layout:?}"));
    }
}

#[test]
fn numbers_that_are_none_stay_in_their_row_and_column() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let mkn = [6, 5, 7];
    for client in [Client::interpreter(), Client::cpu()] {
        for (layout, bad) in LAYOUTS.into_iter().flat_map(|l| [inf, -inf, nan].map(|x| (l, x))) {
            let (mut a, mut b) = (values(30, 1), values(35, 2));
            (a[3], b[20]) = (bad, -inf);
            let [[a0, a1], [b0, b1]] = shapes(mkn, layout);
            let (x, y) = (array(&client, DType::F32, &[a0, a1], &a), array(&client, DType::F32, &[b0, b1], &b));
            let out = matmul_with(&x, &y, layout, |x| x).expect("it runs");
            close(&out, &reference(&a, &b, mkn, layout), 5, K, &format!("{bad} {layout:?}"));
        }
    }
}

#[test]
fn the_function_that_chooses_blocks() {
    let cpu = Client::cpu();
    let shapes = [[1, 300, 1], [129, 257, 130], [3, 1, 200], [500, 70, 520]].into_iter().chain(drawn(40, 9));
    for (mkn, dtype) in shapes.flat_map(|s| FLOATS.map(|t| (s, t))) {
        let [m, k, n] = mkn;
        let (x, y) = (
            array(&cpu, dtype, &[2, m, k], &values(2 * m * k, 1)),
            array(&cpu, dtype, &[2, k, n], &values(2 * k * n, 2)),
        );
        let (a, b) = (doubles(&x), doubles(&y));
        let each = |i: usize| reference(&a[i * m * k..][..m * k], &b[i * k * n..][..k * n], mkn, Layout::default());
        let want: Vec<f64> = (0..2).flat_map(each).collect();
        close(&matmul(&x, &y).expect("it runs"), &want, k, K, &format!("{mkn:?} {dtype}"));
    }
}

#[test]
fn eight_bit_integers_are_summed_exactly() {
    // Every value and the extremes, over extents around panels and pairs.
    let bytes = |n: usize, seed: usize| -> Vec<i8> {
        (0..n).map(|i| if i % 5 == 0 { i8::MIN } else { (((i + seed) * 7919) >> 3) as i8 }).collect()
    };
    let blocks = |a: &Array, b: &Array, layout: Layout| match (layout.a_transposed, layout.b_transposed) {
        (false, false) => matmul_blocks::<i8, i32>(a, b, |x| x, B, B, B),
        (true, false) => matmul_tn_blocks::<i8, i32>(a, b, |x| x, B, B, B),
        (false, true) => matmul_nt_blocks::<i8, i32>(a, b, |x| x, B, B, B),
        (true, true) => matmul_tt_blocks::<i8, i32>(a, b, |x| x, B, B, B),
    };
    for client in clients() {
        let small = around([5, 6, 7]).filter(|(_, size)| !runs(&client, *size).is_empty()).map(|(mkn, _)| mkn);
        let large = [[130, 515, 70], [17, 33, 49]].into_iter().filter(|_| client.kind() == DeviceKind::Cpu);
        for (mkn, layout) in small.chain(large).flat_map(|s| LAYOUTS.map(|l| (s, l))) {
            let [m, k, n] = mkn;
            let (a, b) = (bytes(m * k, 1), bytes(k * n, 2));
            let wide = |x: &[i8]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let want: Vec<i32> = reference(&wide(&a), &wide(&b), mkn, layout).into_iter().map(|x| x as i32).collect();
            let [a_shape, b_shape] = shapes(mkn, layout);
            let (x, y) = (client.array(&a, &a_shape).expect("it fits"), client.array(&b, &b_shape).expect("it fits"));
            let out = if m > 16 {
                matmul_int8(&x, &y, layout)
            } else {
                let batch = |x: &Array| x.reshape(&[1, x.shape()[0], x.shape()[1]]);
                blocks(&batch(&x), &batch(&y), layout)
            };
            assert_eq!(out.expect("it runs").to_vec::<i32>().expect("i32"), want, "{mkn:?} {layout:?} {client:?}");
        }
    }
    let cpu = Client::cpu();
    let x = cpu.array(&[1i8, 2], &[1, 2]).expect("it fits");
    assert!(matmul(&x, &x).is_err(), "two columns times one row");
    assert!(matmul_int8(&cpu.zeros(&[1, 1], DType::F32).expect("it fits"), &x, Layout::default()).is_err());
}

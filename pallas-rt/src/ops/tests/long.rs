//! Arrays that several programs of a kernel divide.
use crate::jit;
use crate::ops::{self, IndexMode, between, by, keep, select};
use crate::prelude::*;

/// A function, and for an element of its result the position of that element in the operand; `None` for a pad.
type Movement = (&'static str, fn(&Array) -> Array, fn(usize, usize) -> Option<usize>);

const MOVEMENTS: &[Movement] = &[
    ("flip", |x| x.flip(0), |i, n| Some(n - 1 - i)),
    ("roll", |x| x.roll(1000, 0), |i, n| Some((i + n - 1000) % n)),
    ("part", |x| x.index(by(between(5, -7), 3)), |i, _| Some(5 + 3 * i)),
    ("backwards", |x| x.index(by(.., -2)), |i, n| Some(n - 1 - 2 * i)),
    ("concatenate", |x| ops::concatenate(&[x, &(x * 1), &x.index(..3)], 0), |i, n| Some(i % n)),
    ("stack", |x| ops::stack(&[x, x], 1), |i, _| Some(i / 2)),
    ("pad", |x| x.pad(&[(3, 4)], -1), |i, n| i.checked_sub(3).filter(|&i| i < n)),
    ("tile", |x| x.tile(&[3]), |i, n| Some(i % n)),
    ("repeat", |x| x.repeat(3, 0), |i, _| Some(i / 3)),
    ("running maximum", |x| x.cummax(0), |i, _| Some(i)),
    ("take", |x| x.take_along_axis(&((x.ones_like().cumsum(0) - 1) * 7 % x.len() as i32), 0), |i, n| Some(i * 7 % n)),
];

#[test]
fn elements_of_long_axes_are_moved() {
    let n = 200_003usize;
    let x = Client::cpu().array(&(0..n as i32).collect::<Vec<_>>(), &[n]).expect("it fits");
    for &(name, f, from) in MOVEMENTS {
        // Operations around it let it share a kernel.
        let fused = jit(move |x: &Array| f(&(x + 1)) - 1);
        let alone = f(&x);
        for y in [&alone, &fused(&x).unwrap_or_else(|e| panic!("{name}: {e}"))] {
            let found = y.to_vec::<i32>().unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(found.len(), alone.len());
            let pad = if std::ptr::eq(y, &alone) { -1 } else { -2 };
            for (i, &found) in found.iter().enumerate() {
                assert_eq!(found, from(i, n).map_or(pad, |i| i as i32), "{name} at {i}");
            }
        }
    }
}

/// No block divides the rows, so the last one ends behind them. The second table is more than the caches of a core
/// hold.
#[test]
fn rows_that_are_longer_than_a_block_are_taken() {
    for [rows, n] in [[3, 40_009], [41, 110_017]] {
        let x = Client::cpu().array(&(0..(rows * n) as i32).collect::<Vec<_>>(), &[rows, n]).expect("it fits");
        for dtype in [DType::F32, DType::I32, DType::Bf16] {
            let (x, last) = ((&x % 251).cast(dtype), rows as i32 - 1);
            for at in [vec![], vec![last, -1, 0, last + 1, -last - 2, 1]] {
                let places = Client::cpu().array(&at, &[at.len()]).expect("it fits");
                let take = |x: &Array, at: &Array| x.take_with(at, 0, IndexMode::FillWith(7.0));
                // An operation behind it has windows of a tile of its own.
                for (more, found) in [
                    (0, take(&x, &places)),
                    (1, jit(move |x: &Array, at: &Array| take(x, at) + 1)(&x, &places).expect("it runs")),
                ] {
                    let found = found.cast(DType::I32).to_vec::<i32>().expect("it runs");
                    assert_eq!(found.len(), at.len() * n);
                    for (row, &place) in found.chunks(n).zip(&at) {
                        let from = if place < 0 { place + rows as i32 } else { place };
                        let inside = (0..=last).contains(&from);
                        let right = |(i, &x): (usize, &i32)| {
                            x == more + if inside { (from * n as i32 + i as i32) % 251 } else { 7 }
                        };
                        assert!(row.iter().enumerate().all(right), "{dtype}, row {place} of {rows}, {more} added");
                    }
                }
            }
        }
    }
}

/// Functions of a matrix and another one that give matrices, without jumps: fusion changes the order of sums.
const STEPS: &[fn(&Array, &Array) -> Array] = &[
    |x, y| x + y.index((..1, ..1)),
    |x, _| x.t(),
    |x, _| x.flip(..),
    |x, _| x.flip(1),
    |x, _| x.roll(3, 0),
    |x, _| x.roll(-70, 1),
    |x, _| x.index((between(1, -1), ..)),
    |x, _| x.index((.., by(.., -2))),
    |x, _| x.pad(&[(1, 0), (2, 3)], 1.5),
    |x, y| ops::concatenate(&[x, &(y.index((..1, ..1)) * x)], 0),
    |x, _| ops::concatenate(&[x.index((.., 1..)), x * 2.0, x.index((.., ..1))], 1),
    |x, _| x.cumsum(0) * 0.01,
    |x, _| x.cummax(1),
    |x, _| x - x.mean(keep(0)),
    |x, _| x - x.max(keep(1)),
    |x, _| x.sum(0) * 0.1 + x,
    |x, _| x.tril(1) + x.triu(-3) * 0.5,
    |x, _| x.matmul(&x.t()) * 0.01,
    |x, _| (x * 0.1).t().matmul(x) * 0.1,
    |x, _| x.ravel().index((ops::Item::New, ..200)).repeat(9, 0),
    |x, _| x.index((.., ..5)).tile(&[1, 11]),
    |x, _| ops::stack(&[x, &x.sin()], 1).index((.., 1)),
    |x, _| x.take_along_axis(&(x.ones_like().cumsum(1).cast(DType::I32) * 3 % x.shape()[1] as i32), 1),
    |x, _| select(&x.gt(0.5), x - 0.5, x * -0.5 + 0.25),
    |x, _| x.softmax(1) * 10.0,
    |x, _| x.index((.., 0)).outer(&x.index(0)),
    |x, _| x.expand_dims(1).repeat(2, 1).ravel().index((ops::Item::New, ..)).index((.., ..300)).tile(&[3, 1]),
    |x, y| x.clip(-2.0, 2.0) + y.sum(..) * 0.001,
];

#[test]
fn chains_are_the_same_fused() {
    let mut state = 12_345u64;
    let mut below = move |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut compared = 0;
    for _ in 0..120 {
        let shape = [2 + below(90), 6 + below(200)];
        let elements: Vec<f32> = (0..shape[0] * shape[1]).map(|_| below(4001) as f32 / 1000.0 - 2.0).collect();
        let x = Client::cpu().array(&elements, &shape).expect("it fits");
        let steps: Vec<usize> = (0..2 + below(6)).map(|_| below(STEPS.len())).collect();
        let of = format!("steps {steps:?} of {shape:?}");
        let chain = move |x: &Array| steps.iter().fold(x.clone(), |made, &i| STEPS[i](&made, x).clip(-3.0, 3.0));
        let alone = chain(&x);
        // Chains may make arrays that take long to compare.
        if alone.len() < 300_000 {
            let fused = jit(chain)(&x).unwrap_or_else(|e| panic!("{of}: {e}"));
            let [alone, fused] = [alone, fused].map(|y| y.to_vec::<f32>().unwrap_or_else(|e| panic!("{of}: {e}")));
            assert_eq!(alone.len(), fused.len(), "{of}");
            let place = (0..alone.len()).find(|&i| (alone[i] - fused[i]).abs() > 1e-3 || alone[i].is_nan());
            assert_eq!(place, None, "{of}");
            compared += 1;
        }
    }
    assert!(compared > 90, "{compared} chains");
}

/// Products of batches of vectors, of scaled vectors and of matrices whose blocks lie apart in the result: every
/// element, of integers that each type holds exactly, by the definition of `einsum`.
#[test]
fn products_in_batches_are_sums_of_products() {
    let sizes = |axis: char| match axis {
        'a' => 3,
        'b' => 5,
        'i' => 13,
        'j' => 301,
        'k' => 7,
        'n' => 4099,
        'v' => 2,
        'u' => 1,
        _ => 0,
    };
    let dtypes = [DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I32, DType::I8];
    let cases = [
        "bi,bi->b",
        "ib,bi->b",
        "ab,ba->ab",
        "abk,kab->ba",
        "bj,jb->b",
        "bk,b->bk",
        "kb,b->bk",
        "bi,bk->bik",
        "u,bk->buk",
        "bu,uk->bk",
        "ak,bk->ab",
        "bik,bkj->bij",
        "bik,bkn->bin",
        "bvk,bkn->bvn",
        "aik,aki->ai",
        "abik,abkj->abij",
        "k,k->",
        "bz,bz->b",
        "bz,bk->bzk",
    ];
    for case in cases {
        let (from, to) = case.split_once("->").expect("an arrow");
        let (x, y) = from.split_once(',').expect("two arrays");
        let axes: Vec<char> = to.chars().chain(x.chars().filter(|axis| !to.contains(*axis))).collect();
        let shape = |of: &str| of.chars().map(sizes).collect::<Vec<usize>>();
        let numbers = |of: &str, seed: usize| -> Vec<f64> {
            (0..shape(of).iter().product()).map(|i| ((i * 7 + seed) % 5) as f64 - 2.0).collect()
        };
        let (a, b) = (numbers(x, 1), numbers(y, 3));
        // Row-major positions of all axes, the summed ones last.
        let mut wanted = vec![0.0; shape(to).iter().product()];
        let all = shape(&axes.iter().collect::<String>());
        let strides = |of: &str| -> Vec<usize> {
            let stride = |axis: &char| of.split_once(*axis).map_or(0, |(_, inner)| shape(inner).iter().product());
            axes.iter().map(stride).collect()
        };
        let strides = [x, y, to].map(strides);
        for at in 0..all.iter().product() {
            let (mut rest, mut places): (usize, _) = (at, [0; 3]);
            for axis in (0..all.len()).rev() {
                places.iter_mut().zip(&strides).for_each(|(place, strides)| *place += rest % all[axis] * strides[axis]);
                rest /= all[axis];
            }
            wanted[places[2]] += a[places[0]] * b[places[1]];
        }
        for dtype in dtypes {
            let array =
                |numbers: &[f64], of: &str| Client::cpu().array(numbers, &shape(of)).expect("it fits").cast(dtype);
            let (a, b) = (array(&a, x), array(&b, y));
            let found = jit(move |a: &Array, b: &Array| ops::einsum(case, &[a, b]))(&a, &b);
            let found = found.unwrap_or_else(|e| panic!("{case} of {dtype}: {e}"));
            let found = found.cast(DType::F64).to_vec::<f64>().expect("it runs");
            // Sums of this size are exact in f16 and in f32, and wrap around in i8.
            let rounded = |x: f64| match dtype {
                DType::Bf16 => f64::from(half::bf16::from_f64(x)),
                DType::I8 => f64::from(x as i64 as i8),
                _ => x,
            };
            let wanted: Vec<f64> = wanted.iter().map(|x| rounded(*x)).collect();
            assert_eq!(found, wanted, "{case} of {dtype}");
        }
    }
}

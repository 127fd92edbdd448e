//! Scans with several steps in one, with associative functions, and in place of loops that end by themselves.
use super::{array, close, numbers};
use crate::ops::select;
use crate::prelude::*;
use crate::{
    AssociativeScan, Scan, associative_scan, grad, jit, lower, make_jaxpr, ops, scan, value_and_grad, vmap, while_loop,
};
use std::cell::Cell;

/// Every combination of length, steps in one and direction gives the results and gradients of one step at a time.
#[test]
fn unrolled_scans_are_scans() {
    let run = |unroll: usize, reverse: bool| {
        move |w: &Array, xs: &(Array, Array)| {
            let start = (w.sum(0) * 0.0, w.sum(..));
            let ((h, total), ys) = Scan::new().unroll(unroll).reverse(reverse).run(
                &start,
                xs,
                |(h, total): &(Array, Array), (x, by): &(Array, Array)| {
                    let h = (h.matmul(w) + x).tanh();
                    ((h.clone(), total * 0.5 + by), (h.sum(..) * by, h))
                },
            )?;
            Ok::<_, Error>((h, total, ys.0, ys.1))
        }
    };
    let w = array(&[0.5, -0.3, 0.2, 0.1], &[2, 2]);
    for n in [0, 1, 2, 5, 7, 8] {
        let numbers_of = |k: usize| (0..k).map(|i| ((i * 7 % 11) as f32 - 5.0) / 6.0).collect::<Vec<_>>();
        let xs = (array(&numbers_of(2 * n), &[n, 2]), array(&numbers_of(n), &[n]));
        for reverse in [false, true] {
            let loss = |unroll| {
                move |w: &Array, xs: &(Array, Array)| {
                    run(unroll, reverse)(w, xs).map(|(h, t, a, b)| h.sum(..) * t + (&a * &a).sum(..) + b.sum(..))
                }
            };
            let want = run(1, reverse)(&w, &xs).expect("it runs");
            let slope = grad(loss(1))(&w, &xs).expect("it runs");
            let exact = |x: &Array| numbers(x).iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            for unroll in [0, 2, 3, 4, 100] {
                let found = jit(run(unroll, reverse))(&w, &xs).expect("it runs");
                for (found, want) in
                    [(&found.0, &want.0), (&found.1, &want.1), (&found.2, &want.2), (&found.3, &want.3)]
                {
                    assert_eq!(found.shape(), want.shape());
                    close(found, &exact(want));
                }
                close(&jit(grad(loss(unroll)))(&w, &xs).expect("it runs"), &exact(&slope));
            }
        }
    }
    // Two steps in each of three, and one more; no loop if all steps are one.
    let xs = (array(&[0.0; 14], &[7, 2]), array(&[0.0; 7], &[7]));
    let count = |unroll: usize, of: &str| {
        let text = make_jaxpr(run(unroll, false))(&w, &xs).expect("it is traced");
        text.matches(&format!("= {of}")).count()
    };
    assert_eq!([1, 2, 7].map(|unroll| count(unroll, "tanh ")), [1, 3, 7]);
    assert_eq!([1, 2, 7].map(|unroll| count(unroll, "scan[")), [1, 1, 0]);
}

/// Results are JAX's, from `associative.py`, and calls where a tree is made, which calls the function for nothing where
/// two elements are left. On the CPU it is traced once, as the step of a loop.
#[test]
fn associative_scans_are_those_of_jax() {
    let mut lines = 0;
    for line in include_str!("associative.txt").lines() {
        let all: Vec<i64> = line.split_whitespace().map(|n| n.parse().expect("a number")).collect();
        let (n, jax_calls) = (all[0] as usize, all[1] as usize);
        let mut left = n;
        while left > 3 {
            left /= 2;
        }
        let wanted: Vec<Vec<i32>> =
            (0..4).map(|k| all[2 + k * n..2 + (k + 1) * n].iter().map(|&x| x as i32).collect()).collect();
        let as_a_tree = jax_calls - usize::from(left == 2);
        for (client, wanted_calls) in [(Client::interpreter(), as_a_tree), (Client::cpu(), as_a_tree.min(1))] {
            let integers = |f: &dyn Fn(i32) -> i32| {
                client.array(&(0..n as i32).map(f).collect::<Vec<_>>(), &[n]).expect("it fits")
            };
            let maps = (integers(&|i| i * 7 - 20), integers(&|i| i * 1001 % 13));
            let calls = Cell::new(0);
            let combine = |f: &(Array, Array), g: &(Array, Array)| {
                calls.set(calls.get() + 1);
                (&f.0 * &g.0, &g.0 * &f.1 + &g.1)
            };
            let there = associative_scan(&maps, combine).expect("it runs");
            assert_eq!(calls.get(), wanted_calls, "{n}");
            let back = AssociativeScan::new().reverse(true).run(&maps, combine).expect("it runs");
            let found = [there.0, there.1, back.0, back.1].map(|x| x.to_vec::<i32>().expect("it runs"));
            assert_eq!(found.to_vec(), wanted, "{n}");
        }
        lines += 1;
    }
    assert_eq!(lines, 13);
}

/// A linear recurrence along any axis, in both directions, and its gradients: the same in turn and as a tree.
#[test]
fn associative_scans_in_turn_are_those_of_trees() {
    let run = |axis: isize, reverse: bool| {
        move |a: &Array, b: &Array| {
            let combine = |(a, b): &(Array, Array), (c, d): &(Array, Array)| (a * c, b * c + d);
            AssociativeScan::new().axis(axis).reverse(reverse).run(&(a.clone(), b.clone()), combine)
        }
    };
    let loss = |axis, reverse, both: bool| {
        move |a: &Array, b: &Array| {
            let (product, h) = run(axis, reverse)(a, b)?;
            let h = (&h * &h).sum(..);
            Ok::<_, Error>(if both { h + product.sum(..) } else { h })
        }
    };
    let drawn = |client: &Client, shape: &[usize], seed: usize| {
        let n: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..n).map(|i| ((i * 7 + seed) % 11) as f32 / 8.0 - 0.6).collect();
        client.array(&numbers, shape).expect("it fits")
    };
    let exact = |x: &Array| numbers(x).iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    for shape in [vec![0, 2], vec![1, 3], vec![2, 1], vec![7, 3], vec![9, 0], vec![9, 4], vec![33, 2], vec![600, 3]] {
        for (axis, shape) in [(0, shape.clone()), (1, shape.iter().rev().copied().collect())] {
            for reverse in [false, true] {
                let [here, there] = [Client::cpu(), Client::interpreter()].map(|client| {
                    let (a, b) = (drawn(&client, &shape, 1), drawn(&client, &shape, 5));
                    let (product, h) = jit(run(axis, reverse))(&a, &b).expect("it runs");
                    let slopes = [true, false].map(|both| {
                        grad(loss(axis, reverse, both)).argnums((crate::Arg::<0>, crate::Arg::<1>))(&a, &b)
                            .expect("it runs")
                    });
                    (product, h, slopes)
                });
                close(&here.0, &exact(&there.0));
                close(&here.1, &exact(&there.1));
                for (here, there) in here.2.iter().zip(&there.2) {
                    close(&here.0, &exact(&there.0));
                    close(&here.1, &exact(&there.1));
                }
            }
        }
    }
    // Long vectors are trees everywhere.
    let x = array(&[1.0; 5000], &[5000]);
    let sums = associative_scan(&x, |a: &Array, b: &Array| a + b).expect("it runs");
    assert_eq!(numbers(&sums), (1..=5000).map(|i| i as f32).collect::<Vec<_>>());
}

#[test]
fn associative_scans_nest_in_transformations() {
    let x = array(&(0..24).map(|i| ((i * 5 % 7) as f32 - 3.0) / 4.0).collect::<Vec<_>>(), &[2, 4, 3]);
    let exact = |x: &Array| numbers(x).iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let sums = |axis: isize| move |x: &Array| AssociativeScan::new().axis(axis).run(x, |a: &Array, b: &Array| a + b);
    for axis in [0, 1, 2, -1, -2] {
        close(&jit(sums(axis))(&x).expect("it runs"), &exact(&x.cumsum(axis)));
    }
    // The gradient of the sum of squares of running sums.
    let loss = |x: &Array| associative_scan(x, |a: &Array, b: &Array| a + b).map(|y| (&y * &y).sum(..));
    let want = grad(|x: &Array| {
        let y = x.cumsum(0);
        (&y * &y).sum(..)
    });
    let row = array(&[1.0, -2.0, 3.0, 0.5, 4.0], &[5]);
    close(&jit(grad(loss))(&row).expect("it runs"), &exact(&want(&row).expect("it runs")));
    close(&jit(vmap(sums(0)))(&x).expect("it runs"), &exact(&x.cumsum(1)));
    // Products of matrices, which do not commute.
    let m = array(&[1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 2.0, 0.0, 0.0, 1.0], &[3, 2, 2]);
    let all = associative_scan(&m, |a: &Array, b: &Array| a.matmul(b)).expect("it runs");
    close(&all, &[1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 1.0, 1.0, 4.0, 1.0, 2.0, 1.0]);
}

#[test]
fn mistakes_in_associative_scans_are_named() {
    let (x, y) = (array(&[1.0; 4], &[4]), array(&[1.0; 3], &[3]));
    let fails = |result: Result<Array, Error>, line: u32, message: &str| {
        let error = result.expect_err("it is wrong").to_string();
        assert!(error.contains(message) && error.contains(&format!("{}:{line}", file!())), "{error}");
    };
    let add = |a: &(Array, Array), b: &(Array, Array)| (&a.0 + &b.0, &a.1 + &b.1);
    fails(associative_scan(&(x.clone(), y), add).map(|x| x.0), line!(), "`1` of f32[3] in an associative scan of");
    fails(associative_scan(&x.sum(..), |a: &Array, b: &Array| a + b), line!(), "along axis 0 of `` of f32[]");
    fails(associative_scan(&x, |a: &Array, b: &Array| (a + b).sum(..)), line!(), "is f32[]");
    let integers = |a: &Array, _: &Array| ops::ones(a.shape(), DType::I32);
    fails(associative_scan(&x, integers), line!(), "is i32[1]");
    fails(associative_scan(&(), |(), ()| ()).map(|()| x.clone()), line!(), "without arrays");
}

/// `while_loop` has no reverse mode; a scan with a mask has, and JAX's numbers are in `masked.txt`.
#[test]
fn a_masked_scan_stands_in_for_a_loop() {
    let next = |w: &Array, y: &Array| y.sin() + w * y + 0.5;
    let masked = move |(w, x): &(Array, Array)| {
        let start = (x.clone(), ops::zeros(&[], DType::I32));
        let ((y, steps), ()) = Scan::new().length(20).run(&start, &(), |(y, n): &(Array, Array), ()| {
            let goes_on = y.lt(10.0);
            ((select(&goes_on, next(w, y), y), n + goes_on.cast(DType::I32)), ())
        })?;
        Ok::<_, Error>((y, steps))
    };
    let (derived, looped) = (
        jit(value_and_grad(masked)),
        jit(move |w: &Array, x: &Array| while_loop(x, |y: &Array| y.lt(10.0), |y: &Array| next(w, y))),
    );
    let cases = [(1.5, 0.25), (1.25, 1.0), (2.0, 9.5), (1.5, 12.0)];
    let lines = include_str!("masked.txt").lines();
    assert_eq!(lines.clone().count(), cases.len());
    for ((w, x), line) in cases.into_iter().zip(lines) {
        let want: Vec<f64> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
        let (w, x) = (array(&[w], &[]), array(&[x], &[]));
        let ((y, steps), (by_w, by_x)) = derived(&(w.clone(), x.clone())).unwrap_or_else(|e| panic!("{e}"));
        for (found, want) in [&y, &steps.cast(DType::F32), &by_w, &by_x].into_iter().zip(&want) {
            close(found, &[*want]);
        }
        close(&looped(&w, &x).expect("it runs"), &want[..1]);
    }
}

/// The gradient of the last state of a recurrent net keeps three values of each step: the state before it, the slope
/// after it, and the cotangent, whose products with the states are added up at once.
#[test]
fn stacks_that_nothing_reads_take_no_memory() {
    let client = Client::cpu();
    let shape = |shape: &[usize]| client.shape_dtype(shape, DType::F32).expect("it fits");
    let loss = |w: &Array, xs: &Array| {
        let start = ops::zeros(&xs.shape()[1..], DType::F32);
        let (last, _) = scan(&start, xs, |h: &Array, x: &Array| {
            let h = (h.matmul(w) + x).tanh();
            (h.clone(), (h.clone(), h))
        })?;
        Ok::<_, Error>(last.square().sum(..))
    };
    let lowered = lower(grad(loss))(&shape(&[64, 64]), &shape(&[128, 8, 64])).expect("it traces");
    let stack = 128 * 8 * 64 * 4;
    let arena = lowered.memory_analysis().temporary_bytes;
    assert!((2 * stack..13 * stack / 4).contains(&arena), "{arena} bytes, a stack has {stack}");
}

//! Scans whose steps share one kernel, against the same steps written out.
use super::{array, numbers};
use crate::prelude::*;
use crate::{Scan, fori_loop, grad, jit, keep, lower, ops};

/// The first values, the arrays, and results of a step.
type Step = fn(&[Array; 3], &[Array; 2]) -> ([Array; 3], [Array; 2]);

/// Carried values h, m and n, of which the last one is an integer, and elements x and y: m is a row's number.
const STEPS: &[(&str, Step)] = &[
    ("a recurrence", |[h, m, n], [x, _]| ([h * 0.5 + x, m * 0.5, n.clone()], [h * 0.5 + x, x.exp()])),
    ("values in turn", |[h, m, n], [x, y]| ([x.clone(), m + y, n * 3], [h.clone(), h + x])),
    ("rows and their largest", |[h, m, n], [x, _]| {
        let largest = x.max(-1);
        let next = m.maximum(&largest);
        let old = (m - &next).exp().expand_dims(1);
        ([h * old + (x - next.expand_dims(1)).exp(), next, n.clone()], [h.softmax(-1), x.clone()])
    }),
    ("elements in other places", |[h, m, n], [x, y]| {
        ([h.flip(0) + x.roll(1, 1), m.flip(0) - y, n + 1], [h.clone(), x.cumsum(0)])
    }),
    ("a small product", |[h, m, n], [x, _]| {
        let mixed = h.t().matmul(x).tanh();
        ([(h.matmul(&mixed) * 0.1).tanh(), m.clone(), n + m.sum(..).cast(DType::I32)], [x.clone(), x * m.sum(..)])
    }),
    ("integers", |[h, m, n], [x, y]| {
        (
            [h.clone(), m + y, n * 5 - 1],
            [x * n.cast(DType::F32), (m.le(y) & n.gt(3)).cast(DType::F32).expand_dims(1) * x],
        )
    }),
    ("what is carried alone", |[h, m, n], [x, _]| ([h * 0.9, m.sin(), n.clone()], [x.clone(), x * 2.0])),
];

fn operands(rows: usize, columns: usize, length: usize, client: &Client) -> ([Array; 3], [Array; 2]) {
    let drawn = |seed: usize, shape: &[usize]| {
        let n: usize = shape.iter().product();
        let x: Vec<f32> = (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1000.0 - 1.0).collect();
        client.array(&x, shape).expect("it fits")
    };
    let count = client.array(&[2i32], &[]).expect("it fits");
    let init = [drawn(1, &[rows, columns]), drawn(2, &[rows]), count];
    (init, [drawn(3, &[length, rows, columns]), drawn(4, &[length, rows])])
}

/// All results of a scan, whose steps are written out if `unroll` says so.
fn run(step: Step, unroll: usize, reverse: bool) -> impl Fn(&[Array; 3], &[Array; 2]) -> Result<Vec<Array>> {
    move |init, arrays| {
        let scan = Scan::new().unroll(unroll).reverse(reverse);
        let (last, stacks) = scan.run(init, arrays, |c: &[Array; 3], x: &[Array; 2]| step(c, x))?;
        Ok(last.into_iter().chain(stacks).collect())
    }
}

#[track_caller]
fn equal(found: &[Array], want: &[Array], about: &str) {
    within(found, want, 1e-5, about);
}

#[track_caller]
fn within(found: &[Array], want: &[Array], tolerance: f32, about: &str) {
    assert_eq!(found.len(), want.len());
    for (i, (a, b)) in found.iter().zip(want).enumerate() {
        assert_eq!((a.shape(), a.dtype()), (b.shape(), b.dtype()), "{about}, result {i}");
        let [a, b] = [a, b].map(|x| numbers(&x.cast(DType::F32)));
        let close =
            |(x, y): (&f32, &f32)| x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= tolerance * (1.0 + y.abs());
        assert!(a.iter().zip(&b).all(close), "{about}, result {i}:\n{a:?}\n{b:?}");
    }
}

/// Returns true if the plan of a function has no loop on the host.
fn is_stepped(plan: &str) -> bool {
    !plan.contains(" steps of ")
}

#[test]
fn a_kernel_takes_all_steps() {
    let cpu = Client::cpu();
    let clients = [cpu.clone(), Client::interpreter()];
    let clients = clients.into_iter().chain(crate::lang::random::gpu());
    for client in clients {
        for (k, &(name, step)) in STEPS.iter().enumerate() {
            // Rows without elements have no largest one.
            for (rows, columns, length) in [(3, 5, 4), (1, 1, 1), (0, 2, 3), (7, 3, 9)] {
                let reverse = (k + length) % 2 == 0;
                let about = format!("{name}, {rows} x {columns}, {length} steps on {client:?}");
                let (init, arrays) = operands(rows, columns, length, &client);
                let plan = lower(run(step, 1, reverse))(&init, &arrays).expect("it is traced").to_plan();
                assert!(is_stepped(&plan), "{about}:\n{plan}");
                let found = jit(run(step, 1, reverse))(&init, &arrays).unwrap_or_else(|e| panic!("{about}: {e}"));
                let (init, arrays) = operands(rows, columns, length, &cpu);
                let want = jit(run(step, 100, reverse))(&init, &arrays).expect("it runs");
                equal(&found, &want, &about);
            }
        }
    }
}

/// Arrays of many blocks, the last of which are not full.
#[test]
fn programs_divide_what_is_carried() {
    let step: Step = STEPS[0].1;
    let rows_of: Step = STEPS[2].1;
    let same: Step = |[h, m, n], [x, y]| ([h * 0.5 + x.abs().sqrt(), m + y, n.clone()], [h.clone(), h * x]);
    for (rows, columns) in [(37, 613), (5001, 3), (2, 9001)] {
        for (name, step) in [("a recurrence", step), ("rows", rows_of), ("old values", same)] {
            let (init, arrays) = operands(rows, columns, 5, &Client::cpu());
            for reverse in [false, true] {
                let found = jit(run(step, 1, reverse))(&init, &arrays).expect("it runs");
                let want = jit(run(step, 100, reverse))(&init, &arrays).expect("it runs");
                equal(&found, &want, &format!("{name} of {rows} x {columns}"));
            }
        }
    }
    // Large arrays too are sharded, if no operation moves elements from one program to another.
    let (init, arrays) = operands(150, 150, 5, &Client::cpu());
    // Another carried value, whose blocks each program computes from its own, changes nothing.
    let is_one = |step: fn(&Array, &Array) -> Array| {
        let f = move |h: &Array, xs: &Array| {
            Scan::new().run(&[h.clone(), h.clone()], xs, |[own, h]: &[Array; 2], x: &Array| {
                let h = step(h, x);
                ([own.sin(), h.clone()], h)
            })
        };
        is_stepped(&lower(f)(&init[0], &arrays[0]).expect("it is traced").to_plan())
    };
    assert!(is_one(|h, x| h.tanh() + x));
    assert!(is_one(|h, x| h.softmax(-1) + x));
    assert!(!is_one(|h, x| h.flip(0) + x), "a block from another one");
    assert!(!is_one(|h, x| h.t() + x), "a block from another one");
    assert!(!is_one(|h, x| h.t().softmax(-1) + x), "rows from columns");
    assert!(!is_one(|h, x| h + x.sum(..)), "each program would compute the sum");
    assert!(!is_one(|h, x| h.t().matmul(h).matmul(&h.t()).t() + x), "a large product");
}

/// The number of a step is no carried value: the final one is not read.
#[test]
fn counters_are_arrays() {
    let x = array(&vec![0.25; 30_000], &[30_000]);
    let counted = |x: &Array| fori_loop(-3..40, x, |i: &Array, x: &Array| x * 0.5 + i.cast(DType::F32));
    let uncounted = |x: &Array| fori_loop(0..40, x, |_: &Array, x: &Array| x * 0.5 + 1.0);
    let plan = lower(counted)(&x).expect("it is traced").to_plan();
    assert!(is_stepped(&plan), "{plan}");
    let plan = lower(uncounted)(&x).expect("it is traced").to_plan();
    assert!(is_stepped(&plan), "{plan}");
    let want = (-3..40).fold(0.25f32, |x, i| x * 0.5 + i as f32);
    equal(&[jit(counted)(&x).expect("it runs")], &[ops::full(&[30_000], want, DType::F32)], "counted");
    // By twos, in reverse, from a number that is an argument; the last number is a result or not.
    let by = |reads: bool, reverse: bool| {
        move |x: &Array, start: &Array| {
            let steps = Scan::new().length(7).reverse(reverse);
            let ((last, x), numbers) = steps.run(&(start.clone(), x.clone()), &(), |(i, x): &(Array, Array), ()| {
                ((i + -2, x * 0.5 + i.cast(DType::F32)), i * 10)
            })?;
            Ok::<_, Error>(if reads { vec![x, numbers, last] } else { vec![x, numbers] })
        }
    };
    for start in [0, 5, i32::MIN + 3] {
        let start = Client::cpu().array(&[start], &[]).expect("it fits");
        for reverse in [false, true] {
            let all = jit(by(true, reverse))(&x, &start).expect("it runs");
            let some = jit(by(false, reverse))(&x, &start).expect("it runs");
            for (a, b) in some.iter().zip(&all) {
                assert_eq!(a.to_bytes(), b.to_bytes(), "{reverse}");
            }
            let first = start.to_vec::<i32>().expect("a number")[0];
            let mut want: Vec<i32> = (0..7).map(|k: i32| first.wrapping_sub(2 * k).wrapping_mul(10)).collect();
            if reverse {
                want.reverse();
            }
            assert_eq!(some[1].to_vec::<i32>(), Ok(want));
        }
    }
}

/// Carried values that no result depends on are dropped, with what computes them; prints stay.
#[test]
fn what_no_result_depends_on_is_not_carried() {
    let f = |x: &Array, xs: &Array| {
        let init = (x.clone(), x * 2.0, x * 3.0);
        let ((_, b, _), ()) = Scan::new()
            .run(&init, xs, |(a, b, c): &(Array, Array, Array), x: &Array| ((a.sin() + c, b * 0.5 + x, c * a), ()))?;
        Ok::<_, Error>(b)
    };
    let (x, xs) = (array(&[0.5, 1.0], &[2]), array(&[1.0, 2.0, 3.0, 4.0], &[2, 2]));
    let plan = lower(f)(&x, &xs).expect("it is traced").to_plan();
    assert!(!plan.contains("sin"), "{plan}");
    equal(&[jit(f)(&x, &xs).expect("it runs")], &[array(&[3.75, 5.5], &[2])], "one of three");
    // The result depends on the last value by way of the others.
    let f = |x: &Array, xs: &Array| {
        let init = (x.clone(), x * 2.0, x * 3.0);
        let ((a, _, _), ()) = Scan::new()
            .run(&init, xs, |(a, b, c): &(Array, Array, Array), x: &Array| ((a + b, b + c, c * 2.0 + x), ()))?;
        Ok::<_, Error>(a)
    };
    let xs = array(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]);
    // a: 0.5, 1.5, 4, 10.5 and 1, 3, 8, 21; b: 1, 2.5, 6.5 and 2, 5, 13; c: 1.5, 4 and 3, 8.
    equal(&[jit(f)(&x, &xs).expect("it runs")], &[array(&[10.5, 21.0], &[2])], "three in turn");
}

/// Derivatives are scans too, and sums over steps are among what they carry.
#[test]
fn gradients_take_one_kernel_each_way() {
    let loss = |w: &Array, xs: &Array| {
        let (last, all) = Scan::new().run(&(w * 0.0), xs, |h: &Array, x: &Array| {
            let h = (w * h + x).tanh();
            (h.clone(), h)
        })?;
        Ok::<_, Error>((last * 2.0).sum(..) + (&all * &all).sum(..))
    };
    let w = array(&[0.5, -0.25, 1.5], &[3]);
    let xs = array(&(0..30).map(|i| (i % 7) as f32 * 0.1).collect::<Vec<_>>(), &[10, 3]);
    let plan = lower(grad(loss))(&w, &xs).expect("it is traced").to_plan();
    assert!(is_stepped(&plan), "{plan}");
    let written_out = |w: &Array, xs: &Array| {
        let (mut h, mut sum) = (w * 0.0, ops::zeros(&[], DType::F32));
        for i in 0..10 {
            h = (w * &h + xs.index(i)).tanh();
            sum = sum + (&h * &h).sum(..);
        }
        Ok::<_, Error>((h * 2.0).sum(..) + sum)
    };
    let found = jit(grad(loss))(&w, &xs).expect("it runs");
    equal(&[found], &[grad(written_out)(&w, &xs).expect("it runs")], "a gradient");
}

/// The first values, the arrays, and results of a step without scalars.
type Turn = fn(&[Array; 2], &[Array; 2]) -> ([Array; 2], [Array; 2]);

/// On the CPU all turns but the first and the last of such loops are one piece of machine code.
const TURNS: &[(&str, Turn)] = &[
    ("a recurrence", |[h, m], [x, y]| ([h * 0.5 + x, m * y], [h * 0.5 + x, m.clone()])),
    ("old and new values", |[h, m], [x, y]| {
        let next = (h * 0.5 + x * y).tanh();
        ([next.clone(), m - h], [h * &next, next - m])
    }),
    ("values that change places", |[h, m], [x, y]| ([m * 0.5 + x, h.clone()], [h.clone(), m + y])),
    ("one of two arrays", |[h, m], [x, _]| ([h.maximum(x), m + h], [h.clone(), h.clone()])),
    ("rows and their largest", |[h, m], [x, y]| {
        let next = h * 0.25 + x - x.max(keep(-1));
        ([next.clone(), m * 0.5 + next.min(keep(-1))], [(&next - next.max(keep(-1))).exp(), y * next.max(keep(-1))])
    }),
    ("rows of one for all", |[h, m], [x, y]| {
        let first = y.index((..1, ..));
        ([h * &first + x, m + first], [h.exp(), x.clone()])
    }),
    ("elements in another order", |[h, m], [x, y]| {
        let turned = h.t().reshape(h.shape());
        ([turned * 0.5 + x, m * y], [h.clone(), m + y])
    }),
    ("products of two tiles", |[h, m], [x, y]| {
        let mixed = h.matmul(&x.t()) * 0.1;
        ([(mixed.matmul(y) + x).tanh(), (m * 0.5 + h.matmul(&x.t().matmul(h))).tanh()], [mixed.matmul(h), m.clone()])
    }),
    ("comparisons", |[h, m], [x, y]| {
        let more = h.gt(x);
        ([ops::select(&more, h, y), m + more.cast(m.dtype())], [ops::select(&h.le(x), m, x), h.clone()])
    }),
];

#[test]
fn turns_are_those_written_out() {
    let drawn = |seed: usize, shape: &[usize], dtype: DType| {
        let n: usize = shape.iter().product();
        // Multiples of powers of two, so that sums and products of a few are exact in 16 bits too.
        let mut x: Vec<f32> = (0..n).map(|i| ((i * 7919 + seed * 104_729) % 31) as f32 / 32.0 - 0.4).collect();
        if n > 30 && dtype == DType::F32 {
            x[3..6].copy_from_slice(&[f32::NAN, -0.0, f32::INFINITY]);
        }
        array(&x, shape).cast(dtype)
    };
    let sizes = [(1, 64), (3, 5), (4, 8), (1, 1), (5, 1), (70, 16), (2, 100)];
    for (k, (name, step)) in TURNS.iter().enumerate() {
        for (i, (rows, columns)) in sizes.into_iter().enumerate() {
            for (j, length) in [7, 8, 13].into_iter().enumerate() {
                let reverse = (k + i + j) % 2 == 0;
                let dtype = [DType::F32, DType::Bf16, DType::F16][(k + 2 * i + j) % 3];
                let run = |unroll: usize| {
                    move |init: &[Array; 2], arrays: &[Array; 2]| {
                        let scan = Scan::new().unroll(unroll).reverse(reverse);
                        let all = scan.run(init, arrays, |c: &[Array; 2], x: &[Array; 2]| step(c, x))?;
                        Ok::<_, Error>([all.0, all.1].concat())
                    }
                };
                let init = [1, 2].map(|seed| drawn(seed, &[rows, columns], dtype));
                let arrays = [3, 4].map(|seed| drawn(seed, &[length, rows, columns], dtype));
                let about = format!("{name}, {length} steps of {rows} x {columns} {dtype}, {reverse}");
                let found = jit(run(1))(&init, &arrays).unwrap_or_else(|e| panic!("{about}: {e}"));
                let want = jit(run(100))(&init, &arrays).unwrap_or_else(|e| panic!("{about}: {e}"));
                let tolerance = if dtype == DType::F32 { 1e-5 } else { 0.02 };
                within(&found, &want, tolerance, &about);
            }
        }
    }
}

#[test]
fn turns_multiply() {
    for (i, (rows, width)) in [(1, 8), (2, 19), (1, 33), (3, 12), (7, 9), (1, 1)].into_iter().enumerate() {
        for (j, dtype) in [DType::F32, DType::Bf16, DType::F16].into_iter().enumerate() {
            let drawn = |seed: usize, shape: &[usize]| {
                let n: usize = shape.iter().product();
                let x: Vec<f32> = (0..n).map(|i| ((i * 7919 + seed * 104_729) % 31) as f32 / 64.0 - 0.2).collect();
                array(&x, shape).cast(dtype)
            };
            let run = |unroll: usize| {
                move |w: &Array, h: &Array, xs: &Array| {
                    let scan = Scan::new().unroll(unroll).reverse((i + j) % 2 == 0);
                    let (last, all) = scan.run(h, xs, |h: &Array, x: &Array| {
                        let h = (h.matmul(w) + x).tanh();
                        let next = (h.matmul(&w.t()) * 0.5 + x).tanh();
                        (next, h)
                    })?;
                    Ok::<_, Error>([last, all])
                }
            };
            let (w, h, xs) = (drawn(1, &[width, width]), drawn(2, &[rows, width]), drawn(3, &[11, rows, width]));
            let about = format!("{rows} x {width} {dtype}");
            let found = jit(run(1))(&w, &h, &xs).unwrap_or_else(|e| panic!("{about}: {e}"));
            let want = jit(run(100))(&w, &h, &xs).unwrap_or_else(|e| panic!("{about}: {e}"));
            within(&found, &want, if dtype == DType::F32 { 1e-5 } else { 0.02 }, &about);
        }
    }
}

#[test]
fn turns_know_their_number() {
    type Body = fn(&Array, &Array) -> Array;
    let bodies: [(&str, Body); 3] = [
        ("a factor", |i, h| h * 0.5 + i),
        ("a bound", |i, h| ops::select(&i.lt(9), h * 0.5 + 1.0, h)),
        ("one turn", |i, h| ops::select(&i.eq(5), h + 1.0, h * 0.75)),
    ];
    for (name, body) in bodies {
        for shape in [&[64][..], &[3, 5], &[]] {
            let start = array(&vec![0.5; shape.iter().product()], shape);
            let turns = move |h: &Array| fori_loop(0..20, h, |i: &Array, h: &Array| body(i, h));
            let found = jit(turns)(&start).unwrap_or_else(|e| panic!("{name}: {e}"));
            let number = |i: i32| Array::from_vec(vec![i], &[]).expect("it fits");
            let want = (0..20).fold(start, |h, i| body(&number(i), &h));
            equal(&[found], &[want], &format!("{name}, {shape:?}"));
        }
    }
}

//! Loops and branches against the same steps written out.
use super::{array, close, differences, numbers};
use crate::prelude::*;
use crate::{Scan, cond, fori_loop, grad, jit, scan, switch, value_and_grad, while_loop};

fn weights() -> Array {
    array(&[0.5, -0.3, 0.2, 0.1, 0.4, -0.6, -0.2, 0.7, 0.3], &[3, 3])
}
fn inputs() -> Array {
    array(&(0..12).map(|i| ((i * 7 % 11) as f32 - 5.0) / 6.0).collect::<Vec<_>>(), &[4, 3])
}

/// A recurrent net: all states and the last one.
fn recurrent(w: &Array, xs: &Array) -> Result<(Array, Array), Error> {
    let start = Client::cpu().zeros(&[3], DType::F32)?;
    scan(&start, xs, |h: &Array, x: &Array| {
        let h = (h.matmul(w) + x).tanh();
        (h.clone(), h)
    })
}

/// The same without a loop, in f64.
fn written_out(w: &[f32], xs: &[f32]) -> Vec<Vec<f64>> {
    let mut h = vec![0.0f64; 3];
    let step = |x: &[f32]| {
        let next = (0..3).map(|j| {
            let sum: f64 = (0..3).map(|i| h[i] * f64::from(w[3 * i + j])).sum();
            (sum + f64::from(x[j])).tanh()
        });
        h = next.collect();
        h.clone()
    };
    xs.chunks(3).map(step).collect()
}

#[test]
fn a_scan_is_its_steps() {
    let (w, xs) = (weights(), inputs());
    let want = written_out(&numbers(&w), &numbers(&xs));
    for client in [Client::cpu(), Client::interpreter()] {
        let [w, xs] = [&w, &xs].map(|x| x.to_device(&client).expect("it has room"));
        let run = |w: &Array, xs: &Array| {
            let start = w.sum(0) * 0.0;
            scan(&start, xs, |h: &Array, x: &Array| {
                let h = (h.matmul(w) + x).tanh();
                (h.clone(), h)
            })
        };
        for (last, all) in [run(&w, &xs), jit(run)(&w, &xs)].map(|out| out.expect("it runs")) {
            close(&all, &want.concat());
            close(&last, &want[3]);
            assert_eq!((last.shape(), all.shape()), (&[3][..], &[4, 3][..]));
        }
    }
}

#[test]
fn carried_values_may_change_places() {
    // Swapped, kept, taken twice, taken from outside, and integers.
    let outside = array(&[7.0, 8.0], &[2]);
    let run = move |a: &Array, b: &Array, n: &Array, xs: &Array| {
        let init = (a.clone(), b.clone(), a.clone(), b.clone(), n.clone());
        scan(&init, xs, |(a, b, c, _, n): &(Array, Array, Array, Array, Array), x: &Array| {
            ((b.clone(), a.clone(), c.clone(), outside.clone(), n + 1), (a.clone(), a.clone(), a + x, n * 2))
        })
    };
    let (a, b) = (array(&[1.0, 2.0], &[2]), array(&[3.0, 4.0], &[2]));
    let n = Client::cpu().array(&[5i32], &[]).expect("it fits");
    let xs = array(&[10.0, 20.0, 30.0], &[3]);
    let ((a_, b_, c, d, n_), (first, second, sums, twice)) = jit(run)(&a, &b, &n, &xs).expect("it runs");
    close(&a_, &[3.0, 4.0]);
    close(&b_, &[1.0, 2.0]);
    close(&c, &[1.0, 2.0]);
    close(&d, &[7.0, 8.0]);
    close(&first, &[1.0, 2.0, 3.0, 4.0, 1.0, 2.0]);
    close(&second, &numbers(&first).iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    close(&sums, &[11.0, 12.0, 23.0, 24.0, 31.0, 32.0]);
    assert_eq!((n_.to_vec::<i32>(), twice.to_vec::<i32>()), (Ok(vec![8]), Ok(vec![10, 12, 14])));
    // The arguments are as they were.
    close(&a, &[1.0, 2.0]);
    close(&b, &[3.0, 4.0]);
}

#[test]
fn scans_of_nothing_return_what_they_took() {
    let xs = Client::cpu().zeros(&[0, 3], DType::F32).expect("it fits");
    let (last, all) = recurrent(&weights(), &xs).expect("it runs");
    close(&last, &[0.0; 3]);
    assert_eq!(all.shape(), [0, 3]);
    let kept = fori_loop(3..3, &inputs(), |_, x: &Array| x * 2.0).expect("it runs");
    assert_eq!(numbers(&kept), numbers(&inputs()));
}

#[test]
fn gradients_pass_through_scans() {
    let (w, xs) = (weights(), inputs());
    let loss = |w: &Array, xs: &Array| {
        let (last, all) = recurrent(w, xs)?;
        Ok::<_, Error>((last * 2.0).sum(..) + (&all * &all).sum(..))
    };
    let want = differences(|w| loss(w, &inputs()).expect("it runs"), &numbers(&w), &[3, 3]);
    let by_inputs = differences(|xs| loss(&weights(), xs).expect("it runs"), &numbers(&xs), &[4, 3]);
    let at_once = grad(loss)(&w, &xs).expect("it runs");
    let compiled = jit(grad(loss))(&w, &xs).expect("it runs");
    let both = grad(move |both: &(Array, Array)| loss(&both.0, &both.1))(&(w, xs)).expect("it runs");
    let found = [(&at_once, &want), (&compiled, &want), (&both.0, &want), (&both.1, &by_inputs)];
    for (found, want) in found {
        for (x, want) in numbers(found).iter().zip(want) {
            assert!((f64::from(*x) - want).abs() <= 2e-3 * (1.0 + want.abs()), "{x} {want}");
        }
    }
}

#[test]
fn second_derivatives_pass_through_scans() {
    // x^8 by three squarings: 8 x^7, 56 x^6.
    let f = |x: &Array| fori_loop(0..3, x, |_: &Array, x: &Array| x * x);
    let x = array(&[1.1], &[]);
    close(&grad(f)(&x).expect("it runs"), &[8.0 * 1.1f64.powi(7)]);
    close(&jit(grad(grad(f)))(&x).expect("it runs"), &[56.0 * 1.1f64.powi(6)]);
    close(&grad(grad(grad(f)))(&x).expect("it runs"), &[336.0 * 1.1f64.powi(5)]);
}

#[test]
fn scans_nest() {
    // The sum of all products x[i] x[j] is the square of the sum.
    let f = |x: &Array| {
        let zero = Client::cpu().zeros(&[], DType::F32)?;
        let (sum, ()) = scan(&zero, x, |sum: &Array, a: &Array| {
            let (sum, ()) = scan(sum, x, |sum: &Array, b: &Array| (sum + a * b, ()))?;
            Ok((sum, ()))
        })?;
        Ok::<_, Error>(sum)
    };
    let x = array(&[0.5, -1.0, 2.0], &[3]);
    let (value, gradient) = value_and_grad(f)(&x).expect("it runs");
    close(&value, &[2.25]);
    close(&gradient, &[3.0; 3]);
    close(&jit(grad(f))(&x).expect("it runs"), &[3.0; 3]);
}

#[test]
fn scans_run_in_reverse() {
    let f = |x: &Array| {
        let zero = Client::cpu().zeros(&[], DType::F32)?;
        let (_, sums) = Scan::new().reverse(true).run(&zero, x, |sum: &Array, x: &Array| {
            let sum = sum + x;
            (sum.clone(), sum)
        })?;
        Ok::<_, Error>(sums)
    };
    let x = array(&[1.0, 2.0, 4.0], &[3]);
    close(&jit(f)(&x).expect("it runs"), &[7.0, 6.0, 4.0]);
    let square = move |x: &Array| f(x).map(|sums| (&sums * &sums).sum(..));
    close(&grad(square)(&x).expect("it runs"), &[14.0, 26.0, 34.0]);
}

#[test]
fn while_loops_end() {
    // The steps of Collatz's sequence from 27, and a captured limit.
    let limit = Client::cpu().array(&[1i32], &[]).expect("it fits");
    let steps = move |n: &Array| {
        let zero = Client::cpu().array(&[0i32], &[])?;
        let (_, steps) = while_loop(
            &(n.clone(), zero),
            |(n, _): &(Array, Array)| n.gt(&limit),
            |(n, steps): &(Array, Array)| {
                let is_odd = (n % 2).eq(1);
                (crate::ops::select(&is_odd, n * 3 + 1, n >> 1), steps + 1)
            },
        )?;
        Ok::<_, Error>(steps)
    };
    let n = Client::cpu().array(&[27i32], &[]).expect("it fits");
    assert_eq!(jit(steps)(&n).expect("it runs").to_vec::<i32>(), Ok(vec![111]));
    let error = grad(|x: &Array| while_loop(x, |x: &Array| x.lt(10.0), |x: &Array| x * 2.0))(&array(&[1.0], &[]));
    let error = error.expect_err("steps are not known").to_string();
    assert!(error.contains("reverse mode through a `while_loop`") && error.contains(file!()), "{error}");
}

#[test]
fn one_branch_runs() {
    let f = |number: &Array, x: &Array, y: &Array| {
        type Branch = fn(&(Array, Array)) -> Array;
        let functions: [Branch; 3] = [|(x, y)| x * y, |(x, _)| x.sin(), |(_, y)| y * y * y];
        switch(number, &(x.clone(), y.clone()), functions)
    };
    let (x, y) = (array(&[0.5, 2.0], &[2]), array(&[3.0, -1.0], &[2]));
    let [sx, cx] = [f64::sin, f64::cos].map(|f| vec![f(0.5), f(2.0)]);
    let values = [vec![1.5, -2.0], sx, vec![27.0, -1.0]];
    let gradients = [vec![3.0, -1.0], cx, vec![0.0, 0.0]];
    for (number, branch) in [(-4, 0), (0, 0), (1, 1), (2, 2), (9, 2)] {
        let number = Client::cpu().array(&[number], &[]).expect("it fits");
        close(&f(&number, &x, &y).expect("it runs"), &values[branch]);
        close(&jit(f)(&number, &x, &y).expect("it runs"), &values[branch]);
        let loss = move |x: &Array, number: &Array, y: &Array| f(number, x, y).map(|z| z.sum(..));
        close(&grad(loss)(&x, &number, &y).expect("it runs"), &gradients[branch]);
    }
}

#[test]
fn branches_capture_what_they_need() {
    let f = |x: &Array, w: &Array| {
        let is_long = (x * x).sum(..).gt(1.0);
        let doubled = w * 2.0;
        cond(&is_long, x, |x: &Array| (x * w).sum(..), |x: &Array| (x + &doubled).sum(..))
    };
    let w = array(&[2.0, 3.0], &[2]);
    for (x, value, by_x, by_w) in
        [([1.0, 1.0], 5.0, [2.0, 3.0], [1.0, 1.0]), ([0.1, 0.2], 10.3, [1.0, 1.0], [2.0, 2.0])]
    {
        let x = array(&x, &[2]);
        close(&jit(f)(&x, &w).expect("it runs"), &[value]);
        close(&jit(grad(f))(&x, &w).expect("it runs"), &by_x);
        close(&grad(move |w: &Array, x: &Array| f(x, w))(&w, &x).expect("it runs"), &by_w);
    }
}

#[test]
fn mistakes_in_loops_and_branches_are_named() {
    let (x, xs) = (array(&[1.0, 2.0], &[2]), inputs());
    let fails = |result: Result<(Array, ()), Error>, line: u32, message: &str| {
        let error = result.expect_err("it is wrong").to_string();
        assert!(error.contains(message) && error.contains(&format!("{}:{line}", file!())), "{error}");
    };
    let wider = scan(&x, &xs, |x: &Array, _: &Array| (x.expand_dims(0), ()));
    fails(wider, line!() - 1, "a step takes f32[2] and returns f32[1,2]");
    fails(scan(&x, &(), |x: &Array, ()| (x.clone(), ())), line!(), "a scan without arrays");
    let scalar = x.sum(..);
    let axisless = scan(&x, &scalar, |x: &Array, _: &Array| (x.clone(), ()));
    fails(axisless, line!() - 1, "f32[], which a scan reads element by element, has no axis");
    let two = (xs, x.clone());
    let unequal = scan(&x, &two, |x: &Array, _: &(Array, Array)| (x.clone(), ()));
    fails(unequal, line!() - 1, "array `1` of f32[2] in a scan of 4 steps");
    let other = cond(&scalar.gt(0.0), &x, |x: &Array| x.clone(), |x: &Array| x.sum(..)).map(|x| (x, ()));
    fails(other, line!() - 1, "the result is f32[] in the function for false and f32[2] in the function for true");
    let number = cond(&scalar, &x, |x: &Array| x.clone(), |x: &Array| x.clone()).map(|x| (x, ()));
    fails(number, line!() - 1, "the condition of a `cond` is f32[]");
    let many = while_loop(&x, |x: &Array| x.gt(0.0), |x: &Array| x.clone()).map(|x| (x, ()));
    fails(many, line!() - 1, "the condition of a `while_loop` is bool[2]");
    let none: [fn(&Array) -> Array; 0] = [];
    let number = Client::cpu().array(&[0i32], &[]).expect("it fits");
    fails(switch(&number, &x, none).map(|x| (x, ())), line!(), "a switch without functions");
}

/// Bodies that give what they carry in any order, twice, changed, or something from outside, in loops of loops: the
/// CPU, which turns pointers, agrees with the interpreter, which moves buffers.
#[test]
fn carried_values_change_places() {
    /// For each next value: one of the carried, a new one, or one from outside.
    fn next(rule: &[(u8, usize)], all: &[Array], outside: &Array) -> Vec<Array> {
        let one = |&(kind, i): &(u8, usize)| match kind {
            0 => all[i].clone(),
            1 => &all[i] + outside,
            2 => all[i].sin(),
            _ => outside.clone(),
        };
        rule.iter().map(one).collect()
    }
    let mut seed = 7u64;
    let mut draw = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    for case in 0..60 {
        let mut rule = || (0..4).map(|_| (draw(4) as u8, draw(4) as usize)).collect::<Vec<_>>();
        let (outer, inner, last) = (rule(), rule(), rule());
        let (length, steps, ends) = (draw(5) as i64, draw(4) as i64, draw(4) as i32);
        let f = move |outside: &Array, all: &Vec<Array>| {
            let (outer, inner, last) = (&outer, &inner, &last);
            let nested = |_: &Array, all: &Vec<Array>| {
                let all = next(outer, all, outside);
                fori_loop(0..steps, &all, |_: &Array, all: &Vec<Array>| next(inner, all, outside))
            };
            let all = fori_loop(0..length, all, nested)?;
            let count = all[0].client().array(&[0i32], &[])?;
            let going = |(_, n): &(Vec<Array>, Array)| n.lt(ends);
            let (all, _) =
                while_loop(&(all, count), going, |(all, n): &(Vec<Array>, Array)| (next(last, all, outside), n + 1))?;
            Ok::<_, Error>(all)
        };
        let run = |client: Client| {
            let outside = client.array(&[0.5f32, -0.25, 3.0], &[3]).expect("it fits");
            let start = |i: usize| client.array(&[i as f32, 0.1, -1.0], &[3]).expect("it fits");
            let all: Vec<Array> = (0..4).map(start).collect();
            let results = jit(f.clone())(&outside, &all).expect("it runs");
            assert_eq!(numbers(&all[1]), [1.0, 0.1, -1.0], "arguments are as they were");
            results.iter().map(numbers).collect::<Vec<_>>()
        };
        let [native, strict] = [Client::cpu(), Client::interpreter()].map(run);
        for (a, b) in native.iter().flatten().zip(strict.iter().flatten()) {
            assert!((a - b).abs() < 1e-5, "case {case}: {native:?} {strict:?}");
        }
    }
}

/// What depends on no parameter by a derivative has none, in a loop whose number of steps is not known as elsewhere.
#[test]
fn loops_without_derivatives_have_gradients() {
    let x = array(&[2.5, -1.5], &[2]);
    let steps = |x: &Array| {
        let start = (x.floor(), x.stop_gradient(), Client::cpu().array(&[0], &[])?);
        while_loop(
            &start,
            |(_, y, _): &(Array, Array, Array)| y.sum(..).lt(20.0),
            |(a, y, n): &(Array, Array, Array)| (a + 1.0, y * y + 1.0, n + 1),
        )
    };
    let f = move |x: &Array| {
        let (a, y, n) = steps(x)?;
        Ok::<_, Error>((x * a * y * n).sum(..))
    };
    let (a, y, n) = steps(&x).expect("it runs");
    let want: Vec<f64> = numbers(&(a * y * n)).into_iter().map(f64::from).collect();
    close(&grad(f)(&x).expect("it runs"), &want);
    close(&jit(crate::vmap(grad(f)))(&x.reshape(&[1, 2])).expect("it runs"), &want);
    // As operands that are captured: the condition and what is rounded have none either.
    let g = move |x: &Array| {
        let w = x.clone();
        let count =
            while_loop(&(w.round() * 0.0), |n: &Array| n.sum(..).lt(w.sum(..) + 5.0), |n: &Array| n + w.round().abs())?;
        Ok::<_, Error>((count * x).sum(..))
    };
    // Sums of 0 and 4 are below 1 + 5, that of 8 is not.
    close(&grad(g)(&x).expect("it runs"), &[4.0, 4.0]);
    let error = grad(|x: &Array| while_loop(x, |x: &Array| x.lt(10.0), |x: &Array| x * 2.0))(&array(&[1.0], &[]));
    assert!(error.expect_err("it is refused").to_string().contains("reverse mode through a `while_loop`"));
}

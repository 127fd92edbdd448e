//! One call for a batch, against one call for each example.
use super::{array, close, numbers, said};
use crate::ops::select;
use crate::prelude::*;
use crate::{cond, fori_loop, grad, jacfwd, jit, jvp, scan, switch, value_and_grad, vmap, while_loop};
use pallas_graph::transform::batched;
use pallas_graph::{Graph, Op};
use pallas_ir::structural::Dot;
use pallas_ir::{Literal, ScalarOp, StructuralOp, Type};

#[derive(Clone, Tree)]
struct Model {
    layers: Vec<Array>,
    bias: Array,
}

fn integers(x: &[i32], shape: &[usize]) -> Array {
    Client::cpu().array(x, shape).expect("it fits")
}

fn loss(model: &Model, x: &Array, y: &Array) -> Array {
    let mut h = x.clone();
    for w in &model.layers {
        h = (h.matmul(w) + &model.bias).tanh();
    }
    let error = h.sum(..) - y;
    &error * &error
}

#[test]
fn gradients_of_each_example() {
    let model = Model {
        layers: vec![array(&[0.5, -0.3, 0.2, 0.7], &[2, 2]), array(&[-0.1, 0.4, 0.6, -0.8], &[2, 2])],
        bias: array(&[0.05, -0.15], &[2]),
    };
    let xs = [[1.0, 2.0], [-0.5, 0.25], [0.0, -1.5]];
    let ys = [0.5, -1.0, 2.0];
    let (x, y) = (array(&xs.concat(), &[3, 2]), array(&ys, &[3]));
    let each = jit(vmap(value_and_grad(loss)).in_axes([None, Some(0), Some(0)]));
    let (values, gradients) = each(&model, &x, &y).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((gradients.layers[1].shape(), gradients.bias.shape()), (&[3, 2, 2][..], &[3, 2][..]));
    for i in 0..3 {
        let (value, gradient) =
            value_and_grad(loss)(&model, &array(&xs[i], &[2]), &array(&[ys[i]], &[])).expect("it runs");
        let part = |all: &Array, one: &Array| {
            let (all, one) = (numbers(all), numbers(one));
            let own = &all[i * one.len()..][..one.len()];
            assert!(own.iter().zip(&one).all(|(a, b)| (a - b).abs() < 1e-6), "{own:?} {one:?}");
        };
        part(&values, &value);
        part(&gradients.bias, &gradient.bias);
        (0..2).for_each(|k| part(&gradients.layers[k], &gradient.layers[k]));
    }
}

#[test]
fn a_batch_of_dots_is_one_dot() {
    let mut graph = Graph::default();
    let row = graph.param(Type::new(DType::F32, [3]));
    let matrix = graph.param(Type::new(DType::F32, [3, 4]));
    let dot = Dot { batch: vec![], contract: vec![(0, 0)], acc: DType::F32 };
    let product = graph.push(StructuralOp::from(dot), &[row, matrix]).expect("it fits");
    let two = graph.literal(Literal::new(DType::F32, 2.0));
    let twos = graph.broadcast(two, &[4]).expect("it fits");
    let result = graph.push(ScalarOp::Mul, &[product, twos]).expect("it fits");
    graph.results = vec![result, two];
    for which in [[true, false], [true, true]] {
        let (batch, has) = batched(&graph, &which, 5).expect("it fits");
        let count = |f: fn(&Op) -> bool| batch.equations.iter().filter(|e| f(&e.op)).count();
        assert_eq!(count(|op| matches!(op, Op::Structural(StructuralOp::Dot(_)))), 1, "{batch}");
        assert_eq!(count(|op| matches!(op, Op::Literal(_))), 1, "{batch}");
        assert_eq!(has, [true, false]);
        assert_eq!(batch.result_types(), [Type::new(DType::F32, [5, 4]), Type::scalar(DType::F32)]);
    }
    let (same, has) = batched(&graph, &[false, false], 5).expect("it fits");
    assert_eq!((same.equations.len(), has), (graph.equations.len(), vec![false, false]));
}

#[test]
fn batches_nest() {
    // A product of matrices from one of numbers, and from dots.
    let (a, b) = (array(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]), array(&[1.0, 0.0, -1.0, 2.0, 0.5, 1.0], &[3, 2]));
    let want: Vec<f64> = numbers(&a.matmul(&b)).into_iter().map(f64::from).collect();
    let dot = |x: &Array, y: &Array| (x * y).sum(..);
    let row = vmap(dot).in_axes([None, Some(1)]);
    close(&vmap(row).in_axes([Some(0), None])(&a, &b).expect("it runs"), &want);
    let outer = vmap(vmap(|x: &Array, y: &Array| x * y).in_axes([None, Some(0)])).in_axes([Some(0), None]);
    let (x, y) = (array(&[1.0, 2.0], &[2]), array(&[3.0, 4.0, 5.0], &[3]));
    close(&jit(outer)(&x, &y).expect("it runs"), &[3.0, 4.0, 5.0, 6.0, 8.0, 10.0]);
    close(&vmap(vmap(vmap(|x: &Array| x + 1.0)))(&array(&[1.0, 2.0], &[1, 2, 1])).expect("it runs"), &[2.0, 3.0]);
}

#[test]
fn axes_of_arguments_and_results() {
    let f = |x: &(Array, Array), w: &Array| (x.0.sum(..) * w + &x.1, w * 2.0);
    // Axis 1 of a matrix and of a row of ones; then the last axis.
    let x = (array(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]), array(&[0.0, 10.0, 20.0], &[1, 3]));
    let w = array(&[1.0, -1.0], &[2]);
    for axis in [1, -1] {
        let each = vmap(f).in_axes([Some(axis), None]).out_axes([Some(1), None]);
        let (y, twice) = each(&x, &w).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((y.shape(), twice.shape()), (&[2, 3][..], &[2][..]));
        close(&y, &[5.0, 17.0, 29.0, -5.0, 3.0, 11.0]);
        close(&twice, &[2.0, -2.0]);
    }
    let (y, twice) = vmap(f).in_axes([Some(1), None]).out_axes([Some(-1)])(&x, &w).expect("it runs");
    close(&y, &[5.0, 17.0, 29.0, -5.0, 3.0, 11.0]);
    assert_eq!(twice.shape(), [2, 3]);
    close(&twice, &[2.0, 2.0, 2.0, -2.0, -2.0, -2.0]);
    let (y, twice) = vmap(f).in_axes([Some(1), None])(&x, &w).expect("it runs");
    close(&y, &[5.0, -5.0, 17.0, 3.0, 29.0, 11.0]);
    close(&twice, &[2.0, -2.0, 2.0, -2.0, 2.0, -2.0]);
    let none = array(&[], &[0, 2]);
    assert_eq!(vmap(|x: &Array| x.sum(..))(&none).expect("it runs").shape(), [0]);
}

/// Steps of Collatz's sequence down to a limit, and the sum of what it passed.
fn collatz(n: &Array, limit: &Array) -> Result<(Array, Array)> {
    let zero = integers(&[0], &[]);
    let limit = limit.clone();
    let (_, steps, sum) = while_loop(
        &(n.clone(), zero, n.cast(DType::F32)),
        move |(n, _, _): &(Array, Array, Array)| n.gt(&limit),
        |(n, steps, sum): &(Array, Array, Array)| {
            let next = select(&(n % 2).eq(1), n * 3 + 1, n >> 1);
            (next.clone(), steps + 1, sum + next.cast(DType::F32))
        },
    )?;
    Ok((steps, sum))
}

#[test]
fn while_loops_end_one_by_one() {
    let starts = [27, 1, 6, 97, 2];
    let limits = [1, 1, 3, 1, 5];
    let want: Vec<(i32, f32)> = (0..5)
        .map(|i| {
            let (steps, sum) = collatz(&integers(&[starts[i]], &[]), &integers(&[limits[i]], &[])).expect("it runs");
            (steps.to_vec::<i32>().expect("it ran")[0], numbers(&sum)[0])
        })
        .collect();
    assert_eq!((want[0].0, want[1].0, want[2].0, want[3].0, want[4].0), (111, 0, 1, 118, 0));
    let found = jit(vmap(collatz))(&integers(&starts, &[5]), &integers(&limits, &[5])).expect("it runs");
    assert_eq!(found.0.to_vec::<i32>(), Ok(want.iter().map(|(steps, _)| *steps).collect()));
    assert_eq!(numbers(&found.1), want.iter().map(|(_, sum)| *sum).collect::<Vec<_>>());
    // One start with several limits, and several starts with one limit; a batch of batches.
    let limits = integers(&[1, 4, 26], &[3]);
    let by_limit = vmap(collatz).in_axes([None, Some(0)])(&integers(&[27], &[]), &limits).expect("it runs");
    assert_eq!(by_limit.0.to_vec::<i32>(), Ok(vec![111, 109, 96]));
    let square = integers(&[27, 1, 6, 97], &[2, 2]);
    let nested = vmap(vmap(collatz).in_axes([Some(0), None]))(&square, &integers(&[1, 1], &[2])).expect("it runs");
    assert_eq!(nested.0.to_vec::<i32>(), Ok(vec![111, 0, 8, 118]));
    // A condition that is the same for all: the values alone are batched.
    let powers = vmap(|x: &Array| {
        let init = (integers(&[0], &[]), x.clone());
        let (_, x) = while_loop(&init, |(i, _): &(Array, Array)| i.lt(3), |(i, x): &(Array, Array)| (i + 1, x * x))?;
        Ok::<_, Error>(x)
    });
    close(&powers(&array(&[1.0, 2.0, -1.5], &[3])).expect("it runs"), &[1.0, 256.0, 1.5f64.powi(8)]);
}

#[test]
fn finished_examples_keep_their_values() {
    // Each step divides by what is left: after the end of an example it would divide by zero.
    let f = |n: &Array| {
        let init = (n.clone(), array(&[0.0], &[]));
        let step = |(n, sum): &(Array, Array)| (n - 1.0, sum + 1.0 / n);
        let (_, sum) = while_loop(&init, |(n, _): &(Array, Array)| n.gt(0.0), step)?;
        Ok::<_, Error>(sum)
    };
    let n = array(&[1.0, 4.0, 0.0, 2.0], &[4]);
    close(&vmap(f)(&n).expect("it runs"), &[1.0, 25.0 / 12.0, 0.0, 1.5]);
    let slopes = vmap(jacfwd(f))(&n).expect("it runs");
    let slope = |n: i32| -(1..=n).map(|k| 1.0 / f64::from(k * k)).sum::<f64>();
    close(&slopes, &[slope(1), slope(4), 0.0, slope(2)]);
}

#[test]
fn branches_of_each_example() {
    let f = |number: &Array, x: &Array, y: &Array| {
        type Branch = fn(&(Array, Array)) -> (Array, Array);
        let functions: [Branch; 3] =
            [|(x, y)| (x * y, y.clone()), |(x, y)| (x.sin(), y * 2.0), |(_, y)| (y.broadcast_to(&[2]), y * y)];
        switch(number, &(x.clone(), y.clone()), functions)
    };
    let number = integers(&[2, -3, 1, 7, 0], &[5]);
    let x: Vec<f32> = (0..10).map(|i| i as f32 / 4.0 - 1.0).collect();
    let (x, y) = (array(&x, &[5, 2]), array(&[3.0, -1.0, 0.5, 2.0, 4.0], &[5]));
    let (first, second) = jit(vmap(f))(&number, &x, &y).expect("it runs");
    let want = [3.0, 3.0, 0.5, 0.25, 0.0, 0.25f64.sin(), 2.0, 2.0, 4.0, 5.0];
    close(&first, &want);
    close(&second, &[9.0, -1.0, 1.0, 4.0, 4.0]);
    let loss = move |x: &Array, number: &Array, y: &Array| f(number, x, y).map(|(z, _)| z.sum(..));
    let slopes = vmap(grad(loss))(&x, &number, &y).expect("it runs");
    close(&slopes, &[0.0, 0.0, -1.0, -1.0, 1.0, 0.25f64.cos(), 0.0, 0.0, 4.0, 4.0]);
    // One number for all.
    let (first, _) =
        vmap(f).in_axes([None, Some(0), None])(&integers(&[1], &[]), &x, &array(&[1.0], &[])).expect("it runs");
    close(&first, &numbers(&x).iter().map(|&x| f64::from(x).sin()).collect::<Vec<_>>());
}

#[test]
fn batches_in_loops_and_loops_in_batches() {
    let recurrent = |w: &Array, xs: &Array| {
        let (last, all) = scan(&xs.sum(0), xs, |h: &Array, x: &Array| {
            let h = (h * w + x).tanh();
            (h.clone(), (h, w * 1.0))
        })?;
        Ok::<_, Error>(last + (all.0 * &all.1).sum(0))
    };
    let (w, xs) = (array(&[0.5, -0.25], &[2]), array(&[0.1, 0.2, -0.3, 0.4, 0.5, -0.6], &[3, 2]));
    // The batch is axis 1 of the inputs, axis 0 of the weights.
    let found = vmap(recurrent).in_axes([Some(0), Some(1)])(&w, &xs).expect("it runs");
    let columns = [[0.1, -0.3, 0.5], [0.2, 0.4, -0.6]];
    let one = |i: usize| recurrent(&array(&[[0.5, -0.25][i]], &[]), &array(&columns[i], &[3])).expect("it runs");
    let want: Vec<f64> = (0..2).map(|i| f64::from(numbers(&one(i))[0])).collect();
    close(&found, &want);
    // The same as a scan of elementwise operations, and its gradient.
    close(&recurrent(&w, &xs).expect("it runs"), &want);
    let slopes = vmap(grad(recurrent)).in_axes([Some(0), Some(1)])(&w, &xs).expect("it runs");
    let sum = move |w: &Array, xs: &Array| vmap(recurrent).in_axes([Some(0), Some(1)])(w, xs).map(|x| x.sum(..));
    let of_sum = jit(grad(sum))(&w, &xs).expect("it runs");
    close(&slopes, &numbers(&of_sum).iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    let (_, tangent) = jvp(vmap(recurrent).in_axes([Some(0), Some(1)]))(
        &(w.clone(), xs.clone()),
        &(array(&[1.0, 1.0], &[2]), &xs * 0.0),
    )
    .expect("it runs");
    close(&slopes, &numbers(&tangent).iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    // A batch in each step, of a value around the loop.
    let f = jit(|x: &Array| {
        fori_loop(0..3, x, |_: &Array, h: &Array| {
            let x = x.clone();
            vmap(move |h: &Array, at: &Array| cond(&at.gt(0.0), h, |h: &Array| h * 2.0, |h: &Array| h + x.sum(..)))
                .in_axes([Some(0), Some(0)])(h, h)
        })
    });
    close(&f(&array(&[1.0, -4.0], &[2])).expect("it runs"), &[8.0, -13.0]);
}

#[test]
fn captured_arrays_are_the_same_for_all() {
    let w = array(&[1.0, 10.0], &[2]);
    let x = array(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let outside = w.clone();
    let f = vmap(move |x: &Array| (x * &outside).sum(..));
    close(&f(&x).expect("it runs"), &[21.0, 43.0]);
    // A traced one, by which there is a gradient.
    let by_w = grad(|w: &Array, x: &Array| {
        let w = w.clone();
        vmap(move |x: &Array| (x * &w).sum(..))(x).map(|y| (&y * &y).sum(..))
    });
    close(&by_w(&w, &x).expect("it runs"), &[2.0 * (21.0 + 43.0 * 3.0), 2.0 * (42.0 + 43.0 * 4.0)]);
}

#[test]
fn mistakes_of_batches_are_named() {
    let (x, y) = (array(&[1.0, 2.0], &[2]), array(&[1.0, 2.0, 3.0], &[3]));
    let at = line!() + 1;
    let f = vmap(|x: &(Array, Array), y: &Array| &x.0 + &x.1 + y);
    let unequal = f(&(x.clone(), x.clone()), &y);
    let words = "a batch of 2 in argument `0.0` of f32[2] and of 3 in argument `1` of f32[3]";
    assert!(said(unequal, at).contains(words));
    let scalar = x.sum(..);
    let rank = f(&(x.clone(), scalar), &x);
    assert!(said(rank, at).contains("`vmap` along axis 0 of argument `0.1` of f32[]"));
    let at = line!() + 1;
    let f = vmap(|x: &Array, y: &Array| (x + 1.0, y + 1.0)).in_axes([Some(0)]);
    assert!(said(f(&x, &y), at).contains("1 axes for 2 children with 2 arrays in 2 arguments"));
    let at = line!() + 1;
    let f = vmap(|x: &Array, y: &Array| (x + 1.0, y + 1.0)).in_axes([None, None]);
    assert!(said(f(&x, &y), at).contains("without a batched array"));
    let at = line!() + 1;
    let f = vmap(|x: &Array, y: &Array| (x + 1.0, y + 1.0)).in_axes([Some(0), None]).out_axes([None, Some(0)]);
    assert!(said(f(&x, &y), at).contains("the result `0` depends on the example"));
    let at = line!() + 1;
    let f = vmap(|x: &Array, y: &Array| (x + 1.0, y + 1.0)).in_axes([Some(0), None]).out_axes([Some(1), Some(0)]);
    assert!(said(f(&x, &y), at).contains("a batch along axis 1 of the result `0`, which has 1 axes"));
    let at = line!() + 1;
    let f = vmap(|x: &Array, y: &Array| (x + 1.0, y + 1.0)).in_axes([Some(0), None]).out_axes([Some(0); 3]);
    assert!(said(f(&x, &y), at).contains("3 axes for 2 children with 2 arrays in a result"));
    // More axes than an array can have, with the line of the operation.
    let at = line!() + 1;
    let f = vmap(|x: &Array| x.broadcast_to(&[1; 8]));
    assert!(said(f(&x), at).contains("has 9 axes"));
}

#[test]
fn batches_of_gathers_and_scatters_are_loops() {
    let f = |x: &Array, at: &Array, y: &Array| {
        let taken = x.take(at, 0).sin() + x.index((at, 1)).expand_dims(1);
        (taken, x.at(at).add(y), x.at((at, ..1)).max(y.index((.., ..1))))
    };
    let x = array(&std::array::from_fn::<f32, 24, _>(|i| i as f32 * 0.37 % 2.0), &[3, 4, 2]);
    let y = array(&std::array::from_fn::<f32, 18, _>(|i| 1.5 - i as f32 * 0.51 % 2.0), &[3, 3, 2]);
    // Several of one place, from the end, and outside.
    let at = integers(&[0, 0, 3, -1, 2, 7, 1, -9, 1], &[3, 3]);
    let first = |x: &Array, is_batched: bool, k: usize| if is_batched { x.index(k) } else { x.index(0) };
    for set in 1..8 {
        let on = [0, 1, 2].map(|i| set >> i & 1 == 1);
        let axes = on.map(|on| on.then_some(0));
        let whole = |x: &Array, on: bool| if on { x.clone() } else { x.index(0) };
        let (xs, ats, ys) = (whole(&x, on[0]), whole(&at, on[1]), whole(&y, on[2]));
        let all = jit(vmap(f).in_axes(axes))(&xs, &ats, &ys).unwrap_or_else(|e| panic!("{axes:?}: {e}"));
        for k in 0..3 {
            let one = f(&first(&x, on[0], k), &first(&at, on[1], k), &first(&y, on[2], k));
            for (all, one) in [(&all.0, &one.0), (&all.1, &one.1), (&all.2, &one.2)] {
                let (all, one) = (numbers(&all.index(k)), numbers(one));
                let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6 || a.is_nan() && b.is_nan();
                assert!(all.len() == one.len() && all.iter().zip(&one).all(near), "{axes:?} {k}: {all:?} {one:?}");
            }
        }
    }
    let text = crate::make_jaxpr(vmap(|x: &Array, at: &Array| x.take(at, 0)))(&x, &at).expect("it is traced");
    assert_eq!(text.matches("gather[").count(), 1, "{text}");
    // Rows are read where the table is, and what uses them shares their kernel; updates are one more.
    let launches = crate::jit::count_steps(|x: &Array, at: &Array| x.take(at, 0) * 2.0)(&x.index(0), &at.index(0));
    assert_eq!(launches.expect("it compiles"), 1);
}

#[test]
fn batches_of_pads_have_the_value_of_each() {
    let (x, values) = (array(&[1.0, -2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]), array(&[f32::NAN, -0.0], &[2]));
    let bits = |x: &Array| numbers(x).iter().map(|y| y.to_bits()).collect::<Vec<_>>();
    let pad = |x: &Array, value: &Array| x.pad(&[(1, 2)], value);
    let all = vmap(pad)(&x, &values).expect("it runs");
    let shared = vmap(pad).in_axes([None, Some(0)])(&x.index(0), &values).expect("it runs");
    for k in 0..2 {
        assert_eq!(bits(&all.index(k)), bits(&pad(&x.index(k), &values.index(k))), "{k}");
        assert_eq!(bits(&shared.index(k)), bits(&pad(&x.index(0), &values.index(k))), "{k}");
    }
    // Of bools, integers, and no elements.
    for dtype in [DType::Bool, DType::U8, DType::I32, DType::Bf16] {
        for x in [x.cast(dtype), x.index((.., ..0)).cast(dtype)] {
            let values = integers(&[0, 1], &[2]).cast(dtype);
            let all = vmap(pad)(&x, &values).expect("it runs");
            for k in 0..2 {
                let [all, one] =
                    [all.index(k), pad(&x.index(k), &values.index(k))].map(|y| numbers(&y.cast(DType::F32)));
                assert_eq!(all, one, "{dtype} {k}");
            }
        }
    }
}

//! Kernels inside of traced functions, and functions with derivatives of their own.
use super::super::program::Program;
use super::super::trace::{TracedParameter, trace};
use super::{array, close, numbers};
use crate::launch::Ended;
use crate::{Differentiable, checkpoint, custom_vjp, fori_loop, grad, jit, jvp, scan, value_and_grad, vmap};
use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 4)))]
fn scaled(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>, by: f32) {
    out.store(x.load() * by);
}

/// Takes over the memory of its first input.
#[kernel(grid = (cdiv(N, 4)))]
fn added(
    #[block([N] => [4], |i| (i,))] x: In<f32>,
    #[block([N] => [4], |i| (i,))] y: In<f32>,
    #[block([N] => [4], |i| (i,), alias = x)] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}

/// Two outputs; blocks in an order that an array gives.
#[kernel(grid = (M))]
fn reordered(
    #[prefetch([M])] order: Prefetch<i32>,
    #[block([M, N] => [1, N], |i| (order.at(i), 0))] x: In<f32>,
    #[block([M, N] => [1, N], |i| (i, 0))] rows: Out<f32>,
    #[block([M, N] => [1, N], |i| (i, 0))] squares: Out<f32>,
) {
    rows.store(x.load());
    squares.store(x.load() * x.load());
}

/// x³ by kernels, and its derivative.
#[kernel(grid = (cdiv(N, 4)))]
fn cubes(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    let x = x.load();
    out.store(x * x * x);
}
#[kernel(grid = (cdiv(N, 4)))]
fn cubes_backward(
    #[block([N] => [4], |i| (i,))] x: In<f32>,
    #[block([N] => [4], |i| (i,))] dy: In<f32>,
    #[block([N] => [4], |i| (i,))] out: Out<f32>,
) {
    let x = x.load();
    out.store(x * x * dy.load() * 3.0);
}
fn cube(x: &Array) -> Result<Array> {
    let f = custom_vjp(
        |x: &Array| cubes(x),
        |x: &Array| Ok((cubes(x)?, x.clone())),
        |x: &Array, dy: &Array| Ok((cubes_backward(x, dy)?,)),
    );
    f(x)
}

#[test]
fn kernels_are_operations_of_traced_functions() {
    let f = |x: &Array, y: &Array| {
        let z = scaled(&(x + 1.0), 2.0)?;
        Ok::<_, Error>(added(&z, y)? * &z)
    };
    let (x, y) = (array(&[1.0, 2.0, 3.0, 4.0, 5.0], &[5]), array(&[0.5; 5], &[5]));
    let want: Vec<f64> = (2..7).map(|x| f64::from(2 * x) * (f64::from(2 * x) + 0.5)).collect();
    for client in [Client::cpu(), Client::interpreter()] {
        let [x, y] = [&x, &y].map(|x| x.to_device(&client).expect("it has room"));
        let compiled = jit(f);
        close(&f(&x, &y).expect("it runs"), &want);
        for _ in 0..2 {
            close(&compiled(&x, &y).expect("it runs"), &want);
        }
        assert_eq!((numbers(&x)[4], numbers(&y)[4]), (5.0, 0.5), "arguments stay as they are");
    }
}

#[test]
fn an_aliased_argument_is_copied_and_an_aliased_value_is_not() {
    let (x, y) = (array(&[1.0, 2.0, 3.0], &[3]), array(&[10.0; 3], &[3]));
    let f = jit(|x: &Array, y: &Array| Ok::<_, Error>((added(x, y)?, added(&added(&(x * 2.0), y)?, x)?)));
    let (first, second) = f(&x, &y).expect("it runs");
    close(&first, &[11.0, 12.0, 13.0]);
    close(&second, &[13.0, 16.0, 19.0]);
    close(&x, &[1.0, 2.0, 3.0]);
}

#[test]
fn kernels_read_prefetched_values_of_the_function() {
    let order = Client::cpu().array(&[2i32, 0, 1], &[3]).expect("it fits");
    let x = array(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]);
    let f = jit(|order: &Array, x: &Array| {
        let (rows, squares) = reordered(&(order + 0), x)?;
        Ok::<_, Error>(rows + squares)
    });
    close(&f(&order, &x).expect("it runs"), &[30.0, 42.0, 2.0, 6.0, 12.0, 20.0]);
}

#[test]
fn kernels_run_in_loops() {
    let x = array(&[1.0, -1.0], &[2]);
    let f = jit(|x: &Array| fori_loop(0..3, x, |_: &Array, x: &Array| added(&scaled(x, 2.0)?, x)));
    close(&f(&x).expect("it runs"), &[27.0, -27.0]);
}

#[test]
fn a_kernel_states_its_gradient() {
    let loss = |x: &Array| cube(&x.sin()).map(|y| (y * 0.5).sum(..));
    let x = array(&[0.3, -0.7, 1.1], &[3]);
    let want: Vec<f64> = numbers(&x).iter().map(|&x| 1.5 * f64::from(x).sin().powi(2) * f64::from(x).cos()).collect();
    let (value, gradient) = value_and_grad(loss)(&x).expect("it runs");
    close(&gradient, &want);
    close(&value, &[numbers(&x).iter().map(|&x| 0.5 * f64::from(x).sin().powi(3)).sum()]);
    close(&jit(grad(loss))(&x).expect("it runs"), &want);
    // In a loop: (x³)³ has the derivative 9 x⁸.
    let nested = |x: &Array| fori_loop(0..2, x, |_: &Array, x: &Array| cube(x)).map(|y| y.sum(..));
    let want: Vec<f64> = numbers(&x).iter().map(|&x| 9.0 * f64::from(x).powi(8)).collect();
    close(&jit(grad(nested))(&x).expect("it runs"), &want);
}

#[test]
fn a_kernel_without_a_rule_has_no_gradient() {
    let x = array(&[0.3, -0.7], &[2]);
    let line = line!() + 1;
    let error = grad(|x: &Array| scaled(x, 2.0).map(|y| y.sum(..)))(&x).expect_err("no rule").to_string();
    assert!(error.contains(&format!("{}:{line}:", file!())), "{error}");
    assert!(error.contains("the gradient of kernel `scaled`, which states none"), "{error}");
    // The rule of `cubes` is made of kernels without one.
    let second = grad(|x: &Array| grad(|x: &Array| cube(x).map(|y| y.sum(..)))(x).map(|dx| dx.sum(..)))(&x);
    let error = second.expect_err("no rule for the rule").to_string();
    assert!(error.contains("the gradient of kernel `cubes_backward`"), "{error}");
    // Its value is a constant where the gradient is stopped.
    let stopped = grad(|x: &Array| scaled(x.stop_gradient(), 2.0).map(|y| (y * x).sum(..)))(&x).expect("it runs");
    close(&stopped, &[0.6, -1.4]);
}

#[test]
fn mistakes_in_rules_are_named() {
    let x = array(&[0.3, -0.7], &[2]);
    let wrong = custom_vjp(|x: &Array| x * 2.0, |x: &Array| (x * 2.0, ()), |_: &(), dy: &Array| (dy.sum(..),));
    let error = grad(move |x: &Array| wrong(x).map(|y| y.sum(..)))(&x).expect_err("another shape").to_string();
    assert!(error.contains("the cotangent of `0` of f32[2] is f32[]") && error.contains(file!()), "{error}");
    let error = grad(move |x: &Array| {
        let outer = x * 1.0;
        let captures =
            custom_vjp(move |y: &Array| y * &outer, |y: &Array| (y * 1.0, ()), |_: &(), dy: &Array| (dy.clone(),));
        captures(x).map(|y| y.sum(..))
    })(&x);
    let error = error.expect_err("a captured array").to_string();
    assert!(error.contains("captures an array that the gradient is asked for"), "{error}");
}

#[test]
fn a_checkpoint_stores_arguments_alone() {
    let w = array(&[0.5, -0.3, 0.2, 0.4], &[2, 2]);
    let xs = array(&(0..64).map(|i| (i % 7) as f32 / 7.0).collect::<Vec<_>>(), &[32, 2]);
    fn layer(h: &Array, w: &Array) -> Array {
        (0..6).fold(h.clone(), |h, _| (h.matmul(w) * 1.1).tanh().sin())
    }
    let run = |step: fn(&Array, &Array) -> Result<Array>| {
        move |w: &Array, xs: &Array| {
            let start = xs.sum(0) * 0.0;
            let (last, ()) = scan(&start, xs, |h: &Array, x: &Array| Ok::<_, Error>((step(&(h + x), w)?, ())))?;
            Ok::<_, Error>(last.sum(..))
        }
    };
    let plain = run(|h, w| Ok(layer(h, w)));
    let again = run(|h, w| checkpoint(layer_of_two)(h, w));
    fn layer_of_two(h: &Array, w: &Array) -> Array {
        layer(h, w)
    }
    let want: Vec<f64> = numbers(&grad(plain)(&w, &xs).expect("it runs")).into_iter().map(f64::from).collect();
    close(&grad(again)(&w, &xs).expect("it runs"), &want);
    close(&jit(grad(again))(&w, &xs).expect("it runs"), &want);
    // Temporary memory of both.
    let temporary = |f: &dyn Fn(&Array, &Array) -> Result<Array>| {
        let traced =
            trace(&Client::cpu(), &[TracedParameter::like_array(&w), TracedParameter::like_array(&xs)], |params| {
                Ok(vec![f(&params[0], &params[1])?])
            });
        let program = Program::new(&traced.expect("it traces").graph, &Client::cpu()).expect("it compiles");
        program.temporary_bytes()
    };
    let [plain, again] = [temporary(&|w, xs| grad(plain)(w, xs)), temporary(&|w, xs| grad(again)(w, xs))];
    assert!(2 * again < plain, "{again} bytes, without checkpoint {plain}");
    // The derivative of the derivative.
    let second = |f: fn(&Array) -> Result<Array>| grad(move |x: &Array| grad(f)(x).map(|dx| (&dx * &dx).sum(..)));
    let x = array(&[0.4, 0.8], &[2]);
    let want: Vec<f64> =
        numbers(&second(|x| Ok((x.sin() * x).sum(..)))(&x).expect("it runs")).into_iter().map(f64::from).collect();
    close(&second(|x| checkpoint(|x: &Array| (x.sin() * x).sum(..))(x))(&x).expect("it runs"), &want);
}

/// Scaled rows, whose sizes and factors are arrays: with scratch, steps in order, and a map that reads memory.
#[kernel(grid = (R, cdiv(N, 2)), semantics = (parallel, arbitrary))]
fn sums_of(
    #[prefetch([R])] order: Prefetch<i32>,
    #[block([R, N] => [_, 2], |r, j| (order.at(r), j), fill = 0.0)] x: In<f32>,
    #[block([R] => [1], |r, _| (r,))] out: Out<f32>,
    #[scratch([1])] sum: Scratch<f32>,
) {
    if program_id(1) == 0 {
        sum.fill(0.0);
    }
    sum.store(sum.load() + x.load().sum(0) * (order.at(program_id(0)) + 1).cast::<f32>());
    if program_id(1) == num_programs(1) - 1 {
        out.store(sum.load());
    }
}

#[test]
fn kernels_are_batched_by_one_more_axis_of_the_grid() {
    let cpu = Client::cpu();
    let x = array(&(0..30).map(|i| i as f32 / 7.0).collect::<Vec<_>>(), &[2, 5, 3]);
    let orders = cpu.array(&[4i32, 0, 2, 1, 3, 3, 1, 0, 4, 2], &[2, 5]).expect("it fits");
    let slice = |i: usize| {
        let order = cpu.array(&orders.to_vec::<i32>().expect("it ran")[5 * i..5 * i + 5], &[5]).expect("it fits");
        (order, array(&numbers(&x)[15 * i..15 * i + 15], &[5, 3]))
    };
    let doubles = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
    // Both operands have the axis, or one of them.
    let both: Vec<f64> = (0..2)
        .flat_map(|i| {
            let (order, x) = slice(i);
            doubles(numbers(&sums_of(&order, &x).expect("it runs")))
        })
        .collect();
    let f = |order: &Array, x: &Array| sums_of(order, x);
    for client in [Client::cpu(), Client::interpreter()] {
        let [orders, x] = [&orders, &x].map(|x| x.to_device(&client).expect("it has room"));
        close(&jit(vmap(f))(&orders, &x).expect("it runs"), &both);
    }
    let (order, _) = slice(0);
    let shared: Vec<f64> =
        (0..2).flat_map(|i| doubles(numbers(&sums_of(&order, &slice(i).1).expect("it runs")))).collect();
    let over_x = vmap(f).in_axes([None, Some(0)]);
    close(&over_x(&order, &x).expect("it runs"), &shared);
    let one_kernel = trace(&cpu, &[TracedParameter::like_array(&orders), TracedParameter::like_array(&x)], |params| {
        Ok(vec![vmap(f)(&params[0], &params[1])?])
    });
    assert_eq!(Program::new(&one_kernel.expect("it traces").graph, &cpu).expect("it compiles").step_count(), 1);

    // Aliases, parameters, two axes, and functions with gradients of their own.
    let (a, b) = (array(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]), array(&[10.0, 20.0, 30.0], &[3]));
    let sums = vmap(|a: &Array, b: &Array| added(&scaled(b, 2.0)?, a)).in_axes([Some(0), None]);
    close(&sums(&a, &b).expect("it runs"), &[21.0, 42.0, 63.0, 24.0, 45.0, 66.0]);
    close(&b, &[10.0, 20.0, 30.0]);
    let nested = vmap(|x: &Array| vmap(|x: &Array| scaled(x, 3.0))(x));
    let want: Vec<f64> = numbers(&x).iter().map(|&x| 3.0 * f64::from(x)).collect();
    close(&nested(&x.reshape(&[5, 2, 3])).expect("it runs"), &want);
    let want: Vec<f64> = numbers(&a).iter().map(|&x| 3.0 * f64::from(x).powi(2)).collect();
    let each = vmap(grad(|x: &Array| cube(x).map(|y| y.sum(..))));
    close(&jit(each)(&a).expect("it runs"), &want);
    // The cotangent of an argument that all examples share is the sum of theirs.
    let shared = grad(|b: &Array, a: &Array| {
        let each = vmap(|b: &Array, a: &Array| cube(b).map(|y| y * a)).in_axes([None, Some(0)]);
        each(b, a).map(|y| y.sum(..))
    });
    let want: Vec<f64> = (0..3).map(|i| 3.0 * [100.0, 400.0, 900.0][i] * [5.0, 7.0, 9.0][i]).collect();
    close(&shared(&b, &a).expect("it runs"), &want);
    let checkpointed = vmap(grad(|x: &Array| checkpoint(|x: &Array| (x * x * x).sum(..))(x)));
    let want: Vec<f64> = numbers(&a).iter().map(|&x| 3.0 * f64::from(x).powi(2)).collect();
    close(&checkpointed(&a).expect("it runs"), &want);
}

/// Both operands are whole arrays.
#[kernel(grid = ())]
fn totals(#[block([N])] x: In<f32>, #[block([N])] out: Out<f32>) {
    out.store(x.load().cumsum(0));
}

#[test]
fn whole_operands_are_batched() {
    let x = array(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    close(&jit(vmap(|x: &Array| totals(x)))(&x).expect("it runs"), &[1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
}

/// The square of each element, as four times that of a half where a gradient is asked for.
fn square(x: &Array, results: impl Fn(&Array) -> Array) -> Result<Array, Error> {
    let (call, [inside]) = Differentiable::begin([x])?;
    let y = &inside * &inside;
    let (call, args) = call.begin_forward([&y])?;
    let half = args.map_or(inside, |args| args[0].clone()) * 0.5;
    let y = match call.end([results(&half)], &[&half])? {
        Ended::Results([y]) => y,
        Ended::Backward { call, residuals, cotangents: [dy] } => {
            let [y] = call.end(&[&residuals[0] * 4.0 * dy])?;
            y
        }
    };
    Ok(y)
}

#[test]
fn another_function_has_the_gradient() {
    let x = array(&[3.0, -1.0], &[2]);
    let four_squares = |half: &Array| half * half * 4.0;
    close(&square(&x, four_squares).expect("it runs"), &[9.0, 1.0]);
    close(&jit(move |x: &Array| square(x, four_squares))(&x).expect("it runs"), &[9.0, 1.0]);
    let (y, slope) = value_and_grad(move |x: &Array| square(x, four_squares).map(|y| y.sum(..)))(&x).expect("it runs");
    close(&y, &[10.0]);
    close(&slope, &[6.0, -2.0]);
    let error = jit(|x: &Array| square(x, |half| half.sum(..)))(&x).expect_err("the results differ").to_string();
    assert!(error.contains("of f32[2] is f32[] by `forward`"), "{error}");
}

#[test]
fn calls_that_end_out_of_order_are_refused() {
    let f = jit(|x: &Array| {
        let (outer, [a]) = Differentiable::begin([x])?;
        let (inner, [_]) = Differentiable::begin([&a])?;
        let ended = outer.end([a], &[]).map(drop);
        drop(inner);
        ended?;
        Ok::<_, Error>(x.clone())
    });
    let error = f(&array(&[1.0], &[1])).expect_err("the inner call is open").to_string();
    assert!(error.contains("end calls in the reverse order"), "{error}");
}

#[test]
fn a_stated_gradient_states_no_tangent() {
    let x = array(&[0.3, -0.7], &[2]);
    let error = jvp(|x: &Array| cube(x))(&(x.clone(),), &(x.clone(),)).expect_err("it has none").to_string();
    assert!(error.contains("states its reverse-mode gradient") && error.contains(file!()), "{error}");
}

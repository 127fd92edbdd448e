//! Functions that every device of a mesh calls on its blocks.
#![allow(clippy::print_stdout, reason = "how many states agree")]
mod batches;
pub(super) mod laws;
mod nested;
mod partial;
mod states;
mod values;

use super::numbers;
use crate::ops::between;
use crate::prelude::*;
use crate::sharding::{Mesh, NamedSharding, P, device_put};
use crate::spmd::{self, psum};
use crate::{custom_vjp, grad, jit, lower, partitioned, pmap, scan, shard_map, value_and_grad, vmap, while_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(super) fn mesh(axes: &[(&str, usize)]) -> Arc<Mesh> {
    Arc::new(Mesh::new(axes).expect("a mesh"))
}

/// Numbers from 0 on.
fn counting(shape: &[usize]) -> Array {
    let n: usize = shape.iter().product();
    Client::cpu().array(&(0..n).map(|i| i as f32).collect::<Vec<_>>(), shape).expect("it fits")
}

fn close(a: &[f32], b: &[f32]) -> bool {
    let scale = b.iter().fold(1f32, |m, x| m.max(x.abs()));
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * scale)
}

fn message<T>(found: Result<T>) -> String {
    found.err().expect("a mistake").to_string()
}

/// Each collective on blocks of three devices, one number each or a few, against its definition.
#[test]
fn collectives_do_what_they_say() {
    let mesh = mesh(&[("data", 3)]);
    let x = counting(&[9]);
    let rows =
        |f: fn(&Array) -> Array| numbers(&jit(shard_map(f, &mesh, [P("data")], [P("data")]))(&x).expect("it runs"));
    let whole = |f: fn(&Array) -> Array| numbers(&shard_map(f, &mesh, [P("data")], [P(())])(&x).expect("it runs"));
    assert_eq!(whole(|x| psum(x, "data")), [9., 12., 15.]);
    assert_eq!(whole(|x| spmd::pmean(x, "data")), [3., 4., 5.]);
    assert_eq!(whole(|x| spmd::pmax(x, "data")), [6., 7., 8.]);
    assert_eq!(whole(|x| spmd::pmin(x, "data")), [0., 1., 2.]);
    assert_eq!(whole(|x| spmd::all_gather_invariant(x, "data", 0)), numbers(&x));
    assert_eq!(rows(|x| spmd::all_gather(x, "data", 1).at(0).get()), [0., 3., 6., 0., 3., 6., 0., 3., 6.]);
    assert_eq!(
        rows(|x| spmd::all_gather_tiled(x, "data", 0).index(between(3, 6))),
        [3., 4., 5., 3., 4., 5., 3., 4., 5.]
    );
    assert_eq!(rows(|x| spmd::psum_scatter(x, "data", 0).reshape(&[1])), [9., 12., 15.]);
    assert_eq!(rows(|x| spmd::psum_scatter_tiled(x, "data", 0)), [9., 12., 15.]);
    assert_eq!(rows(|x| spmd::all_to_all(x, "data", 0, 0)), [0., 3., 6., 1., 4., 7., 2., 5., 8.]);
    assert_eq!(rows(|x| spmd::ppermute(x, "data", &[(0, 2), (2, 1)])), [0., 0., 0., 6., 7., 8., 0., 1., 2.]);
    assert_eq!(rows(|x| spmd::pshuffle(x, "data", &[2, 0, 1])), [6., 7., 8., 0., 1., 2., 3., 4., 5.]);
    assert_eq!(rows(|x| spmd::pbroadcast(x, "data", 2)), [6., 7., 8., 6., 7., 8., 6., 7., 8.]);
    assert_eq!(rows(|x| x * 0.0 + spmd::axis_index("data").cast(DType::F32)), [0., 0., 0., 1., 1., 1., 2., 2., 2.]);
    assert_eq!(rows(|x| x * spmd::axis_size("data").expect("it is bound") as f32)[8], 24.);
}

/// The number of a device along two axes counts the last one fastest, whatever the order of names in the mesh; devices
/// of other groups have nothing to do with each other.
#[test]
fn groups_lie_along_the_named_axes() {
    let mesh = mesh(&[("data", 2), ("model", 3)]);
    let x = counting(&[2, 3]);
    let f = |x: &Array| {
        let number = spmd::axis_index(["model", "data"]).cast(DType::F32);
        (x * 0.0 + number, psum(x, "model") + x * 0.0, spmd::all_gather_tiled(x, ["model", "data"], 1))
    };
    let f = shard_map(f, &mesh, [P(("data", "model"))], [P(("data", "model"))]);
    let (number, sums, all) = f(&x).expect("it runs");
    assert_eq!(numbers(&number), [0., 2., 4., 1., 3., 5.]);
    assert_eq!(numbers(&sums), [3., 3., 3., 12., 12., 12.]);
    assert_eq!(numbers(&all)[..6], [0., 3., 1., 4., 2., 5.]);
}

/// A perceptron sharded by hand, its gradients by hand in the body and around it, and the whole computation on one
/// device.
#[test]
fn a_sharded_perceptron_has_its_gradients() {
    let mesh = mesh(&[("data", 2), ("model", 2)]);
    let wave = |shape: &[usize]| (counting(shape) * 0.7).sin();
    let (x, up, down) = (wave(&[4, 6]), wave(&[6, 8]) * 0.3, wave(&[8, 6]) * 0.2);
    let one = |x: &Array, up: &Array, down: &Array| (x.matmul(up).tanh().matmul(down) * x).sum(..);
    let block = |x: &Array, up: &Array, down: &Array| {
        let y = psum(&x.matmul(up).tanh().matmul(down), "model");
        psum(&(y * x).sum(..), "data")
    };
    let specs = || [P("data"), P((None, "model")), P("model")];
    let around = value_and_grad(move |w: &(Array, Array), x: &Array| one(x, &w.0, &w.1));
    let weights = (up.clone(), down.clone());
    let (value, (d_up, d_down)) = around(&weights, &x).expect("it runs");

    let sharded = shard_map(block, &mesh, specs(), [P(())]);
    let outside = jit(value_and_grad(move |w: &(Array, Array), x: &Array| sharded(x, &w.0, &w.1)));
    let (found, (found_up, found_down)) = outside(&weights, &x).expect("it runs");
    assert!(close(&numbers(&found), &numbers(&value)));
    assert!(close(&numbers(&found_up), &numbers(&d_up)));
    assert!(close(&numbers(&found_down), &numbers(&d_down)));

    let inside = move |x: &Array, up: &Array, down: &Array| {
        value_and_grad(move |w: &(Array, Array), x: &Array| block(x, &w.0, &w.1))(&(up.clone(), down.clone()), x)
    };
    let inside = shard_map(inside, &mesh, specs(), [P(()), P((None, "model")), P("model")]);
    let (found, (found_up, found_down)) = jit(inside)(&x, &up, &down).expect("it runs");
    assert!(close(&numbers(&found), &numbers(&value)));
    assert!(close(&numbers(&found_up), &numbers(&d_up)));
    assert!(close(&numbers(&found_down), &numbers(&d_down)));
}

/// Only the exchanges that the body names, and those of its gradient, are in the program.
#[test]
fn exchanges_are_those_of_the_body() {
    let mesh = mesh(&[("model", 4)]);
    let layer = |x: &Array, up: &Array, down: &Array| psum(&x.matmul(up).tanh().matmul(down), "model");
    let f = shard_map(layer, &mesh, [P(()), P((None, "model")), P("model")], [P(())]);
    let (x, up, down) = (counting(&[2, 4]), counting(&[4, 8]), counting(&[8, 4]));
    let names = |found: crate::plan::Shardings| found.collectives().iter().map(|c| c.name).collect::<Vec<_>>();
    let program = partitioned(f)(&x, &up, &down).expect("it is traced");
    assert_eq!(program.collectives()[0].cause, "the function says so");
    assert_eq!(names(program), ["all_reduce"]);
    let f = shard_map(layer, &mesh, [P(()), P((None, "model")), P("model")], [P(())]);
    let loss = grad(move |x: &Array, up: &Array, down: &Array| f(x, up, down).map(|y| y.sum(..)));
    // Forwards one sum is needed no more; backwards the one of the gradient of x.
    assert_eq!(names(partitioned(loss)(&x, &up, &down).expect("it is traced")), ["all_reduce"]);
}

#[test]
fn sharded_arguments_and_other_results_go_together() {
    let mesh = mesh(&[("data", 2), ("model", 2)]);
    let x = device_put(&counting(&[4, 4]), &NamedSharding::new(&mesh, P((None, "model")))).expect("it fits");
    let f = shard_map(|x: &Array| x * 2.0, &mesh, [P("data")], [P("data")]);
    let y = jit(move |x: &Array| f(&(x + 1.0)).map(|y| y.sum(0)))(&x).expect("it runs");
    assert_eq!(numbers(&y), [56., 64., 72., 80.]);
    // Arrays that the body captures are whole.
    let bias = counting(&[4]);
    let g = shard_map(move |x: &Array| x + &bias, &mesh, [P("data")], [P("data")]);
    assert_eq!(numbers(&g(&counting(&[2, 4])).expect("it runs")), [0., 2., 4., 6., 4., 6., 8., 10.]);
    let empty = shard_map(|x: &Array| psum(&x.sum(..), "data"), &mesh, [P("data")], [P(())]);
    assert_eq!(numbers(&empty(&counting(&[0, 3])).expect("it runs")), [0.]);
}

/// Loops and branches in a body, with a collective in each step.
#[test]
fn loops_exchange_in_each_step() {
    let mesh = mesh(&[("ring", 4)]);
    let ring: Vec<(usize, usize)> = (0..4).map(|i| (i, (i + 1) % 4)).collect();
    let sum = move |x: &Array| {
        let ring = ring.clone();
        let steps = Client::cpu().array(&[0i32; 3], &[3])?;
        let (total, _) = scan(&(x.clone(), x.clone()), &steps, |(sum, block): &(Array, Array), _: &Array| {
            let block = spmd::ppermute(block, "ring", &ring);
            ((sum + &block, block), ())
        })?;
        Ok::<_, Error>(total.0)
    };
    let f = shard_map(sum, &mesh, [P("ring")], [P("ring")]);
    let loss = jit(value_and_grad(move |x: &Array| f(x).map(|y| (&y * &y).sum(..))));
    let (value, gradient) = loss(&counting(&[4])).expect("it runs");
    assert_eq!((numbers(&value), numbers(&gradient)), (vec![144.], vec![48.; 4]));

    let until = |x: &Array| while_loop(x, |x: &Array| psum(x, "ring").sum(..).lt(100.0), |x: &Array| x * 2.0);
    let f = shard_map(until, &mesh, [P("ring")], [P("ring")]);
    assert_eq!(numbers(&jit(f)(&counting(&[4])).expect("it runs")), [0., 32., 64., 96.]);
}

#[test]
fn mistakes_are_named() {
    let mesh = mesh(&[("data", 2), ("model", 2)]);
    let x = counting(&[4, 4]);
    let of = |f: fn(&Array) -> Array, takes, gives| message(shard_map(f, &mesh, [takes], [gives])(&x));
    let differs = of(|x| x * 2.0, P("data"), P(()));
    assert!(differs.contains("the result is varying over axis `data`") && differs.contains("psum"), "{differs}");
    let unknown = of(|x| psum(x, "rows"), P("data"), P(()));
    assert!(unknown.contains("`rows`") && unknown.contains("tests/shard_map"), "{unknown}");
    let uneven = message(shard_map(|x: &Array| x.clone(), &mesh, [P("data")], [P("data")])(&counting(&[3])));
    assert!(uneven.contains("dimension 0") && uneven.contains("f32[3] in 2 blocks"), "{uneven}");
    let mixed = of(|x| psum(x, ["data", "model"]), P("data"), P(()));
    assert!(mixed.contains("varying over axis `data` and invarying over `model`"), "{mixed}");
    let twice = of(|x| spmd::pvary(x, "data"), P("data"), P("data"));
    assert!(twice.contains("`pvary` of a value that is varying over axis `data`"), "{twice}");
    let target = of(|x| spmd::ppermute(x, "data", &[(0, 1), (1, 1)]), P("data"), P("data"));
    assert!(target.contains("a source or a target twice"), "{target}");
    let parts = of(|x| spmd::psum_scatter_tiled(x, ["data", "model"], 1), P(()), P(()));
    assert!(parts.contains("varying"), "{parts}");
    let long = of(|x| spmd::all_to_all_tiled(&x.index((.., between(0, 3))), "data", 1, 0), P("data"), P("data"));
    assert!(long.contains("dimension 1 of f32[2,3] in 2 parts"), "{long}");
    let truth = of(|x| spmd::psum_scatter_tiled(&x.gt(1.0), "data", 0), P("data"), P("data"));
    assert!(truth.contains("the sum of bool[2,4]"), "{truth}");
    let open = of(|x| x.clone(), P((crate::sharding::UNCONSTRAINED, None)), P("data"));
    assert!(open.contains("open dimension"), "{open}");
    let outside = psum(&x, "data").check().expect_err("no axis is bound").to_string();
    assert!(outside.contains("axis `data`, which nothing binds"), "{outside}");
    let nothing = spmd::axis_size("data").expect_err("no axis is bound").to_string();
    assert!(nothing.contains("which nothing binds"), "{nothing}");

    let inner = mesh.clone();
    let nested = move |x: &Array| shard_map(|x: &Array| x.clone(), &inner, [P(())], [P(())])(x);
    let nested = message(shard_map(nested, &mesh, [P(())], [P(())])(&x));
    assert!(nested.contains("inside of one that is manual along all axes"), "{nested}");
    let carried = |x: &Array| {
        let zero = x.sum(..) * 0.0;
        let start = psum(&zero, "data");
        scan(&start, x, |sum: &Array, row: &Array| (sum + row.sum(..), ())).map(|(sum, ())| sum)
    };
    let carried = message(shard_map(carried, &mesh, [P("data")], [P(())])(&x));
    assert!(carried.contains("equal on all devices") && carried.contains("pvary"), "{carried}");
    let waits = |x: &Array| {
        while_loop(x, |x: &Array| x.sum(..).lt(100.0), |x: &Array| x + spmd::pvary(&psum(x, "data"), "data"))
    };
    let waits = message(shard_map(waits, &mesh, [P("data")], [P("data")])(&x));
    assert!(waits.contains("a collective over axis `data` in a loop whose condition differs"), "{waits}");
    let greatest = shard_map(|x: &Array| spmd::pmax(x, "data"), &mesh, [P("data")], [P(())]);
    let greatest = message(grad(move |x: &Array| greatest(x).map(|y| y.sum(..)))(&x));
    assert!(greatest.contains("the derivative of `all_reduce`"), "{greatest}");
}

/// `pmap` compiles once; each device has its element, and results of all lie along a first axis.
#[test]
fn each_device_calls_a_function_of_one_element() {
    let mesh = mesh(&[("i", 2), ("j", 2)]);
    let traces = Arc::new(AtomicUsize::new(0));
    let own = traces.clone();
    let f = move |x: &Array, s: &Array| {
        own.fetch_add(1, Relaxed);
        (x * s, psum(&x.sum(..), ["i", "j"]), spmd::axis_index("j"))
    };
    let f = pmap(f, &mesh);
    let (x, s) = (counting(&[4, 3]), counting(&[4]));
    for _ in 0..3 {
        let (scaled, sum, index) = f(&x, &s).expect("it runs");
        assert_eq!(numbers(&scaled), [0., 0., 0., 3., 4., 5., 12., 14., 16., 27., 30., 33.]);
        assert_eq!((numbers(&sum), index.to_vec::<i32>().expect("it is there")), (vec![66.; 4], vec![0, 1, 0, 1]));
    }
    assert_eq!(traces.load(Relaxed), 1);
    let wrong = message(f(&counting(&[3, 3]), &s));
    assert!(wrong.contains("argument `0` of f32[3,3] on 4 devices"), "{wrong}");
    // Gradients pass through.
    let g = pmap(|x: &Array| psum(&(x * x), "i"), &mesh);
    let gradient = grad(move |x: &Array| g(x).map(|y| y.sum(..)))(&counting(&[4])).expect("it has one");
    assert_eq!(numbers(&gradient), [0., 4., 8., 12.]);
}

#[test]
fn a_function_on_a_mesh_is_not_saved() {
    let f = shard_map(|x: &Array| x * 2.0, &mesh(&[("data", 2)]), [P("data")], [P("data")]);
    let lowered = lower(move |x: &Array| f(x))(&counting(&[2])).expect("it is traced");
    let refused = lowered.export().expect_err("it has a mesh").to_string();
    assert!(refused.contains("`shard_map`"), "{refused}");
    assert!(lowered.to_plan().contains("f32[1]"), "{}", lowered.to_plan());
    let y = lowered.compile().expect("it compiles")(&counting(&[2])).expect("it runs");
    assert_eq!(numbers(&y), [0., 2.]);
}

/// A stated derivative has to sum what an argument that all devices share gets from each.
#[test]
fn stated_derivatives_are_checked() {
    let mesh = mesh(&[("data", 2)]);
    let build = |sums: bool| {
        let product = custom_vjp(
            |w: &Array, x: &Array| w * x,
            |w: &Array, x: &Array| (w * x, (w.clone(), x.clone())),
            move |(w, x): &(Array, Array), ct: &Array| {
                let own = (ct * x).sum(..);
                (if sums { psum(&own, "data") } else { own }, ct * w)
            },
        );
        let f = shard_map(move |w: &Array, x: &Array| product(w, x), &mesh, [P(()), P("data")], [P("data")]);
        grad(move |w: &Array, x: &Array| f(w, x).map(|y| y.sum(..)))
    };
    let (w, x) = (Array::from_slice(&[2f32], &[]).expect("it fits"), counting(&[4]));
    assert_eq!(numbers(&build(true)(&w, &x).expect("it runs")), [6.]);
    let wrong = message(build(false)(&w, &x));
    assert!(wrong.contains("varying over axis `data`") && wrong.contains("psum"), "{wrong}");
    assert!(wrong.contains("for argument 0") && wrong.contains("`pvary(.., \"data\")` of argument 0"), "{wrong}");
}

/// A batch of calls is one call of blocks that are larger.
#[test]
fn batches_pass_through() {
    let mesh = mesh(&[("data", 2)]);
    let body = |x: &Array, w: &Array| psum(&(x * w), "data") + spmd::all_gather_invariant(x, "data", 0).sum(..);
    let f = shard_map(body, &mesh, [P("data"), P(())], [P(())]);
    let g = shard_map(body, &mesh, [P("data"), P(())], [P(())]);
    let (xs, w) = (counting(&[3, 4]), counting(&[2]));
    let all = vmap(f).in_axes([Some(0), None])(&xs, &w).expect("it runs");
    for i in 0..3 {
        let one = numbers(&g(&xs.at(i).get(), &w).expect("it runs"));
        assert_eq!(numbers(&all)[2 * i..2 * i + 2], one);
    }
}

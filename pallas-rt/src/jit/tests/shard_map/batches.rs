//! Functions of one example that name the axis of the batch: mistakes, and the laws that they share with functions of
//! one device.
use super::super::numbers;
use super::super::sharded::Dice;
use super::{close, counting, mesh, message};
use crate::prelude::*;
use crate::sharding::P;
use crate::spmd::{self, ManualAxisState, psum};
use crate::{cond, custom_vjp, grad, jit, pmap, scan, shard_map, vmap, while_loop};

#[test]
fn mistakes_are_named() {
    let x = counting(&[3, 4]);
    let of = |f: fn(&Array) -> Array| message(vmap(f).axis_name("i")(&x));
    let unknown = of(|x| psum(x, "rows"));
    assert!(unknown.contains("axis `rows`, which nothing binds") && unknown.contains("bound here: `i`"), "{unknown}");
    let unnamed = message(vmap(|x: &Array| psum(x, "i"))(&x));
    assert!(unnamed.contains("which nothing binds"), "{unnamed}");
    let states = of(|x| spmd::pvary(x, "i"));
    assert!(states.contains("examples of a batch have none"), "{states}");
    let state = of(|x| spmd::pcast(x, "i", ManualAxisState::Unreduced));
    assert!(state.contains("axis `i` of a batch"), "{state}");
    let long = of(|x| spmd::psum_scatter(x, "i", 0));
    assert!(long.contains("dimension 0 of f32[4] among 3"), "{long}");
    let empty = message(vmap(|x: &Array| psum(x, "i")).axis_name("i")(&counting(&[0, 2])));
    assert!(empty.contains("a batch without examples"), "{empty}");
    let two = |x: &Array| vmap(|x: &Array| spmd::ppermute(x, ["i", "j"], &[(0, 1)])).axis_name("j")(x);
    let two = message(vmap(two).axis_name("i")(&x));
    assert!(two.contains("one axis after the other"), "{two}");

    let waits = |x: &Array| while_loop(x, |x: &Array| x.sum(..).lt(100.0), |x: &Array| x + psum(x, "i") + 1.0);
    let waits = message(vmap(waits).axis_name("i")(&x));
    assert!(waits.contains("a collective over axis `i` in a loop whose condition differs along it"), "{waits}");
    let branches = |x: &Array| cond(&x.sum(..).lt(9.0), x, |x: &Array| psum(x, "i"), |x: &Array| x.clone());
    let branches = message(vmap(branches).axis_name("i")(&x));
    assert!(branches.contains("in branches whose condition differs along it"), "{branches}");
    let greatest = message(grad(|x: &Array| {
        vmap(grad(|x: &Array| spmd::pmax(x, "i").sum(..))).axis_name("i")(x).map(|y| y.sum(..))
    })(&x));
    assert!(greatest.contains("the derivative of `all_reduce`"), "{greatest}");
}

/// The name of an axis belongs to a mesh or to a batch.
#[test]
fn a_name_has_one_meaning() {
    let data = mesh(&[("data", 2)]);
    let x = counting(&[4]);
    let inside = |x: &Array| vmap(|x: &Array| psum(x, "data")).axis_name("data")(x);
    let inside = message(shard_map(inside, &data, [P("data")], [P("data")])(&x));
    assert!(inside.contains("`vmap` over axis `data`, which a `shard_map` around it binds"), "{inside}");
    let body = shard_map(|x: &Array| psum(x, "data"), &data, [P("data")], [P(())]);
    let around = message(vmap(move |x: &Array| body(x)).axis_name("data")(&counting(&[3, 4])));
    assert!(around.contains("`shard_map` over axis `data`, which a `vmap` around it binds"), "{around}");
    // Names are free again afterwards, also after a mistake.
    let sum = shard_map(|x: &Array| psum(x, "data"), &data, [P("data")], [P(())]);
    assert_eq!(numbers(&sum(&x).expect("it runs")), [2., 4.]);
}

/// Stated derivatives see the batch as well.
#[test]
fn stated_derivatives_combine_examples() {
    let scaled = custom_vjp(
        |x: &Array| psum(&(x * x), "i"),
        |x: &Array| (psum(&(x * x), "i"), x.clone()),
        |x: &Array, ct: &Array| (x * psum(ct, "i") * 20.0,),
    );
    let gradient = vmap(grad(move |x: &Array| scaled(x))).axis_name("i")(&counting(&[3])).expect("it runs");
    assert_eq!(numbers(&gradient), [0., 60., 120.]);
}

/// A smooth function of one block [4, 4] that varies, and whose results vary.
fn body(seed: u64, x: &Array) -> Result<Array> {
    let mut dice = Dice(seed);
    let mut all = vec![x.clone()];
    for _ in 0..3 + dice.below(6) {
        let a = all[all.len() - 1 - dice.below(all.len().min(3))].clone();
        let b = all[dice.below(all.len())].clone();
        let axes: &[&str] = [&["x", "y"][..], &["y", "x"], &["x"], &["y"]][dice.below(4)];
        let n = spmd::axis_size(axes)?;
        let scale = 1.0 / n as f32;
        let made = match dice.below(13) {
            0 => a * b,
            1 => (a * 0.7).sin(),
            2 => a.matmul(&b) * 0.3,
            3 => psum(&a, axes) * scale,
            4 => spmd::pmean(&(&a * &a), axes),
            5 => spmd::all_gather(&a, axes, 1).sum(1) * scale,
            6 => spmd::all_gather_tiled(&(spmd::psum_scatter_tiled(&a, axes, 0) * scale), axes, 0),
            7 => spmd::all_to_all_tiled(&a, axes, 0, 1).reshape(a.shape()),
            8 => spmd::ppermute(&a, axes[0], &[(0, 1)]) + b,
            9 => spmd::all_to_all(&a.index(crate::ops::between(0, n as i64)), axes, 0, 1).sum(..) * a * 0.1,
            11 => {
                let is_first = spmd::axis_index(axes).lt(1);
                cond(&is_first, &a, |a: &Array| a.sin(), |a: &Array| a * 0.5)?
            }
            10 => a * (spmd::axis_index(axes).cast(DType::F32) * 0.1 + 0.5),
            _ => {
                let axis = axes[0];
                let step = |c: &Array, row: &Array| {
                    let next = psum(&(c * 0.5 + row), axis) * 0.5 + spmd::axis_index(axis).cast(DType::F32) + c * 0.1;
                    (next, ())
                };
                scan(&a, &b, step)?.0
            }
        };
        // Sums are equal on all devices; as varying values they may be summed again.
        all.push(made + x * 0.125);
    }
    Ok(all.swap_remove(all.len() - 1).tanh())
}

/// Examples of two named batches and devices of a mesh of two axes compute the same values, gradients inside and
/// gradients around.
#[test]
fn examples_and_devices_compute_the_same() {
    let mesh = mesh(&[("x", 2), ("y", 2)]);
    let count = std::env::var("PALLAS_BODIES").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    for seed in 0..count {
        let mut dice = Dice(seed * 31 + 7);
        let drawn: Vec<f32> = (0..64).map(|_| dice.below(2001) as f32 / 1000.0 - 1.0).collect();
        let [blocks, examples] =
            [&[4usize, 4, 4][..], &[2, 2, 4, 4]].map(|shape| Client::cpu().array(&drawn, shape).expect("it fits"));
        let f = move |x: &Array| body(seed, x);
        let two = move |x: &Array| vmap(move |x: &Array| vmap(f).axis_name("y")(x)).axis_name("x")(x);
        let same = |found: Result<Array>, expected: Result<Array>, what: &str| {
            let [found, expected] =
                [found, expected].map(|y| numbers(&y.unwrap_or_else(|e| panic!("seed {seed}: {what}: {e}"))));
            assert!(close(&found, &expected), "seed {seed}: {what}: {found:?} and {expected:?}");
        };
        let devices = pmap(f, &mesh)(&blocks);
        same(two(&examples), devices.clone(), "values");
        same(jit(two)(&examples), devices, "compiled");
        let loss = move |x: &Array| body(seed, x).map(|y| y.sum(..));
        let inside = move |x: &Array| vmap(move |x: &Array| vmap(grad(loss)).axis_name("y")(x)).axis_name("x")(x);
        same(inside(&examples), pmap(grad(loss), &mesh)(&blocks), "gradients inside");
        let all = pmap(f, &mesh);
        let around = grad(move |x: &Array| all(x).map(|y| y.sum(..)));
        same(grad(move |x: &Array| two(x).map(|y| y.sum(..)))(&examples), around(&blocks), "gradients around");
    }
}

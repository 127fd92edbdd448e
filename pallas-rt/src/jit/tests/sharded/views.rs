//! Values on several meshes of the same devices in one function.
use super::super::{array, numbers};
use super::mesh;
use crate::prelude::*;
use crate::sharding::{Mesh, NamedSharding, P, device_put};
use crate::{grad, jit, partitioned, scan, shard_map, with_sharding_constraint};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn turned() -> Arc<Mesh> {
    Arc::new(Mesh::with_devices(&[("p", 4), ("q", 2)], vec![0, 4, 1, 5, 2, 6, 3, 7]).expect("a mesh"))
}

#[test]
fn views_of_the_same_devices_are_one_mesh() {
    let (square, flat) = (mesh(&[("data", 2), ("model", 4)]), mesh(&[("x", 8)]));
    let elements: Vec<f32> = (0..16 * 8).map(|i| (i as f32 * 0.37).sin()).collect();
    let (x, w) = (array(&elements, &[16, 8]), array(&elements[..64], &[8, 8]));
    let f = |x: &Array, w: &Array| x.matmul(w).tanh().matmul(&w.t());
    let want = numbers(&f(&x, &w));
    let shardings = [
        (NamedSharding::new(&square, P("data")), NamedSharding::new(&flat, P((None, "x")))),
        (NamedSharding::new(&flat, P("x")), NamedSharding::new(&square, P(("model", "data")))),
        (NamedSharding::new(&square, P(("data", "model"))), NamedSharding::new(&turned(), P(("q", "p")))),
        (NamedSharding::new(&turned(), P(("p", "q"))), NamedSharding::new(&flat, P("x"))),
    ];
    for (of_x, of_w) in shardings {
        let [own, weights] =
            [(&x, &of_x), (&w, &of_w)].map(|(x, sharding)| device_put(x, sharding).expect("it is placed"));
        let close = |found: &Array| {
            let is_close = numbers(found).iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(is_close, "{of_x:?}, {of_w:?}");
        };
        close(&jit(f)(&own, &weights).expect("it runs"));
        // At once, and as constraints, also in a loop.
        close(&f(&own, &weights));
        let constraint = of_w.clone();
        let g = jit(move |x: &Array, w: &Array| {
            let (w, ()) =
                scan(w, &w.zeros_like(), |w: &Array, _: &Array| (with_sharding_constraint(w, &constraint), ()))?;
            Ok::<_, Error>(f(x, &w))
        });
        close(&g(&own, &w).expect("it runs"));
        // Nothing moves to get arguments onto the mesh: blocks lie where they are needed.
        let doubled = partitioned(|x: &Array, w: &Array| (x * 2.0, w * 2.0))(&own, &weights).expect("it is traced");
        assert!(doubled.collectives().is_empty(), "{:?}", doubled.collectives());
        let (_, twice) = jit(|x: &Array, w: &Array| (x * 2.0, w * 2.0))(&own, &weights).expect("it runs");
        assert_eq!(numbers(&twice), numbers(&(&w * 2.0)));
    }
}

/// A weight that is declared on one view comes back on the other one, and is the same weight.
#[test]
fn steps_on_views_are_compiled_once() {
    let (square, flat) = (mesh(&[("data", 2), ("model", 4)]), mesh(&[("x", 8)]));
    let x = device_put(&array(&[0.5; 64], &[16, 4]), &NamedSharding::new(&square, P("data"))).expect("it is placed");
    let traces = Arc::new(AtomicUsize::new(0));
    let own = traces.clone();
    let step = jit(move |x: &Array, w: &Array| {
        own.fetch_add(1, Relaxed);
        let gradient = grad(|w: &Array, x: &Array| x.matmul(w).square().sum(..))(w, x)?;
        Ok::<_, Error>(w - gradient * 0.01)
    });
    let mut w = device_put(&array(&[0.25; 32], &[4, 8]), &NamedSharding::new(&flat, P((None, "x")))).expect("it fits");
    for _ in 0..3 {
        w = step(&x, &w).expect("it runs");
        assert_eq!(w.sharding().expect("it is sharded").blocks_per_dim(), [1, 8]);
    }
    assert_eq!(traces.load(Relaxed), 1);
}

/// A mesh of other devices, or a body that names the axes of another one: the error names both values.
#[test]
fn other_meshes_are_refused() {
    let (square, flat) = (mesh(&[("data", 2), ("model", 4)]), mesh(&[("x", 8)]));
    let x = array(&[0.5; 64], &[16, 4]);
    let rows = NamedSharding::new(&square, P("data"));
    let own = device_put(&x, &rows).expect("it is placed");
    let few = device_put(&x, &NamedSharding::new(&mesh(&[("data", 2)]), P("data"))).expect("it is placed");
    let error = |found: Result<Array>| found.expect_err("two meshes").to_string();
    let text = error(jit(|x: &Vec<Array>| &x[0] + &x[1])(&vec![own.clone(), few]));
    for part in ["argument `0[0]` (", "argument `0[1]` (", "\"model\"=4", "<[\"data\"=2]>", "views.rs:"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let both = jit(move |x: &Array| {
        let double = shard_map(|x: &Array| x * 2.0, &flat, [P("x")], [P("x")]);
        shard_map(|x: &Array| x + 1.0, &square, [P("data")], [P("data")])(&double(x)?)
    });
    let text = error(both(&x));
    assert!(text.matches("a `shard_map` (").count() == 2, "{text}");
}

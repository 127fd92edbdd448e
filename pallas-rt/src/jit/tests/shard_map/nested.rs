//! Bodies in bodies, along other axes of the same mesh.
use super::super::numbers;
use super::super::sharded::Dice;
use super::laws::body;
use super::{counting, mesh, message};
use crate::prelude::*;
use crate::sharding::{Mesh, P, PartitionSpec};
use crate::spmd::{self, psum};
use crate::{grad, jit, jvp, pmap, shard_map, vmap};
use std::sync::Arc;

fn two() -> Arc<Mesh> {
    mesh(&[("x", 2), ("y", 2)])
}

fn mixed(x: &Array) -> Result<Array> {
    let inner = |w: &Array| {
        let number = spmd::axis_index("x") * 10 + spmd::axis_index("y");
        w * psum(w, "x") + psum(&(w * w), "y").sum(..) + number.cast(DType::F32)
    };
    let inner = shard_map(inner, &two(), [P((None, "y"))], [P((None, "y"))]).axis_names("y");
    Ok(inner(&(x * 2.0))? + psum(x, "x"))
}

fn reduced(x: &Array, w: &Array) -> Result<Array> {
    let inner = |x: &Array, w: &Array| {
        let h = x.matmul(w).tanh();
        psum(&h.transpose(&[1, 0]).matmul(&h), "y") + spmd::pmean(&psum(&h.sum(..), "x"), "y")
    };
    // Without names it is manual along all axes that are left.
    let inner = shard_map(inner, &two(), [P("y"), P(())], [P(())]);
    Ok(psum(&inner(x, w)?, "x"))
}

fn captured(x: &Array, w: &Array) -> Result<Array> {
    let (total, x) = (psum(&x.sum(..), "x"), x.clone());
    let inner = move |w: &Array| w * &total + x.at((0, 0)).get() * spmd::axis_index("y").cast(DType::F32);
    shard_map(inner, &two(), [P("y")], [P("y")]).axis_names("y")(w)
}

/// Our numbers for a line of `values.py`.
pub(super) fn ours(name: &str) -> Option<Vec<f32>> {
    let square = counting(&[4, 4]) / 7.0;
    let weights = counting(&[4, 6]).cos();
    let takes = || [P("x"), P(())];
    let out = match name {
        "nested_mixed" => jit(shard_map(mixed, &two(), [P("x")], [P("x")]).axis_names("x"))(&square),
        "nested_reduced" | "nested_value" => {
            jit(shard_map(reduced, &two(), takes(), [P(())]).axis_names("x"))(&square, &weights)
        }
        "nested_captured" => jit(shard_map(captured, &two(), takes(), [P("x")]).axis_names("x"))(&square, &weights),
        "nested_gradient" => {
            let f = shard_map(reduced, &two(), takes(), [P(())]).axis_names("x");
            let loss = grad(move |p: &(Array, Array)| f(&p.0, &p.1).map(|y| (&y * &y).sum(..) / 100.0));
            let (x, w) = jit(loss)(&(square, weights)).expect("it runs");
            return Some([numbers(&x), numbers(&w)].concat());
        }
        _ => return None,
    };
    Some(numbers(&out.unwrap_or_else(|error| panic!("{name}: {error}"))))
}

#[test]
fn mistakes_are_named() {
    let x = counting(&[4, 4]);
    let of = |f: fn(&Array) -> Result<Array>| message(shard_map(f, &two(), [P("x")], [P("x")]).axis_names("x")(&x));
    let again = of(|x| shard_map(|x: &Array| x.clone(), &two(), [P(())], [P(())]).axis_names("x")(x));
    assert!(again.contains("along axis `x` inside of one that is manual along it"), "{again}");
    let other = of(|x| shard_map(|x: &Array| x.clone(), &mesh(&[("y", 4)]), [P(())], [P(())])(x));
    assert!(other.contains("inside of one on"), "{other}");
    let spec = of(|x| shard_map(|x: &Array| x.clone(), &two(), [P("x")], [P("x")]).axis_names("y")(x));
    assert!(spec.contains("a spec names axis `x`") && spec.contains("around it is"), "{spec}");
    let differs = of(|x| shard_map(|x: &Array| x * spmd::axis_index("y"), &two(), [P(())], [P(())]).axis_names("y")(x));
    assert!(differs.contains("the result is varying over axis `y`"), "{differs}");
    // What varies along `x` in the inner body varies in the outer one.
    let outer = |x: &Array| shard_map(|x: &Array| x * 1.0, &two(), [P(())], [P(())]).axis_names("y")(x);
    let outer = message(shard_map(outer, &two(), [P("x")], [P(())]).axis_names("x")(&x));
    assert!(outer.contains("the result is varying over axis `x`"), "{outer}");
    let mapped = of(|x| pmap(|x: &Array| x.clone(), &two())(x));
    assert!(mapped.contains("a `pmap` inside of a `shard_map`"), "{mapped}");
}

/// A random body in one `shard_map` along both axes, or in two, computes the same; so do its tangents, gradients and
/// batches.
#[test]
fn random_nested_bodies_keep_the_laws() {
    let mesh = two();
    let count = std::env::var("PALLAS_BODIES").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    for seed in 0..count {
        let mut dice = Dice(seed * 91 + 3);
        let is_row = dice.below(2) == 0;
        let mut array = |shape: &[usize]| {
            let n: usize = shape.iter().product();
            let drawn: Vec<f32> = (0..n).map(|_| dice.below(2001) as f32 / 1000.0 - 1.0).collect();
            Client::cpu().array(&drawn, shape).expect("it fits")
        };
        // Blocks of 4 x 4: x is sharded along `x` outside, and w along `y` inside, or x along both.
        let shapes: [&[usize]; 2] = if is_row { [&[8, 4], &[4, 8]] } else { [&[8, 8], &[4, 4]] };
        let [x, dx] = [0; 2].map(|_| array(shapes[0]));
        let [w, dw] = [0; 2].map(|_| array(shapes[1]));
        let [both, outer, inner]: [[PartitionSpec; 2]; 3] = match is_row {
            true => [[P("x"), P((None, "y"))], [P("x"), P(())], [P(()), P((None, "y"))]],
            false => [[P(("x", "y")), P(())], [P("x"), P(())], [P((None, "y")), P(())]],
        };
        let f = move |x: &Array, w: &Array| body(seed, x, w, &["x", "y"]);
        let whole = || shard_map(f, &mesh, both.clone(), [P(())]);
        let parts = || {
            let (inner, own) = (inner.clone(), mesh.clone());
            let f = move |x: &Array, w: &Array| shard_map(f, &own, inner.clone(), [P(())]).axis_names("y")(x, w);
            shard_map(f, &mesh, outer.clone(), [P(())]).axis_names("x")
        };
        let same = |found: Result<Vec<Array>>, expected: Result<Vec<Array>>, what: &str| {
            let flat = |all: Result<Vec<Array>>| -> Vec<f32> {
                let all = all.unwrap_or_else(|e| panic!("seed {seed}: {what}: {e}"));
                all.iter().flat_map(numbers).collect()
            };
            let (found, expected) = (flat(found), flat(expected));
            let scale = expected.iter().fold(1f32, |m, x| m.max(x.abs()));
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(worst <= 1e-4 * scale, "seed {seed}: {what}: {found:?} and {expected:?}");
        };
        let one = |y: Array| vec![y];
        let flat = |(a, b): (Array, Array)| vec![a, b];
        same(jit(parts())(&x, &w).map(one), whole()(&x, &w).map(one), "values");
        let (p, q) = (parts(), whole());
        let p = grad(move |all: &(Array, Array)| p(&all.0, &all.1).map(|y| y.sin().sum(..)));
        let q = grad(move |all: &(Array, Array)| q(&all.0, &all.1).map(|y| y.sin().sum(..)));
        let all = (x.clone(), w.clone());
        same(jit(p)(&all).map(flat), q(&all).map(flat), "gradients");
        let tangents = (dx.clone(), dw.clone());
        same(jvp(parts())(&all, &tangents).map(flat), jvp(whole())(&all, &tangents).map(flat), "tangents");
        let batch = crate::ops::stack(&[&x, &dx], 0);
        let found = jit(vmap(parts()).in_axes([Some(0), None]))(&batch, &w).map(one);
        same(found, vmap(whole()).in_axes([Some(0), None])(&batch, &w).map(one), "batches");
    }
}

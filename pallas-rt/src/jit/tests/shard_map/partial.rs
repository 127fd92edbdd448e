//! Bodies that are manual along some axes of the mesh, and leave the others to the compiler.
use super::super::numbers;
use super::super::sharded::Dice;
use super::laws::body;
use super::{close, counting, mesh, message};
use crate::prelude::*;
use crate::sharding::{Mesh, NamedSharding, P, PartitionSpec, device_put};
use crate::spmd::{self, psum};
use crate::{grad, jit, jvp, partitioned, scan, shard_map, vmap, while_loop, with_sharding_constraint};
use std::sync::Arc;

/// A mesh whose axis `x` is manual, and whose axis `y` is not.
fn two() -> Arc<Mesh> {
    mesh(&[("x", 2), ("y", 2)])
}

fn put(x: &Array, mesh: &Arc<Mesh>, spec: PartitionSpec) -> Array {
    device_put(x, &NamedSharding::new(mesh, spec)).expect("it fits")
}

fn layer(x: &Array, w: &Array) -> Array {
    let h = x.matmul(w).tanh();
    psum(&h.transpose(&[1, 0]).matmul(&h), "x") + spmd::pmean(&h.sum(..), "x")
}

fn moved(x: &Array, w: &Array) -> (Array, Array, Array) {
    let all = psum(&spmd::all_gather(x, "x", 1).sum([0, 1]), "x");
    let part = spmd::psum_scatter_tiled(&x.matmul(w), "x", 0);
    let number = spmd::axis_index("x").cast(DType::F32) + 1.0;
    let other = spmd::ppermute(x, "x", &[(0, 1), (1, 0)]) * number;
    (all, part, other.flip(0) + x.roll(1, 1))
}

fn steps(x: &Array, w: &Array) -> Result<Array> {
    let rows = crate::ops::stack(&[x, &(x * 2.0), &(x - 1.0)], 0);
    let w = w.index((crate::ops::between(0, 4), crate::ops::between(0, 4)));
    let step = |c: &Array, row: &Array| (c.matmul(&w).tanh() + psum(row, "x"), ());
    Ok(scan(x, &rows, step)?.0)
}

/// Our numbers for a line of `values.py`.
pub(super) fn ours(name: &str) -> Option<Vec<f32>> {
    let mesh = two();
    let square = counting(&[4, 4]) / 7.0;
    let weights = counting(&[4, 6]).reshape(&[4, 6]).cos();
    let flat = |all: &[Array]| all.iter().flat_map(numbers).collect::<Vec<f32>>();
    let columns = || put(&square, &mesh, P((None, "y")));
    let specs = || [P("x"), P(())];
    Some(match name {
        "partial_layer" => {
            let f = jit(shard_map(layer, &mesh, specs(), [P(())]).axis_names("x"));
            numbers(&f(&columns(), &put(&weights, &mesh, P((None, "y")))).expect("it runs"))
        }
        "partial_moved" => {
            let f = jit(shard_map(moved, &mesh, specs(), [P(()), P("x"), P("x")]).axis_names("x"));
            let (a, b, c) = f(&columns(), &put(&weights, &mesh, P((None, "y")))).expect("it runs");
            flat(&[a, b, c])
        }
        "partial_steps" => {
            let f = jit(shard_map(steps, &mesh, specs(), [P("x")]).axis_names("x"));
            numbers(&f(&columns(), &put(&weights, &mesh, P("y"))).expect("it runs"))
        }
        "partial_gradient" => {
            let f = shard_map(layer, &mesh, specs(), [P(())]).axis_names("x");
            let loss = grad(move |p: &(Array, Array)| f(&p.0, &p.1).map(|y| (&y * &y).sum(..) / 100.0));
            let all = (put(&square, &mesh, P(("x", "y"))), put(&weights, &mesh, P("y")));
            let (x, w) = jit(loss)(&all).expect("it runs");
            flat(&[x, w])
        }
        _ => return None,
    })
}

/// Automatic axes divide the body as its operands are sharded, and only what needs devices along them is exchanged.
#[test]
fn automatic_axes_divide_the_body() {
    let mesh = two();
    let x = put(&counting(&[4, 4]), &mesh, P(("x", "y")));
    let collectives = |found: &crate::plan::Shardings| found.collectives().iter().map(|c| c.name).collect::<Vec<_>>();
    let f = shard_map(|x: &Array| psum(&(x * 2.0).sin(), "x"), &mesh, [P("x")], [P(())]).axis_names("x");
    let found = partitioned(f)(&x).expect("it is traced");
    assert_eq!(collectives(&found), ["all_reduce"]);
    // The product of the columns of x and the rows of w is a sum over `y`; what follows keeps the division that the
    // body's result has.
    let w = put(&counting(&[4, 4]), &mesh, P(("y", None)));
    let f = shard_map(|x: &Array, w: &Array| x.matmul(w), &mesh, [P("x"), P(())], [P("x")]).axis_names("x");
    let found = partitioned(f)(&x, &w).expect("it is traced");
    assert_eq!(collectives(&found), ["all_reduce"]);
    let f = shard_map(|x: &Array| x * 2.0, &mesh, [P("x")], [P("x")]).axis_names("x");
    let g = shard_map(|x: &Array| x + 1.0, &mesh, [P("x")], [P("x")]).axis_names("x");
    let chain = move |x: &Array| g(&f(x)?.sin()).map(|y| y * 3.0);
    let found = partitioned(chain)(&x).expect("it is traced");
    assert_eq!(collectives(&found), Vec::<&str>::new());
    let all = |x: &Array| ((x * 2.0).sin() + 1.0) * 3.0;
    let f = shard_map(|x: &Array| x * 2.0, &mesh, [P("x")], [P("x")]).axis_names("x");
    let g = shard_map(|x: &Array| x + 1.0, &mesh, [P("x")], [P("x")]).axis_names("x");
    let y = jit(move |x: &Array| g(&f(x)?.sin()).map(|y| y * 3.0))(&x).expect("it runs");
    assert!(close(&numbers(&y), &numbers(&all(&counting(&[4, 4])))));
}

/// A constraint in the body names automatic axes. Blocks that these do not divide evenly are right as well.
#[test]
fn constraints_divide_values_of_the_body() {
    let mesh = two();
    let inner = mesh.clone();
    let f = move |x: &Array| {
        let named = NamedSharding::new(&inner, P((None, "y")));
        let h = with_sharding_constraint(&(x * 2.0), &named);
        psum(&h.sum(1), "x") + psum(&h.cumsum(1).sum(..), "x") * 0.0 + psum(&h.max(..), "x")
    };
    for columns in [4, 5] {
        let x = counting(&[4, columns]);
        let n = columns as f32;
        let row = |i: f32| (0..columns).map(|j| 2.0 * (i * n + j as f32)).sum::<f32>();
        let greatest = 2.0 * (2.0 * n - 1.0) + 2.0 * (4.0 * n - 1.0);
        let expected = [row(0.0) + row(2.0) + greatest, row(1.0) + row(3.0) + greatest];
        let found = jit(shard_map(f.clone(), &mesh, [P("x")], [P(())]).axis_names("x"))(&x).expect("it runs");
        assert_eq!(numbers(&found), expected, "{columns} columns");
    }
    let all = mesh.clone();
    let f = move |x: &Array| with_sharding_constraint(x, &NamedSharding::new(&all, P("x")));
    let manual = message(shard_map(f, &mesh, [P("x")], [P("x")]).axis_names("x")(&counting(&[4])));
    assert!(manual.contains("inside of `shard_map`") && manual.contains("leaves automatic"), "{manual}");
}

#[test]
fn mistakes_are_named() {
    let mesh = two();
    let x = counting(&[4, 4]);
    let of = |f: fn(&Array) -> Array, takes, gives| message(shard_map(f, &mesh, [takes], [gives]).axis_names("x")(&x));
    let takes = of(|x| x * 2.0, P("y"), P(()));
    assert!(takes.contains("a spec names axis `y`, along which the body is not manual"), "{takes}");
    let gives = of(|x| x * 2.0, P("x"), P(("x", "y")));
    assert!(gives.contains("a spec names axis `y`"), "{gives}");
    let sum = of(|x| psum(x, "y"), P("x"), P("x"));
    assert!(sum.contains("axis `y`, along which the body is not manual") && sum.contains("axis_names"), "{sum}");
    let differs = of(|x| x * 2.0, P("x"), P(()));
    assert!(differs.contains("the result is varying over axis `x`"), "{differs}");
    let none: [&str; 0] = [];
    let none = message(shard_map(|x: &Array| x.clone(), &mesh, [P(())], [P(())]).axis_names(none)(&x));
    assert!(none.contains("manual along no axis"), "{none}");
    let unknown = message(shard_map(|x: &Array| x.clone(), &mesh, [P(())], [P(())]).axis_names("rows")(&x));
    assert!(unknown.contains("`rows` is no axis of the mesh"), "{unknown}");
}

/// A loop whose number of steps differs along the manual axis runs, also if the compiler needs exchanges in it.
#[test]
fn loops_of_each_device() {
    let mesh = two();
    let x = counting(&[4, 4]);
    let double = |x: &Array| while_loop(x, |x: &Array| x.sum(..).lt(100.0), |x: &Array| x * 2.0);
    let run = |x: &Array| jit(shard_map(double, &mesh, [P("x")], [P("x")]).axis_names("x"))(x);
    let expected: Vec<f32> = (0..16).map(|i| i as f32 * if i < 8 { 4.0 } else { 2.0 }).collect();
    assert_eq!(numbers(&run(&x).expect("it runs")), expected);
    // The condition sums over `y`.
    assert_eq!(numbers(&run(&put(&x, &mesh, P(("x", "y")))).expect("it runs")), expected);
}

/// A random body that is manual along one axis computes the same on a mesh of that axis alone, whatever divides its
/// operands along the other one; so do its tangents, gradients and batches.
#[test]
fn random_partial_bodies_keep_the_laws() {
    let one = mesh(&[("x", 2)]);
    let count = std::env::var("PALLAS_BODIES").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    for seed in 0..count {
        let mut dice = Dice(seed * 57 + 11);
        // Three devices divide blocks unevenly, by a constraint in the body.
        let is_uneven = seed % 3 == 2;
        let two = mesh(&[("y", if is_uneven { 3 } else { 2 }), ("x", 2)]);
        let mut array = |shape: &[usize]| {
            let n: usize = shape.iter().product();
            let drawn: Vec<f32> = (0..n).map(|_| dice.below(2001) as f32 / 1000.0 - 1.0).collect();
            Client::cpu().array(&drawn, shape).expect("it fits")
        };
        let [x, dx] = [0; 2].map(|_| array(&[8, 4]));
        let [w, dw] = [0; 2].map(|_| array(&[4, 4]));
        let sharded = [P(()), P((None, "y")), P("y"), P(("x", "y"))];
        let [of_x, of_w] = if is_uneven { [0, 0] } else { [seed as usize % 4, seed as usize / 4 % 3] };
        let [x2, dx2] = [&x, &dx].map(|x| put(x, &two, sharded[of_x].clone()));
        let [w2, dw2] = [&w, &dw].map(|x| put(x, &two, sharded[of_w].clone()));
        let named = [P("y"), P((None, "y"))].map(|spec| NamedSharding::new(&two, spec));
        let specs = || [P("x"), P(())];
        let f = move |x: &Array, w: &Array| body(seed, x, w, &["x"]);
        let whole = || shard_map(f, &one, specs(), [P(())]);
        let part = || {
            let [rows, columns] = named.clone();
            let f = move |x: &Array, w: &Array| match is_uneven {
                true => f(&with_sharding_constraint(x, &columns), &with_sharding_constraint(w, &rows)),
                false => f(x, w),
            };
            shard_map(f, &two, specs(), [P(())]).axis_names("x")
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
        same(jit(part())(&x2, &w2).map(|y| vec![y]), whole()(&x, &w).map(|y| vec![y]), "values");
        let (p, q) = (part(), whole());
        let p = grad(move |all: &(Array, Array)| p(&all.0, &all.1).map(|y| y.sin().sum(..)));
        let q = grad(move |all: &(Array, Array)| q(&all.0, &all.1).map(|y| y.sin().sum(..)));
        let flat = |(a, b): (Array, Array)| vec![a, b];
        same(jit(p)(&(x2.clone(), w2.clone())).map(flat), q(&(x.clone(), w.clone())).map(flat), "gradients");
        let found = jvp(part())(&(x2.clone(), w2.clone()), &(dx2.clone(), dw2.clone())).map(flat);
        same(found, jvp(whole())(&(x.clone(), w.clone()), &(dx.clone(), dw.clone())).map(flat), "tangents");
        let batch = |x: &Array, dx: &Array| crate::ops::stack(&[x, dx], 0);
        let axes = || ([Some(0), None], [Some(0)]);
        let found = jit(vmap(part()).in_axes(axes().0).out_axes(axes().1))(&batch(&x2, &dx2), &w2).map(|y| vec![y]);
        same(
            found,
            vmap(whole()).in_axes(axes().0).out_axes(axes().1)(&batch(&x, &dx), &w).map(|y| vec![y]),
            "batches",
        );
    }
}

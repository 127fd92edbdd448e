//! Provenance, budgets, groups and barriers of functions on meshes.
use super::numbers;
use crate::prelude::*;
use crate::sharding::{Mesh, NamedSharding, P, PropagationDirection, UNCONSTRAINED, device_put, dim};
use crate::{
    Scan, checkpoint, grad, jit, partitioned, propagation_barrier, shard_alike, shard_as, with_sharding_constraint,
};
use std::sync::Arc;

fn mesh() -> Arc<Mesh> {
    Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"))
}

fn ones(shape: &[usize]) -> Array {
    Client::cpu().full(shape, 1.0f32).expect("it fits")
}

#[test]
fn an_axis_is_traced_back_to_its_annotation() {
    let mesh = mesh();
    let put = |shape: &[usize], spec| device_put(&ones(shape), &NamedSharding::new(&mesh, spec)).expect("it is placed");
    let (x, w) = (put(&[8, 16], P("data")), put(&[16, 32], P((None, dim("model").priority(2)))));
    let line = line!() + 1;
    let f = |x: &Array, w: &Array| x.matmul(w).tanh().sum(0);
    let found = partitioned(f)(&x, &w).expect("it is traced");
    let values = found.values();
    let sum = values.len() - 1;
    let place = format!("decided.rs:{line}");
    assert_eq!(found.find(&place), (2..values.len()).collect::<Vec<_>>());
    assert_eq!((found.find("1"), found.find("cided.rs:1")), (vec![1], vec![]));
    let why = found.why(sum, "model").expect("it is sharded");
    assert_eq!(why.dim, 0);
    let operations: Vec<&str> = why.steps.iter().map(|step| &step.operation[..]).collect();
    assert_eq!(operations, ["reduce", "tanh", "dot"], "{why}");
    assert!(why.steps.iter().all(|step| step.round == 2), "{why}");
    assert!(why.annotation == "argument `1`, declared" && why.at.file.ends_with("decided.rs"), "{why}");
    let text = why.to_string();
    assert!(text.contains("through dot") && text.contains("(round 2, stage"), "{text}");
    let text = found.why(sum, "data").expect_err("it is summed").to_string();
    assert!(text.contains("is not sharded by `data`"), "{text}");
    let not = found.why_not(sum, "data").expect("an answer");
    assert_eq!(not.obstacles.len(), 1, "{not}");
    assert!(not.obstacles[0].reason.starts_with("`data` divides dimension 0 of tanh f32[8,32]"), "{not}");
    // Of two axes for one dimension of `w` the constraint has one.
    for (value, axis) in [(0, "rows"), (values.len(), "data")] {
        let text = found.why(value, axis).expect_err("a mistake").to_string();
        assert!(text.contains("`rows` is no axis of the mesh") || text.contains("of a function with 5"), "{text}");
    }
}

#[test]
fn obstacles_are_named() {
    let mesh = mesh();
    let named = |spec| NamedSharding::new(&mesh, spec);
    let x = device_put(&ones(&[8, 16]), &named(P(("data", "model")))).expect("it is placed");
    let reason = |spec: crate::sharding::PartitionSpec, axis: &str| {
        let named = NamedSharding::new(&mesh, spec);
        let f = move |x: &Array| with_sharding_constraint(&(x * 2.0), &named);
        let found = partitioned(f)(&x).expect("it is traced");
        found.why_not(found.values().len() - 1, axis).expect("an answer").to_string()
    };
    let text = reason(P("data"), "model");
    assert!(text.contains("dimension 1 is closed by with_sharding_constraint [{\"data\"}, {}] at"), "{text}");
    let text = reason(P((UNCONSTRAINED, "data")), "data");
    assert!(text.contains("`data` divides dimension 1 already"), "{text}");
    let text = reason(P(("model", UNCONSTRAINED)), "data");
    assert!(text.contains("is closed by with_sharding_constraint [{\"model\"}, {?}]"), "{text}");
    let stopped = partitioned(|x: &Array| propagation_barrier(x, PropagationDirection::Backward).tanh())(&x)
        .expect("it is traced");
    let text = stopped.why_not(1, "data").expect("an answer").to_string();
    assert!(text.contains("a barrier that shardings pass backwards only"), "{text}");
    let other = device_put(&ones(&[8, 16]), &named(P("model"))).expect("it is placed");
    let sum = partitioned(|x: &Array, y: &Array| x + y)(&x, &other).expect("it is traced");
    let text = sum.why_not(2, "data").expect("an answer").to_string();
    assert!(text.contains("argument `1` f32[8,16] divides the same dimension by \"model\""), "{text}");
}

#[test]
fn budgets_list_what_exceeds_them() {
    let mesh = mesh();
    let put = |shape: &[usize], spec| device_put(&ones(shape), &NamedSharding::new(&mesh, spec)).expect("it is placed");
    let (x, w) = (put(&[8, 16], P(("data", "model"))), put(&[16, 16], P("model")));
    // Each of three steps adds up the parts of a product.
    let f = |x: &Array, w: &Array| -> Result<Array> { repeated(3, x, |x| x.matmul(w)) };
    let budget = partitioned(f)(&x, &w).expect("it is traced").budget();
    assert!(budget.collectives("model") > 0 && budget.collectives("model") < 4);
    assert_ne!(budget.all_reduce("rows"), 0, "no axis has this name");
    assert!(budget.bytes("rows").is_err());
    let all = budget.collectives("model");
    let bytes: usize = all.found.iter().map(|one| one.bytes * one.times.expect("a scan")).sum();
    assert_eq!(budget.bytes("model").expect("an axis"), bytes);
    assert!(all.found.iter().any(|one| one.times == Some(3)), "{all}");
    let text = budget.expect(&[]).expect_err("there are some").to_string();
    assert!(
        text.contains("that nothing allows") && text.contains("decided.rs:") && text.contains("in each of 3 steps"),
        "{text}"
    );
    let text = budget.expect(&[("all_gather", "modle", 0)]).expect_err("no such axis").to_string();
    assert!(text.contains("`modle` is no axis"), "{text}");
    let counts: Vec<(&str, &str, usize)> =
        budget.table().iter().map(|((kind, _), (number, _))| (*kind, "model", *number)).collect();
    budget.expect(&counts).expect("just what there is");
}

/// The members of both groups keep apart, also where one body is inlined twice, where functions of `jit` call each
/// other, and in loops.
#[test]
fn groups_of_called_functions_are_apart() {
    let mesh = mesh();
    let put = |spec| device_put(&ones(&[8, 8]), &NamedSharding::new(&mesh, spec)).expect("it is placed");
    let (a, c) = (put(P((dim("data").open(), UNCONSTRAINED))), put(P((UNCONSTRAINED, dim("model").open()))));
    // The second array of each pair gets its sharding from the first one alone.
    let pair = |x: &Array, y: &Array| -> Result<(Array, Array)> { shard_alike(&x.tanh(), &y.tanh()) };
    let inner = Arc::new(jit(pair));
    let twice = move |a: &Array, b: &Array, c: &Array, d: &Array| -> Result<(Array, Array)> {
        let ((_, b), (_, d)) = (inner(a, b)?, inner(c, d)?);
        Ok((b, d))
    };
    let check = |name: &str, (b, d): (Array, Array)| {
        let parts = |x: &Array| x.sharding().expect("it is sharded").blocks_per_dim();
        assert_eq!((parts(&b), parts(&d)), (vec![2, 1], vec![1, 4]), "{name}");
    };
    check("jit", jit(twice)(&a, &ones(&[8, 8]), &c, &ones(&[8, 8])).expect("it runs"));
    // A body that is called twice as one graph.
    let body = Arc::new(checkpoint(pair));
    let twice = move |a: &Array, b: &Array, c: &Array, d: &Array| -> Result<(Array, Array)> {
        let ((_, b), (_, d)) = (body(a, b)?, body(c, d)?);
        Ok((b, d))
    };
    check("checkpoint", jit(twice)(&a, &ones(&[8, 8]), &c, &ones(&[8, 8])).expect("it runs"));
    let in_loop = |a: &Array, b: &Array, c: &Array, d: &Array| -> Result<(Array, Array)> {
        let (_, b) = shard_alike(&a.tanh(), &b.tanh())?;
        // The body has a group of its own number 0.
        let d =
            repeated(2, d, |x| shard_as(&[&x.tanh(), &(x * 2.0)]).map_or_else(|_| x.clone(), |mut all| all.remove(0)))?;
        let members = shard_as(&[c, &d])?;
        Ok((b, members[1].clone()))
    };
    check("scan", jit(in_loop)(&a, &ones(&[8, 8]), &c, &ones(&[8, 8])).expect("it runs"));
    let text = shard_alike(&ones(&[8, 8]), &ones(&[4])).expect_err("two shapes").to_string();
    assert!(text.contains("arrays of the shapes [8, 8] and [4]") && text.contains("decided.rs"), "{text}");
}

/// Cotangents are a group of their own, and equal functions are equal graphs.
#[test]
fn groups_have_gradients() {
    let loss = |x: &Array| -> Result<Array> {
        let (a, b) = shard_alike(&x.tanh(), &(x * 3.0))?;
        Ok((&a * &b).sum(..))
    };
    let plain = |x: &Array| (x.tanh() * (x * 3.0)).sum(..);
    let x = Client::cpu().array(&[0.5f32, -1.0, 2.0], &[3]).expect("it fits");
    let (with, without) = (grad(loss)(&x).expect("it runs"), grad(plain)(&x).expect("it runs"));
    assert_eq!(numbers(&with), numbers(&without));
    let text = crate::make_jaxpr(grad(loss))(&x).expect("it is traced");
    assert!(text.contains("group=0") && text.contains("group=1") && !text.contains("group=2"), "{text}");
    assert_eq!(text, crate::make_jaxpr(grad(loss))(&x).expect("it is traced"));
}

/// A scan that carries one array.
fn repeated(steps: usize, x: &Array, f: impl Fn(&Array) -> Array) -> Result<Array> {
    let (x, ()) = Scan::new().length(steps).run(x, &(), |x: &Array, (): &()| (f(x), ()))?;
    Ok(x)
}

/// A file does not hold how values are sharded.
#[test]
fn saved_functions_are_not_sharded() {
    let mesh = mesh();
    let named = NamedSharding::new(&mesh, P(("data", "model")));
    let own = named.clone();
    let f = move |x: &Array| with_sharding_constraint(&(x * 2.0), &own).tanh();
    let x = ones(&[8, 16]);
    let error = crate::lower(f.clone())(&x).expect("it is traced").export().expect_err("it is refused").to_string();
    assert!(error.contains("a function with constraints on how values are sharded is not saved"), "{error}");
    let placed = device_put(&x, &named).expect("it is placed");
    let error = crate::lower(f)(&placed).expect("it is traced").export().expect_err("it is refused").to_string();
    assert!(error.contains("argument `0` is declared to be sharded"), "{error}");
}

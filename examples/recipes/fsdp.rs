//! Steps of training a perceptron of two layers, sharded by annotations alone: of weights, the batch and activations.
use super::report::{agree, are, counted, normal};
use pallas_rt::ops::stack;
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, NamedSharding, P, PartitionSpec, device_put};
use pallas_rt::{Tree, jit, partitioned, value_and_grad, with_sharding_constraint};
use std::sync::Arc;

#[derive(Tree, Clone)]
struct Weights {
    up: Array,
    down: Array,
}

/// A step of gradient descent, which returns the loss and the next weights; `rows` says how activations are sharded.
fn step(rows: &Option<NamedSharding>, w: &Weights, x: &Array, y: &Array) -> Result<(Array, Weights)> {
    let rows = rows.clone();
    let loss = move |w: &Weights, x: &Array, y: &Array| {
        let sharded = |x: Array| rows.as_ref().map_or(x.clone(), |rows| with_sharding_constraint(&x, rows));
        let hidden = sharded(x.matmul(&w.up)).tanh();
        let error = sharded(hidden.matmul(&w.down)) - y;
        (&error * &error).mean(..)
    };
    let (loss, gradient) = value_and_grad(loss)(w, x, y)?;
    let next = Weights { up: &w.up - gradient.up * 0.1, down: &w.down - gradient.down * 0.1 };
    Ok((loss, next))
}

/// Trains for a few steps on a mesh and on one device; weights are sharded by these specs.
fn train(
    axes: &[(&str, usize)],
    up: PartitionSpec,
    down: PartitionSpec,
    batch: PartitionSpec,
    expected: &[(&str, usize)],
) -> Result<bool> {
    let mesh = Arc::new(Mesh::new(axes).expect("axes with names of their own"));
    let put = |x: &Array, spec: &PartitionSpec| device_put(x, &NamedSharding::new(&mesh, spec.clone()));
    let plain = Weights { up: normal(1, &[32, 64], 0.2), down: normal(2, &[64, 32], 0.1) };
    let (x, y) = (normal(3, &[512, 32], 1.0), normal(4, &[512, 32], 1.0));
    let sharded = Weights { up: put(&plain.up, &up)?, down: put(&plain.down, &down)? };
    let (own_x, own_y) = (put(&x, &batch)?, put(&y, &batch)?);

    let rows = Some(NamedSharding::new(&mesh, batch.clone()));
    let on_mesh = move |w: &Weights, x: &Array, y: &Array| step(&rows, w, x, y);
    let found = counted(&partitioned(on_mesh.clone())(&sharded, &own_x, &own_y)?);
    let (one, many) = (jit(|w: &Weights, x: &Array, y: &Array| step(&None, w, x, y)), jit(on_mesh));
    let (mut plain, mut sharded) = (plain, sharded);
    let (mut loss, mut own_loss) = (vec![], vec![]);
    for _ in 0..5 {
        let ((of_one, next), (of_many, own_next)) = (one(&plain, &x, &y)?, many(&sharded, &own_x, &own_y)?);
        (plain, sharded) = (next, own_next);
        loss.push(of_one);
        own_loss.push(of_many);
    }
    let (loss, own_loss) = (stack(&loss, 0), stack(&own_loss, 0));
    let numbers = agree(&[&own_loss, &sharded.up, &sharded.down], &[&loss, &plain.up, &plain.down])?;
    Ok(are(&found, expected) && numbers)
}

/// Every device has all weights and a part of the batch.
pub fn data_parallel() -> Result<bool> {
    let expected = [("all_reduce data", 3)];
    train(&[("data", 8)], P(()), P(()), P("data"), &expected)
}

/// Weights are sharded as well (ZeRO-3; Rajbhandari et al., 2020): a device gathers each where it reads it, and keeps
/// its part of the gradient.
pub fn fully_sharded() -> Result<bool> {
    let expected = [("all_gather data", 2), ("all_reduce data", 1), ("reduce_scatter data", 2)];
    train(&[("data", 8)], P("data"), P("data"), P("data"), &expected)
}

/// The batch over `data` and `fsdp`, rows of weights over `fsdp`, and inner columns over `model`.
pub fn three_axes() -> Result<bool> {
    let expected = [("all_gather fsdp", 2), ("all_reduce data,fsdp", 3), ("all_reduce model", 1)];
    train(
        &[("data", 2), ("fsdp", 2), ("model", 2)],
        P(("fsdp", "model")),
        P(("model", "fsdp")),
        P((["data", "fsdp"],)),
        &expected,
    )
}

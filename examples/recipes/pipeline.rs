//! Layers on devices one after the other, through which micro-batches pass as through a pipeline: GPipe (Huang et al.,
//! 2019).
//!
//! In each turn every device computes its layer for the micro-batch that it has, and passes the result on to the next
//! device. The first device takes a new micro-batch in each turn; the last one has the first result after as many turns
//! as there are layers. Gradients take the same way back.
use super::report::{agree, are, counted, normal};
use pallas_rt::ops::{concatenate, select, zeros};
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, P};
use pallas_rt::spmd::{axis_index, axis_size, ppermute, psum, pvary};
use pallas_rt::{jit, partitioned, scan, shard_map, value_and_grad};
use std::sync::Arc;

const LAYERS: usize = 4;
const BATCHES: usize = 6;

fn layer(w: &Array, x: &Array) -> Array {
    x.matmul(w).tanh()
}

/// The layers one after the other on each micro-batch.
fn plain(w: &Array, x: &Array) -> Array {
    (0..LAYERS).fold(x.clone(), |x, i| layer(&w.at(i as i64).get(), &x))
}

/// The function of each device, which has one layer and all micro-batches.
fn piped(w: &Array, x: &Array) -> Result<Array> {
    let stages = axis_size("stage")?;
    let w = w.at(0).get();
    let next: Vec<(usize, usize)> = (1..stages).map(|i| (i - 1, i)).collect();
    let number = axis_index("stage");
    let (is_first, is_last) = (number.eq(0), number.eq(stages as i32 - 1));
    let shape = &x.shape()[1..];
    // After the last micro-batch the pipeline runs empty.
    let rest = zeros(&[&[stages - 1], shape].concat(), DType::F32);
    let turns = concatenate(&[x, &rest], 0);
    let start = pvary(&zeros(shape, DType::F32), "stage");
    let (_, made) = scan(&start, &turns, |held: &Array, new: &Array| {
        let x = select(&is_first, new, held);
        let y = layer(&w, &x);
        (ppermute(&y, "stage", &next), y)
    })?;
    // The last device has the results, from the turn on in which the first one arrives.
    let own = made.index(stages as i64 - 1..);
    Ok(psum(&select(&is_last, &own, &own * 0.0), "stage"))
}

/// Runs it, with its gradients.
pub fn run() -> Result<bool> {
    let mesh = Arc::new(Mesh::new(&[("stage", LAYERS)]).expect("a name"));
    let sharded = || shard_map(piped, &mesh, [P("stage"), P(())], [P(())]);
    let (w, x) = (normal(1, &[LAYERS, 16, 16], 0.3), normal(2, &[BATCHES, 8, 16], 1.0));
    let found = counted(&partitioned(sharded())(&w, &x)?);
    let f = sharded();
    let many = jit(value_and_grad(move |w: &Array, x: &Array| f(w, x).map(|y| (&y * &y).sum(..))));
    let one = jit(value_and_grad(|w: &Array, x: &Array| {
        let y = plain(w, x);
        (&y * &y).sum(..)
    }));
    let ((value, gradient), (expected, one_gradient)) = (many(&w, &x)?, one(&w, &x)?);
    let numbers = agree(&[&value, &gradient], &[&expected, &one_gradient])?;
    Ok(are(&found, &[("all_reduce stage", 1), ("collective_permute stage", 1)]) && numbers)
}

//! Products of matrices whose operand is gathered, or whose result is scattered, block by block: while devices multiply
//! one block, the next one is on its way (Wang et al., "Overlap Communication with Dependent Computation", 2023). No
//! exchange depends on the product that is computed beside it.
use super::report::{agree, are, counted, normal};
use pallas_rt::ops::{arange, concatenate};
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, P};
use pallas_rt::spmd::{axis_index, axis_size, ppermute};
use pallas_rt::{jit, partitioned, shard_map};
use std::sync::Arc;

const DEVICES: usize = 4;

/// The rows of `x` on all devices, by the columns `w` of this one.
fn gathered(x: &Array, w: &Array) -> Result<Array> {
    let n = axis_size("model")?;
    // Each device sends what it holds to the one before.
    let ring: Vec<(usize, usize)> = (0..n).map(|i| (i, (i + n - 1) % n)).collect();
    let (mut held, mut blocks) = (x.clone(), vec![]);
    for step in 0..n {
        let next = (step + 1 < n).then(|| ppermute(&held, "model", &ring));
        blocks.push(held.matmul(w).expand_dims(0));
        held = next.unwrap_or(held);
    }
    // Block i is that of the device i places ahead.
    let places = (arange(0, n as i32, 1, DType::I32) + n as i32 - axis_index("model")) % n as i32;
    Ok(concatenate(&blocks, 0).take(&places, 0).reshape(&[n * x.shape()[0], w.shape()[1]]))
}

/// The rows of this device of the sum over devices of the columns `x` by the rows `w` of each.
fn scattered(x: &Array, w: &Array) -> Result<Array> {
    let n = axis_size("model")?;
    let ring: Vec<(usize, usize)> = (0..n).map(|i| (i, (i + 1) % n)).collect();
    let blocks = x.reshape(&[n, x.shape()[0] / n, x.shape()[1]]);
    let own = axis_index("model");
    // A sum begins at the device behind the one that it is for, and reaches that one last.
    let product = |step: usize| blocks.take(&((&own + (2 * n - 1 - step) as i32) % n as i32), 0).matmul(w);
    let mut sum = product(0);
    for step in 1..n {
        sum = ppermute(&sum, "model", &ring) + product(step);
    }
    Ok(sum)
}

/// Runs both, one after the other as in a perceptron, against one device.
pub fn run() -> Result<bool> {
    let mesh = Arc::new(Mesh::new(&[("model", DEVICES)]).expect("a name"));
    let layers = || {
        let body = |x: &Array, up: &Array, down: &Array| scattered(&gathered(x, up)?.tanh(), down);
        shard_map(body, &mesh, [P("model"), P((None, "model")), P("model")], [P("model")])
    };
    let (x, up, down) = (normal(1, &[16, 12], 1.0), normal(2, &[12, 24], 0.3), normal(3, &[24, 12], 0.2));
    let found = counted(&partitioned(layers())(&x, &up, &down)?);
    let one = jit(|x: &Array, up: &Array, down: &Array| x.matmul(up).tanh().matmul(down));
    let numbers = agree(&[&jit(layers())(&x, &up, &down)?], &[&one(&x, &up, &down)?])?;
    Ok(are(&found, &[("collective_permute model", 2 * (DEVICES - 1))]) && numbers)
}

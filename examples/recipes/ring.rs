//! An all-reduce by hand: devices in a ring pass parts of their blocks on. In the first round every part is added up on
//! its way, in the second one the sums go around (Patarasuk and Yuan, 2009). Each device sends 2 (n - 1) / n of its
//! block.
use super::report::{agree, are, counted, normal};
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, P};
use pallas_rt::spmd::{axis_index, axis_size, ppermute, psum};
use pallas_rt::{jit, partitioned, shard_map};
use std::sync::Arc;

/// The sum of the blocks of all devices along an axis, in `n` equal parts of the first dimension.
pub fn all_reduce(x: &Array, axis: &str) -> Result<Array> {
    let n = axis_size(axis)?;
    let ring: Vec<(usize, usize)> = (0..n).map(|i| (i, (i + 1) % n)).collect();
    let own = axis_index(axis);
    let rows = x.shape()[0] / n;
    let parts = x.reshape(&[&[n, rows], &x.shape()[1..]].concat());
    // The part that is `steps` places behind the device's own number.
    let number = |steps: usize| (&own + (2 * n - steps) as i32) % n as i32;
    let part = |steps: usize| parts.take(&number(steps), 0);
    let mut sum = part(0);
    for steps in 1..n {
        sum = ppermute(&sum, axis, &ring) + part(steps);
    }
    // Now the device has the sum of the part behind the next one, and the others follow.
    let mut all = &parts * 0.0;
    for steps in 0..n {
        all = all.at(number(n - 1 + steps)).set(&sum);
        if steps + 1 < n {
            sum = ppermute(&sum, axis, &ring);
        }
    }
    Ok(all.reshape(x.shape()))
}

/// Runs it, against the collective.
pub fn run() -> Result<bool> {
    const DEVICES: usize = 4;
    let mesh = Arc::new(Mesh::new(&[("ring", DEVICES)]).expect("a name"));
    let by_hand = || shard_map(|x: &Array| all_reduce(x, "ring"), &mesh, [P("ring")], [P("ring")]);
    let collective = || shard_map(|x: &Array| psum(x, "ring"), &mesh, [P("ring")], [P(())]);
    let x = normal(1, &[DEVICES * 8, 3], 1.0);
    let shardings = partitioned(by_hand())(&x)?;
    let bytes: usize = shardings.collectives().iter().map(|c| c.bytes).sum();
    let of_collective: usize = partitioned(collective())(&x)?.collectives().iter().map(|c| c.bytes).sum();
    let found = counted(&shardings);
    let sums = jit(by_hand())(&x)?.index(0..8);
    let numbers = agree(&[&sums], &[&collective()(&x)?])?;
    println!("{bytes} bytes by hand, {of_collective} by the collective");
    Ok(are(&found, &[("collective_permute ring", 2 * (DEVICES - 1))]) && numbers && bytes == of_collective)
}

//! Attention over positions that are sharded among devices in a ring (Liu et al., 2023): queries stay, and blocks of
//! keys and values go around. A device runs the shipped kernel on its queries and the block that it has, with the
//! positions of both, and merges the results by their log-sum-exp. Backward the gradients of keys and values go around
//! with them.
use super::report::{agree, are, counted, normal};
use pallas_kernels::flash_attention::{Causal, Options, flash_attention, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::flash_attention_backward;
use pallas_rt::ops::stack;
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, P};
use pallas_rt::spmd::{axis_index, axis_size, ppermute};
use pallas_rt::{custom_vjp, jit, partitioned, shard_map, value_and_grad};
use std::sync::Arc;

const DEVICES: usize = 4;

/// A function of queries, keys and values.
type Attention = Box<dyn Fn(&Array, &Array, &Array) -> Result<Array> + Send + Sync>;

/// Passes arrays on to the next device of the ring.
fn passed<const N: usize>(arrays: [Array; N], n: usize) -> [Array; N] {
    let ring: Vec<(usize, usize)> = (0..n).map(|i| (i, (i + 1) % n)).collect();
    arrays.map(|x| ppermute(&x, "seq", &ring))
}

/// The positions of the first query, and of the first key that arrives after so many steps.
fn offsets(rows: usize, steps: usize, n: usize) -> Array {
    let own = axis_index("seq");
    let source = (&own + (n - steps) as i32) % n as i32;
    stack(&[own, source], 0) * rows as i32
}

fn options(offsets: &Array) -> Options<'_> {
    Options { causal: Causal::FromStart, offsets: Some(offsets), ..Options::default() }
}

/// The attention of a device's queries to all keys, with the log-sum-exp of the scores.
fn forward(q: &Array, k: &Array, v: &Array) -> Result<(Array, Array)> {
    let (n, rows) = (axis_size("seq")?, q.shape()[2]);
    // A query sees keys of its own block, so that this log-sum-exp is finite.
    let (mut all, mut total) = flash_attention_with_lse(q, k, v, &options(&offsets(rows, 0, n)))?;
    let mut arriving = [k.clone(), v.clone()];
    for steps in 1..n {
        arriving = passed(arriving, n);
        let [k, v] = &arriving;
        let (out, lse) = flash_attention_with_lse(q, k, v, &options(&offsets(rows, steps, n)))?;
        let largest = total.maximum(&lse);
        let sum = &largest + ((&total - &largest).exp() + (&lse - &largest).exp()).log();
        let weight = |part: &Array| (part - &sum).exp().expand_dims(-1);
        (all, total) = (all * weight(&total) + out * weight(&lse), sum);
    }
    Ok((all, total))
}

/// The gradients by queries, keys and values, from those of all positions.
fn backward([q, k, v, out, lse]: [&Array; 5], dout: &Array) -> Result<(Array, Array, Array)> {
    let (n, rows) = (axis_size("seq")?, q.shape()[2]);
    let (mut dq, mut dk, mut dv) =
        flash_attention_backward([q, k, v], [out, lse], dout, &options(&offsets(rows, 0, n)))?;
    let mut arriving = [k.clone(), v.clone()];
    for steps in 1..n {
        arriving = passed(arriving, n);
        let [k, v] = &arriving;
        let at = offsets(rows, steps, n);
        let (own_dq, own_dk, own_dv) = flash_attention_backward([q, k, v], [out, lse], dout, &options(&at))?;
        let [before_dk, before_dv] = passed([dk, dv], n);
        (dq, dk, dv) = (dq + own_dq, before_dk + own_dk, before_dv + own_dv);
    }
    // The last step brings them to the device that has the keys.
    let [dk, dv] = passed([dk, dv], n);
    Ok((dq, dk, dv))
}

fn ring() -> Attention {
    custom_vjp(
        |q: &Array, k: &Array, v: &Array| Ok(forward(q, k, v)?.0),
        |q: &Array, k: &Array, v: &Array| {
            let (out, lse) = forward(q, k, v)?;
            Ok((out.clone(), (q.clone(), k.clone(), v.clone(), out, lse)))
        },
        |(q, k, v, out, lse): &(Array, Array, Array, Array, Array), dout: &Array| backward([q, k, v, out, lse], dout),
    )
}

/// Runs it, with its gradients.
pub fn run() -> Result<bool> {
    let mesh = Arc::new(Mesh::new(&[("seq", DEVICES)]).expect("a name"));
    let sharded = || -> Attention {
        let attention = ring();
        let body = move |q: &Array, k: &Array, v: &Array| attention(q, k, v);
        shard_map(body, &mesh, [P((None, None, "seq"))], [P((None, None, "seq"))]).into_fn()
    };
    let [q, k, v] = [1, 2, 3].map(|seed| normal(seed, &[2, 2, DEVICES * 10, 16], 1.0));
    let found = counted(&partitioned(sharded())(&q, &k, &v)?);

    let loss = |f: Attention| {
        let loss = move |qkv: &(Array, Array, Array)| f(&qkv.0, &qkv.1, &qkv.2).map(|y| (&y * &y).sum(..));
        jit(value_and_grad(loss))
    };
    let one: Attention =
        Box::new(|q, k, v| flash_attention(q, k, v, &Options { causal: Causal::FromStart, ..Options::default() }));
    let qkv = (q, k, v);
    let (value, (dq, dk, dv)) = loss(sharded())(&qkv)?;
    let (expected, (one_q, one_k, one_v)) = loss(one)(&qkv)?;
    let numbers = agree(&[&value, &dq, &dk, &dv], &[&expected, &one_q, &one_k, &one_v])?;
    Ok(are(&found, &[("collective_permute seq", 2 * (DEVICES - 1))]) && numbers)
}

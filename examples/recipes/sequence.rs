//! Attention over positions that are sharded among devices, as in DeepSpeed-Ulysses (Jacobs et al., 2023): in front of
//! it devices exchange positions for heads, and behind it heads for positions. In between each has whole sequences of
//! some heads, on which the shipped kernel runs.
use super::report::{agree, are, counted, normal};
use pallas_kernels::flash_attention::{Causal, Options, flash_attention};
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, P};
use pallas_rt::spmd::all_to_all_tiled;
use pallas_rt::{jit, partitioned, shard_map, value_and_grad};
use std::sync::Arc;

const HEADS: usize = 4;
const POSITIONS: usize = 40;

/// A function of queries, keys and values.
type Attention = Box<dyn Fn(&Array, &Array, &Array) -> Result<Array> + Send + Sync>;

fn attention(q: &Array, k: &Array, v: &Array) -> Result<Array> {
    flash_attention(q, k, v, &Options { causal: Causal::FromStart, ..Options::default() })
}

/// Runs it, with its gradients.
pub fn run() -> Result<bool> {
    let mesh = Arc::new(Mesh::new(&[("seq", 4)]).expect("a name"));
    let sharded = || {
        let body = |q: &Array, k: &Array, v: &Array| {
            let heads = |x: &Array| all_to_all_tiled(x, "seq", 1, 2);
            let whole = attention(&heads(q), &heads(k), &heads(v))?;
            Ok::<_, Error>(all_to_all_tiled(&whole, "seq", 2, 1))
        };
        shard_map(body, &mesh, [P((None, None, "seq"))], [P((None, None, "seq"))])
    };
    let [q, k, v] = [1, 2, 3].map(|seed| normal(seed, &[2, HEADS, POSITIONS, 16], 1.0));
    let found = counted(&partitioned(sharded())(&q, &k, &v)?);

    let loss = |f: Attention| {
        let loss = move |qkv: &(Array, Array, Array)| f(&qkv.0, &qkv.1, &qkv.2).map(|y| (&y * &y).sum(..));
        jit(value_and_grad(loss))
    };
    let qkv = (q, k, v);
    let (value, (dq, dk, dv)) = loss(sharded().into_fn())(&qkv)?;
    let (expected, (one_q, one_k, one_v)) = loss(Box::new(attention))(&qkv)?;
    let numbers = agree(&[&value, &dq, &dk, &dv], &[&expected, &one_q, &one_k, &one_v])?;
    Ok(are(&found, &[("all_to_all seq", 4)]) && numbers)
}

//! Generating text, without the text: requests of different lengths grow token by token over one pool of pages. Each
//! step appends keys and values in place and attends; what a request had is never copied, and pages are taken as they
//! are needed. Times are those of one layer's attention, without the model around it.
//!
//! `cargo run --release --example decode [-- --device cpu|gpu|interpret]`
mod device;
mod usage;

use pallas_kernels::paged_attention::{Batch, BatchOptions, Options, PagedCache, Requests};
use pallas_rt::prelude::*;
use std::time::{Duration, Instant};

/// Sizes of a model's attention, of the pool and of the work.
struct Sizes {
    heads: usize,
    key_heads: usize,
    head_dim: usize,
    page: usize,
    prompts: &'static [usize],
    tokens: usize,
}

fn main() -> Result<()> {
    usage::read(include_str!("decode.rs"), &["--device"]);
    let prompts = &[700, 12, 1500, 90, 333, 1, 2048, 64];
    decode(&device::client()?, &Sizes { heads: 16, key_heads: 4, head_dim: 64, page: 16, prompts, tokens: 100 })
}

pub fn run(client: &Client) -> Result<()> {
    decode(client, &Sizes { heads: 4, key_heads: 2, head_dim: 4, page: 4, prompts: &[5, 0, 9], tokens: 3 })
}

fn decode(client: &Client, sizes: &Sizes) -> Result<()> {
    println!("on {}", client.why());
    let &Sizes { heads, key_heads, head_dim, page, prompts, tokens } = sizes;
    let most = prompts.iter().map(|n| (n + tokens).div_ceil(page)).max().unwrap_or(0);
    let pool: usize = prompts.iter().map(|n| (n + tokens).div_ceil(page)).sum();
    let mut cache = PagedCache::new(client, DType::F32, [pool, key_heads, page, head_dim])?;
    // The scheduler's numbers: free pages, each request's pages and keys.
    let mut free: Vec<i32> = (0..pool as i32).rev().collect();
    let mut tables = vec![-1; prompts.len() * most];
    let mut lengths = vec![0i32; prompts.len()];
    let mut last = None;
    let mut spent = [Duration::ZERO; 2];
    for step in 0..=tokens {
        // First the prompts, then one token of each request.
        let new: Vec<usize> = if step == 0 { prompts.to_vec() } else { vec![1; prompts.len()] };
        let mut starts = vec![0i32];
        for (r, &n) in new.iter().enumerate() {
            let had = (lengths[r] as usize).div_ceil(page);
            lengths[r] += n as i32;
            for j in had..(lengths[r] as usize).div_ceil(page) {
                tables[r * most + j] = free.pop().expect("the pool has pages for all");
            }
            starts.push(starts[r] + n as i32);
        }
        // What a model's projections would give.
        let rows: usize = new.iter().sum();
        let given = |seed: usize, heads: usize| {
            client.array(&noise(step * 3 + seed, rows, heads, head_dim), &[rows, heads, head_dim])
        };
        let (q, k, v) = (given(1, heads)?, given(2, key_heads)?, given(3, key_heads)?);
        let begun = Instant::now();
        let requests = Requests { tables: &tables, lengths: &lengths, starts: &starts };
        let batch = Batch::new(&cache, heads, requests, BatchOptions::default())?;
        cache.append(&batch, &k, &v)?;
        let out = batch.attend(&q, &cache, &Options::default())?;
        out.block_until_ready()?;
        match step {
            0 => println!("prompts   {rows} tokens in {:.1} ms, kernels compiled", begun.elapsed().as_secs_f64() * 1e3),
            // The first step compiles, too.
            _ => spent[usize::from(step > 1)] += begun.elapsed(),
        }
        last = Some(out);
    }
    let keys = lengths.iter().sum::<i32>() as usize;
    let [first, others] = spent.map(|time| time.as_secs_f64());
    println!(
        "decoding  {} tokens a step: {:.2} ms, {:.0} tokens/s; the first step {:.2} ms, kernels compiled",
        prompts.len(),
        others * 1e3 / (tokens - 1) as f64,
        ((tokens - 1) * prompts.len()) as f64 / others,
        first * 1e3,
    );
    let used = pool - free.len();
    let bytes = |keys: usize| (2 * 4 * keys * key_heads * head_dim) as f64 / 1e6;
    println!(
        "cache     {used} of {pool} pages, {:.1} MB, {:.0} % of them keys; in rows as long as the longest: {:.1} MB",
        bytes(used * page),
        100.0 * keys as f64 / (used * page) as f64,
        bytes(lengths.iter().max().copied().unwrap_or(0) as usize * prompts.len()),
    );
    // Weights are positive and sum to 1: no result lies outside of the values, which lie in [-1, 1).
    let out = last.expect("there was a step");
    assert!(out.to_vec::<f32>()?.iter().all(|x| (-1.0..1.0).contains(x)));
    Ok(())
}

fn noise(seed: usize, rows: usize, heads: usize, d: usize) -> Vec<f32> {
    let number = |i: usize| ((i + seed * 7919).wrapping_mul(2_654_435_761) % 2003) as f32 / 1001.5 - 1.0;
    (0..rows * heads * d).map(number).collect()
}

//! Attention of few queries over many keys: in one array, and in pages.
use super::{Case, Entry, Given, one};
use pallas_kernels::decode_attention::{Options, decode_attention};
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests, paged_attention};
use pallas_rt::prelude::*;

/// Queries `[b, h, s, d]` over keys `[b, g, l, d]`.
pub const CACHES: &[Entry] = &[
    Entry::new("decode", |g| decode(g, |_| Options::default())),
    Entry::new("decode in parts", |g| decode(g, |parts| Options { causal: true, splits: parts, ..Options::default() })),
];

/// Requests `[r, h, d]` over pages `[p, g, t, d]`.
pub const PAGES: &[Entry] = &[
    Entry::new("paged", |g| paged(g, g.dtype)),
    Entry::new("paged int8", |g| paged(g, DType::I8)),
    // Tables on the device.
    Entry::new("paged by tables", |g| {
        let (shape, lengths) = ([g.of('r'), g.of('p') / g.of('r')], g.client.array(&lengths(g), &[g.of('r')])?);
        let tables = g.client.array(&numbers(g)[..shape[0] * shape[1]], &shape)?;
        let operands = [g.floats("rhd")?, g.floats("pgtd")?, g.floats("pgtd")?];
        Ok(Case::new(operands, move |x| {
            let cache = PagedCache { k: x[1].clone(), v: x[2].clone(), scales: None };
            one(paged_attention(&x[0], &cache, &tables, &lengths, &paged_attention::Options::default())?)
        }))
    }),
    Entry::new("paged append", |g| append(g, g.dtype)),
    Entry::new("paged append int8", |g| append(g, DType::I8)),
];

fn decode(g: &Given<'_>, options: fn(Option<usize>) -> Options<'static>) -> Result<Case> {
    let parts = g.get('a');
    let operands = [g.floats("bhsd")?, g.floats("bgld")?, g.floats("bgld")?];
    let case = Case::new(operands, move |x| one(decode_attention(&x[0], &x[1], &x[2], &options(parts))?));
    Ok(case.flops(4.0 * g.shape("bhsld").iter().product::<usize>() as f64, 2.5))
}

/// Numbers of pages in no order, of which each request has as many.
fn numbers(g: &Given<'_>) -> Vec<i32> {
    let pages = g.of('p');
    (0..pages).map(|j| (j * 7 % pages) as i32).collect()
}
fn lengths(g: &Given<'_>) -> Vec<i32> {
    vec![(g.of('p') / g.of('r') * g.of('t')) as i32; g.of('r')]
}

/// A cache, a step of its requests, and the number of their queries.
fn pages(g: &Given<'_>, stored: DType) -> Result<(PagedCache, Batch, usize)> {
    let (pages, requests) = (g.of('p'), g.of('r'));
    let mut cache = PagedCache::new(g.client, stored, [pages, g.of('g'), g.of('t'), g.of('d')])?;
    if stored != DType::I8 {
        (cache.k, cache.v) = (g.array(stored, "pgtd")?, g.array(stored, "pgtd")?);
    }
    let first = g.get('c').unwrap_or(1);
    let starts: Vec<i32> = [0].into_iter().chain((first..first + requests).map(|n| n as i32)).collect();
    let (tables, lengths) = (numbers(g), lengths(g));
    let step = Requests { tables: &tables, lengths: &lengths, starts: &starts };
    let options = BatchOptions { window: g.get('w'), pages_per_item: g.get('a') };
    let batch = Batch::new(&cache, g.of('h'), step, options)?;
    Ok((cache, batch, first + requests - 1))
}

fn paged(g: &Given<'_>, stored: DType) -> Result<Case> {
    let (cache, batch, queries) = pages(g, stored)?;
    let q = g.shaped(g.dtype, &[queries, g.of('h'), g.of('d')])?;
    let case = Case::new([q, cache.k.clone(), cache.v.clone()], move |x| {
        let cache = PagedCache { k: x[1].clone(), v: x[2].clone(), ..cache.clone() };
        one(batch.attend(&x[0], &cache, &paged_attention::Options::default())?)
    });
    Ok(case.flops(4.0 * g.shape("hptd").iter().product::<usize>() as f64, 2.5))
}

fn append(g: &Given<'_>, stored: DType) -> Result<Case> {
    let (cache, batch, queries) = pages(g, stored)?;
    let new = || g.shaped(g.dtype, &[queries, g.of('g'), g.of('d')]);
    let mut operands = vec![new()?, new()?, cache.k, cache.v];
    if stored == DType::I8 {
        operands.extend([g.array(DType::F32, "pgt")?, g.array(DType::F32, "pgt")?]);
    }
    Ok(Case::new(operands, move |x| {
        let scales = x.get(4).zip(x.get(5)).map(|(k, v)| [k.clone(), v.clone()]);
        let mut cache = PagedCache { k: x[2].clone(), v: x[3].clone(), scales };
        cache.append(&batch, &x[0], &x[1])?;
        Ok([vec![cache.k, cache.v], cache.scales.into_iter().flatten().collect()].concat())
    }))
}

//! Attention over a cache of keys and values in pages: requests of different lengths share one pool of memory.
//!
//! ```text
//! out_t = softmax(cap(q_t kᵀ · scale)) v       over the keys of query t's request, up to its own position
//! ```
//! (PagedAttention, Kwon et al. 2023.) The cache is `[pages, key heads, page, d]`, so that a page of one head is one
//! piece of memory: FlashInfer's and vLLM's HND layout. JAX's `paged_attention` has `[key heads, pages, page, d]`,
//! vLLM's default NHD `[pages, page, key heads, d]`: transpose those once. Page `j` of request r is number
//! `tables[r][j]` of the pool.
//!
//! Queries of all requests are contiguous, `[queries, heads, d]`; those of request r are from `starts[r]` to
//! `starts[r + 1]`, as in JAX's `ragged_paged_attention`: a prefill of hundreds of queries and steps of one query each
//! run in one launch. They are the last tokens of their request: with n queries and `lengths[r]` keys, query i sees
//! keys `j <= i + lengths[r] - n`. So a step first appends its keys and values ([`PagedCache::append`]), then attends.
//!
//! A [`Batch`] describes a step. It is made on the host from the scheduler's numbers: it checks each entry of the block
//! tables that will be read **before anything runs**, and all layers of a model share it. An entry out of the pool's
//! range is an error, never a read of another page. The functions that take tables as arrays read them back and make a
//! batch for each call, which waits for the device.
//!
//! A batch is cut into work items: up to 16 queries of one request, against a run of its pages. Long runs are split, so
//! that a long request does not keep one core busy alone, and [`combine_splits`] combines the parts. The queries of all
//! heads that share a head of keys are rows of one product.
//!
//! Keys and values may be 8-bit integers with one f32 scale per token and head, `x ≈ scale · i8` with
//! `scale = max|x| / 127`, as JAX's quantised `paged_attention` keeps them: a page in use never has to be rescaled.
//! Scores and weights are multiplied by the scales, not keys and values.
//!
//! Use [`crate::decode_attention`] if all requests have contiguous caches.
use crate::argument_errors::argument_error;
use crate::attention_options::{score_scale, soft_cap_bits};
use crate::attention_scores::Rules;
use crate::block_sizes::{BlockSizeKey, UNBOUNDED_EXTENT, choose_block_sizes};
use crate::decode_attention::combine_splits;
use crate::dtype_dispatch::{floats, read_i32_elements};
use crate::online_softmax::{OnlineSoftmax, upload_i32};
use crate::paged_batch::{
    FIRST_PAGE_COLUMN, FIRST_QUERY_COLUMN, KEY_COUNT_COLUMN, PAGE_COUNT_COLUMN, POSITION_COLUMN, QUERY_COUNT_COLUMN,
    REQUEST_COLUMN, RESULT_COLUMN, item_resources,
};
use pallas_rt::Target;
use pallas_rt::prelude::*;

pub use crate::paged_batch::{Batch, BatchOptions, Requests, block_size};
pub use crate::paged_cache::PagedCache;

/// Options of paged attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Factor of the scores `q kᵀ`; `None`: `1 / sqrt(head dimension)`.
    pub scale: Option<f32>,
    /// Bound `c` of the scores, applied as `c · tanh(s / c)`; `None`: no bound.
    pub soft_cap: Option<f32>,
}

/// Keys of a step's pages that are visible to the rows (queries × heads) of a work item.
#[derive(Clone, Copy)]
struct ItemMask {
    /// Index of the first key of the pages, and end of the item's keys.
    key: Scalar<i32>,
    end: Scalar<i32>,
    /// Position of the item's first query, and number of its queries.
    position: Scalar<i32>,
    count: Scalar<i32>,
    window: Option<Scalar<i32>>,
    /// Number of query heads that share a head of keys: each query has as many rows.
    group: usize,
}

impl ItemMask {
    /// Returns true if every row sees the first `keys` keys of the pages, so that no mask is needed.
    fn is_fully_seen(self, keys: usize) -> Scalar<bool> {
        let behind = self.key + keys as i32;
        let seen = behind.le(self.end) & behind.le(self.position + 1);
        self.window.map_or(seen, |window| seen & self.key.gt(self.position + self.count - 1 - window))
    }
    /// Returns the scores `[rows, keys]` with -inf for keys that a row does not see.
    fn mask_scores(self, scores: Tile<f32>) -> Tile<f32> {
        let [rows, keys] = [0, 1].map(|axis| scores.shape()[axis]);
        let keys = iota::<i32>([1, keys], 1) + self.key;
        let own = iota::<i32>([rows, 1], 0) / self.group as i32 + self.position;
        let mut live = keys.lt(self.end) & keys.le(own);
        if let Some(window) = self.window {
            live &= keys.gt(own - window);
        }
        select(live, scores, f32::NEG_INFINITY)
    }
    /// Returns the rows of values that begin at key `first_key` of the step, with 0 past the request's last key: unused
    /// memory may hold NaN, and 0 · NaN is NaN.
    fn mask_values(self, values: Tile<f32>, first_key: usize) -> Tile<f32> {
        let keys = iota::<i32>([values.shape()[0], 1], 0) + (self.key + first_key as i32);
        select(keys.lt(self.end), values, 0.0)
    }
}

/// Keys and values of one step, a tile per page or part of a page, with their dequantisation scales if they are i8.
struct StepPages<C: Number> {
    k: Vec<Tile<C>>,
    v: Vec<Tile<C>>,
    scales: Option<[Tile<f32>; 2]>,
    rules: Rules,
}

impl<C: Number> StepPages<C> {
    /// Accumulates attention of the scaled queries `q` over these pages into `rows`; without `mask` every row sees all
    /// keys.
    fn accumulate_attention(&self, rows: OnlineSoftmax<f32>, q: Tile<f32>, mask: Option<ItemMask>) {
        // Keys and values become f32 while they are multiplied.
        let scores = concat_tiles(self.k.iter().map(|k| dot(q, k.cast::<f32>().t())).collect(), 1);
        let scores = self.scales.map_or(scores, |[k, _]| scores * k.expand(0));
        let scores = self.rules.scores(scores, None).0;
        let scores = mask.map_or(scores, |mask| mask.mask_scores(scores));
        let weigh = |p: Tile<f32>| {
            self.scales.map_or(p, |[_, v]| {
                let v = v.expand(1);
                p * mask.map_or(v, |mask| mask.mask_values(v, 0)).t()
            })
        };
        rows.accumulate_with(scores, weigh, |p| {
            let mut sum = None;
            for (page, v) in self.v.iter().enumerate() {
                let (v, size) = (v.cast::<f32>(), v.shape()[0]);
                let v = mask.map_or(v, |mask| mask.mask_values(v, page * size));
                let p = if self.v.len() == 1 { p } else { p.slice([0, page * size], [p.shape()[0], size]) };
                let product = dot(p, v);
                sum = Some(sum.map_or(product, |sum: Tile<f32>| sum + product));
            }
            sum.expect("a step has a page")
        });
    }
}

/// Concatenates tiles along an axis; returns a single tile as it is.
fn concat_tiles<C: Number>(tiles: Vec<Tile<C>>, axis: usize) -> Tile<C> {
    match tiles[..] {
        [one] => one,
        _ => concat(tiles, axis),
    }
}

/// Computes attention of one work item and one head of keys per program. The item's pages stream past its rows, which
/// are its queries' heads of the group: `pages` per step, or one of the equal `pieces` of a page.
///
/// Items of a single query use rows of their own size, whatever `BQ` is. `items` has a column for each constant of the
/// module. `NP` is the size of the pool for which the kernel is compiled, at least P. With `is_gathered`, for
/// processors whose programs read the whole pool, `NP` is P, and the `PG` pages of a step are gathered from the pool as
/// one tile.
#[kernel(grid = (W, G, N), semantics = (parallel, parallel, arbitrary))]
pub fn paged_attention_items<E: Float, C: Number, const BQ: usize>(
    #[block([T, G, Q, D] => [Element(BQ, 0, BQ), _, Q, D], |w, g, _| (element(items.at((w, FIRST_QUERY_COLUMN))), g, 0, 0), fill = 0.0)]
    q: In<E>,
    #[block([P, G, K, D] => [NP, _, K, D], |_, g, _| (0, g, 0, 0))] k: In<C>,
    #[block([P, G, K, D] => [NP, _, K, D], |_, g, _| (0, g, 0, 0))] v: In<C>,
    #[block([P1, G1, K] => [NP, _, K], |_, g, _| (0, g, 0))] k_scales: In<f32>,
    #[block([P1, G1, K] => [NP, _, K], |_, g, _| (0, g, 0))] v_scales: In<f32>,
    #[prefetch([R, M])] tables: Prefetch<i32>,
    #[prefetch([W, 8])] items: Prefetch<i32>,
    #[block(
        [R, M] => [_, Element(PG, 0, PG)],
        |w, _, n| (items.at((w, REQUEST_COLUMN)), element(min(items.at((w, FIRST_PAGE_COLUMN)) + n * PG, M))), fill = 0
    )]
    run_of_table: In<i32>,
    #[block([U, G, Q, D] => [Element(BQ, 0, BQ), _, Q, D], |w, g, _| (element(items.at((w, RESULT_COLUMN))), g, 0, 0))]
    out: Out<f32>,
    #[block([U, G, Q] => [Element(BQ, 0, BQ), _, Q], |w, g, _| (element(items.at((w, RESULT_COLUMN))), g, 0), empty = f32::NEG_INFINITY)]
    lse: Out<f32>,
    #[scratch([BQ * Q, D])] scaled: Scratch<f32>,
    #[scratch([BQ * Q, 1])] max: Scratch<f32>,
    #[scratch([BQ * Q, 1])] sum: Scratch<f32>,
    #[scratch([BQ * Q, D])] acc: Scratch<f32>,
    #[scratch([Q, D])] one_scaled: Scratch<f32>,
    #[scratch([Q, 1])] one_max: Scratch<f32>,
    #[scratch([Q, 1])] one_sum: Scratch<f32>,
    #[scratch([Q, D])] one_acc: Scratch<f32>,
    scale: f32,
    window: i32,
    #[fixed] windowed: bool,
    #[fixed] quantised: bool,
    #[fixed] rules: Rules,
    #[fixed] pieces: usize,
    #[fixed] is_gathered: bool,
    #[dim] PG: usize,
    #[dim] NP: usize,
    #[dim] U: usize,
    #[dim] N: usize,
) {
    let rows = OnlineSoftmax { max, sum, acc };
    let one = OnlineSoftmax { max: one_max, sum: one_sum, acc: one_acc };
    let (item, step) = (program_id(0), program_id(2));
    let count = if BQ == 1 { scalar(1) } else { items.at((item, QUERY_COUNT_COLUMN)) };
    if step == 0 {
        if count == 1 {
            one_scaled.store(q.at(0).load().cast::<f32>() * scale);
            one.initialize();
        } else {
            scaled.store(q.load().cast::<f32>().reshape([BQ * Q, D]) * scale);
            rows.initialize();
        }
    }
    let (size, behind) = (K / pieces, step % pieces as i32 * (K / pieces) as i32);
    let (first, run) = (step / pieces as i32 * PG as i32, items.at((item, PAGE_COUNT_COLUMN)));
    if first < run {
        let (request, start) = (items.at((item, REQUEST_COLUMN)), items.at((item, FIRST_PAGE_COLUMN)));
        let mask = ItemMask {
            key: (start + first) * K as i32 + behind,
            end: minimum(items.at((item, KEY_COUNT_COLUMN)), (start + run) * K as i32),
            position: items.at((item, POSITION_COLUMN)),
            count,
            window: if windowed { Some(window) } else { None },
            group: Q,
        };
        // After the item's last page the number may be that of any page, of which no row sees anything.
        let numbers = if is_gathered { Some(run_of_table.load().maximum(0).minimum(P - 1)) } else { None };
        let pages = || {
            if let Some(numbers) = numbers {
                let all = |pool: In<C>| {
                    let index = numbers.reshape([PG, 1, 1]).broadcast([PG, K, D]);
                    vec![pool.load().take_along_axis(index, 0).reshape([PG * K, D])]
                };
                let of = |scales: In<f32>| {
                    let index = numbers.reshape([PG, 1]).broadcast([PG, K]);
                    scales.load().take_along_axis(index, 0).reshape([PG * K])
                };
                let scales = if quantised { Some([of(k_scales), of(v_scales)]) } else { None };
                StepPages { k: all(k), v: all(v), scales, rules }
            } else {
                // After the item's last page, load that page again; no row sees anything of it.
                let page = |i: usize| tables.at((request, start + minimum(first + i as i32, run - 1)));
                let numbers = Vec::from_iter((0..PG).map(page));
                let keys = ds(behind, size);
                let of = |scales: In<f32>| {
                    concat_tiles(Vec::from_iter(numbers.iter().map(|page| scales.at((*page, keys)).load())), 0)
                };
                let all = |pool: In<C>| Vec::from_iter(numbers.iter().map(|page| pool.at((*page, keys)).load()));
                let scales = if quantised { Some([of(k_scales), of(v_scales)]) } else { None };
                StepPages { k: all(k), v: all(v), scales, rules }
            }
        };
        // Pages are looked up inside of each branch: if all keys are seen, products read the pages in place.
        if mask.is_fully_seen(PG * size) {
            if count == 1 {
                pages().accumulate_attention(one, one_scaled.load(), None);
            } else {
                pages().accumulate_attention(rows, scaled.load(), None);
            }
        } else {
            if count == 1 {
                pages().accumulate_attention(one, one_scaled.load(), Some(mask));
            } else {
                pages().accumulate_attention(rows, scaled.load(), Some(mask));
            }
        }
    }
    if step == num_programs(2) - 1 {
        if count == 1 {
            let (result, total) = one.finish();
            out.at(0).store(result);
            lse.at(0).store(total.reshape([Q]));
        } else {
            let (result, total) = rows.finish();
            let own = iota::<i32>([BQ, 1, 1], 0).lt(count);
            out.store_masked(result.reshape([BQ, Q, D]), own.broadcast([BQ, Q, D]));
            lse.store_masked(total.reshape([BQ, Q]), own.broadcast([BQ, Q, 1]).reshape([BQ, Q]));
        }
    }
}

/// Maximum keys per step on a CPU: that many fit in a core's caches, and amortise the overhead of a step.
const MAX_STEP_KEYS: usize = 2048;
/// On a CPU, maximum bytes of a step's keys, and of its scores, so that they fit in a core's caches.
const MAX_STEP_BYTES: [usize; 2] = [1 << 19, 1 << 16];

/// Returns `[pages per step, parts of a page]`, one of which is 1: on GPUs a page, or the part of it that fits
/// workgroup memory beside the item's queries; on CPUs several pages, at most about the mean number `pages_per_item`.
/// An element of a key has `element_bytes` bytes.
fn choose_step_pages(
    target: &Target,
    [block, group, page, d]: [usize; 4],
    element_bytes: usize,
    pages_per_item: usize,
) -> [usize; 2] {
    let need = |keys: usize| item_resources(block * group, keys, d);
    let keys = MAX_STEP_KEYS
        .min(MAX_STEP_BYTES[0] / (d * element_bytes).max(1))
        .min(MAX_STEP_BYTES[1] / (4 * block * group).max(1));
    let pages = (keys / page.max(1)).min(pages_per_item.next_power_of_two()).max(1);
    let several = target.cores.map(|_| ([pages, 1], need(pages * page)));
    let pieces = [1, 2, 4].into_iter().filter(|pieces| page.is_multiple_of(*pieces));
    let pieces = pieces.map(|pieces| ([1, pieces], need(page / pieces)));
    choose_block_sizes(BlockSizeKey::PagedKeys, target, [UNBOUNDED_EXTENT; 2], several.into_iter().chain(pieces))
}

impl Batch {
    /// Computes attention of the batch's queries `[queries, heads, d]` over a cache.
    ///
    /// # Errors
    /// Shapes or element types that do not fit; device trouble.
    #[track_caller]
    #[inline]
    pub fn attend(&self, q: &Array, cache: &PagedCache, options: &Options) -> Result<Array> {
        self.attend_with_lse(q, cache, options).map(|(out, _)| out)
    }

    /// Computes [`Batch::attend`] and the log-sum-exp of each row's scores, f32 `[queries, heads]`; -inf for rows that
    /// see no key.
    ///
    /// # Errors
    /// As [`Batch::attend`].
    #[track_caller]
    #[inline]
    pub fn attend_with_lse(&self, q: &Array, cache: &PagedCache, options: &Options) -> Result<(Array, Array)> {
        let [_, key_heads, _, group] = self.sizes;
        let [.., d] = self.check_cache(cache)?;
        let (shape, heads) = ([self.queries, key_heads * group, d], key_heads * group);
        if q.shape() != shape {
            return argument_error(format!("`q` has shape {:?}, the batch and its cache have {shape:?}", q.shape()));
        }
        if cache.k.dtype() != DType::I8 && cache.k.dtype() != q.dtype() {
            return argument_error(format!(
                "queries of {} need a cache of {0} or i8, not of {}",
                q.dtype(),
                cache.k.dtype()
            ));
        }
        let scale = score_scale(options.scale, d)?;
        let stacked = q.reshape(&[self.queries, key_heads, group, d]);
        let (quantised, windowed) = (cache.scales.is_some(), self.window.is_some());
        let window = i32::try_from(self.window.unwrap_or(0)).unwrap_or(i32::MAX);
        // A placeholder that kernels do not read if there are no scales.
        let none = q.client().zeros(&[1, 1, self.sizes[2]], DType::F32)?;
        let [k_scales, v_scales] = cache.scales.as_ref().map_or([&none, &none], |s| s.each_ref());
        let parts = self.parts.as_ref().map_or(self.queries, |p| p.1);
        let (k, v) = (&cache.k, &cache.v);
        let rules = Rules { soft_cap: soft_cap_bits(options.soft_cap)?, ..Rules::default() };
        // A core of a CPU copies a few pages in less time than a product of a page takes to begin. Elsewhere pools of
        // about a size share a kernel.
        let is_gathered = q.client().target().cores.is_some() && self.sizes.iter().all(|n| *n > 0);
        let pool = if is_gathered { self.sizes[0] } else { self.sizes[0].next_power_of_two() };
        let sizes = [self.block, group, self.sizes[2], d];
        let [pages, pieces] = choose_step_pages(q.client().target(), sizes, cache.k.dtype().bytes(), self.run);
        let steps = self.steps.div_ceil(pages) * pieces;
        macro_rules! call {
            ($E:ident, $C:ident $($BQ:literal)*) => {
                match self.block {
                    $($BQ => paged_attention_items::<$E, $C, $BQ>(&stacked, k, v, k_scales, v_scales, &self.tables,
                        &self.items, &self.tables, scale, window, windowed, quantised, rules, pieces, is_gathered, pages,
                        pool, parts, steps),)*
                    other => unreachable!("no kernel was compiled for blocks of {other}"),
                }
            };
        }
        let (out, lse) = floats!("paged_attention", q.dtype(), E => {
            let (out, lse) = if quantised { call!(E, i8 1 4 16)? } else { call!(E, E 1 4 16)? };
            if self.parts.is_none() && q.dtype() == DType::F32 {
                Ok((out, lse))
            } else {
                let (rows, most) = match &self.parts {
                    Some((rows, _, most)) => (rows.clone(), *most),
                    None => {
                        let rows: Vec<usize> = (0..self.queries).flat_map(|t| [t, 1, 1]).collect();
                        (upload_i32(q.client(), &rows, &[self.queries, 3])?, 1)
                    }
                };
                let (out, lse) = (out.reshape(&[parts, heads, d]), lse.reshape(&[parts, heads]));
                combine_splits::<E>(&rows, &out, &lse, most)
            }
        })?;
        Ok((out.reshape(q.shape()), lse.reshape(&[self.queries, heads])))
    }
}

/// Attention of one query per request, `[requests, heads, d]`, over a paged cache. `tables` is an i32 array
/// `[requests, maximum pages]`, `lengths` `[requests]`. Both are read back and checked; a [`Batch`] does that once for
/// many layers.
///
/// # Errors
/// As [`Batch::new`] and [`Batch::attend`].
///
/// ```
/// use pallas_kernels::paged_attention::{Options, PagedCache, paged_attention};
/// use pallas_rt::Array;
/// // Three pages of two keys; the request's three keys lie in pages 2 and 0.
/// let kv = Array::from_slice(&[3.0f32, 0.0, 0.0, 0.0, 1.0, 2.0], &[3, 1, 2, 1])?;
/// let q = Array::from_slice(&[0.0f32], &[1, 1, 1])?;
/// let (tables, lengths) = (Array::from_slice(&[2, 0], &[1, 2])?, Array::from_slice(&[3], &[1])?);
/// let cache = PagedCache { k: kv.clone(), v: kv, scales: None };
/// assert_eq!(paged_attention(&q, &cache, &tables, &lengths, &Options::default())?.to_vec::<f32>()?, [2.0]);
/// // A page that there is not.
/// let tables = Array::from_slice(&[2, 3], &[1, 2])?;
/// let error = paged_attention(&q, &cache, &tables, &lengths, &Options::default()).unwrap_err();
/// assert!(error.to_string().contains("page 1 of request 0 is number 3, the cache has 0..3"));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn paged_attention(
    q: &Array,
    cache: &PagedCache,
    tables: &Array,
    lengths: &Array,
    options: &Options,
) -> Result<Array> {
    let starts: Vec<i32> = (0..=lengths.shape().first().map_or(0, |&n| n as i32)).collect();
    read_batch(q, cache, tables, lengths, &starts)?.attend(q, cache, options)
}

/// Attention of queries `[queries, heads, d]` over a paged cache, with the queries of each request contiguous: those of
/// request r are `starts[r]..starts[r + 1]`; `starts` is an i32 array `[requests + 1]`.
///
/// # Errors
/// As [`Batch::new`] and [`Batch::attend`].
///
/// ```
/// use pallas_kernels::paged_attention::{Options, PagedCache, ragged_paged_attention};
/// use pallas_rt::Array;
/// // Pages of two keys. The first request is a prompt of two tokens, the second a step behind two others.
/// let kv = Array::from_slice(&[1.0f32, 3.0, 6.0, 0.0, 2.0, 4.0], &[3, 1, 2, 1])?;
/// let cache = PagedCache { k: kv.clone(), v: kv, scales: None };
/// let (tables, lengths) = (Array::from_slice(&[0, 0, 2, 1], &[2, 2])?, Array::from_slice(&[2, 3], &[2])?);
/// let (q, starts) = (Array::from_slice(&[0.0f32; 3], &[3, 1, 1])?, Array::from_slice(&[0, 2, 3], &[3])?);
/// let out = ragged_paged_attention(&q, &cache, &tables, &lengths, &starts, &Options::default())?;
/// assert_eq!(out.to_vec::<f32>()?, [1.0, 2.0, 4.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn ragged_paged_attention(
    q: &Array,
    cache: &PagedCache,
    tables: &Array,
    lengths: &Array,
    starts: &Array,
    options: &Options,
) -> Result<Array> {
    read_batch(q, cache, tables, lengths, &read_i32_elements("starts", starts)?)?.attend(q, cache, options)
}

/// Reads block tables and lengths back from the device and makes a batch of them.
#[track_caller]
fn read_batch(q: &Array, cache: &PagedCache, tables: &Array, lengths: &Array, starts: &[i32]) -> Result<Batch> {
    let &[_, heads, _] = q.shape() else {
        return argument_error(format!("`q` has shape {:?}, expected [queries, heads, head dimension]", q.shape()));
    };
    match (tables.shape(), lengths.shape()) {
        (&[a, _], &[b]) if a == b => {}
        (a, b) => {
            return argument_error(format!(
                "`tables` has shape {a:?} and `lengths` {b:?}, expected [requests, pages] and [requests]"
            ));
        }
    }
    let (tables, lengths) = (read_i32_elements("tables", tables)?, read_i32_elements("lengths", lengths)?);
    Batch::new(cache, heads, Requests { tables: &tables, lengths: &lengths, starts }, BatchOptions::default())
}

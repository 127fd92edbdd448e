//! Attention of few queries over many keys, as in each step of generating text.
//!
//! ```text
//! out = softmax(cap(q kᵀ · scale)) v            cap(s) = c · tanh(s / c), or s
//! ```
//! One query has too few rows to keep a machine busy, so the keys are split ("split-k", Flash-Decoding, Dao et al.
//! 2023): each split gives a result and its log-sum-exp, and a second kernel weighs them:
//!
//! ```text
//! out = Σ_p exp(lse_p - lse) out_p              lse = ln Σ_p exp(lse_p)
//! ```
//! The queries of all heads that share a head of keys are rows of one product, so keys and values are read once. A
//! step's time is that of reading them.
//!
//! Use this for 1 to 64 queries against a contiguous cache, [`crate::flash_attention`] for more queries, and
//! [`crate::paged_attention`] if the cache is in pages or requests have different numbers of queries.
use crate::argument_errors::argument_error;
use crate::attention_options::{attention_extents, score_scale, soft_cap_bits};
use crate::attention_scores::Rules;
use crate::block_sizes::{BlockResources, BlockSizeKey, choose_block_sizes};
use crate::dtype_dispatch::floats;
use crate::online_softmax::{OnlineSoftmax, min_busy_programs, upload_i32};
use pallas_rt::Target;
use pallas_rt::prelude::*;

/// Options of decode attention; by default each query sees all keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Factor of the scores `q kᵀ`; `None`: `1 / sqrt(head dimension)`.
    pub scale: Option<f32>,
    /// True if query i sees only keys `j <= i + keys - queries`: the last query's position is that of the last live
    /// key.
    pub causal: bool,
    /// i32 array `[batch]`: number of live keys of each batch element; later keys are never read. `None`: all are live.
    pub lengths: Option<&'a Array>,
    /// Bound `c` of the scores, applied as `c · tanh(s / c)`; `None`: no bound.
    pub soft_cap: Option<f32>,
    /// Number of parts that the keys are split into; `None`: enough to keep the device busy.
    pub splits: Option<usize>,
}

/// Maximum number of queries per batch element.
const MAX_QUERIES: usize = 64;

/// Computes one split of the keys per program: blocks of keys stream past the rows, which are the queries of a group's
/// heads.
///
/// Row r is query `r % queries` of its batch element. The live keys of a batch element are split evenly, in whole
/// blocks. Only the soft-cap of `rules` applies.
#[kernel(grid = (B, G, P, M, N), semantics = (parallel, parallel, parallel, parallel, arbitrary))]
pub fn decode_attention_splits<E: Float>(
    #[block([B, G, M, R, D] => [_, _, _, R, D], |b, g, _, m, _| (b, g, m, 0, 0))] q: In<E>,
    #[block(
        [B, G, L, D] => [_, _, BK, D],
        |b, g, p, _, j| (b, g, p * cdiv(cdiv(min(lengths.at(b), L), BK), P) + j, 0), fill = 0.0
    )]
    k: In<E>,
    #[block(
        [B, G, L, D] => [_, _, BK, D],
        |b, g, p, _, j| (b, g, p * cdiv(cdiv(min(lengths.at(b), L), BK), P) + j, 0), fill = 0.0
    )]
    v: In<E>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[block([B, G, P, M, R, D] => [_, _, _, _, R, D], |b, g, p, m, _| (b, g, p, m, 0, 0))] out: Out<f32>,
    #[block([B, G, P, M, R] => [_, _, _, _, R], |b, g, p, m, _| (b, g, p, m, 0), empty = f32::NEG_INFINITY)] lse: Out<
        f32,
    >,
    #[scratch([R, D])] scaled: Scratch<f32>,
    #[scratch([R, 1])] max: Scratch<f32>,
    #[scratch([R, 1])] sum: Scratch<f32>,
    #[scratch([R, D])] acc: Scratch<f32>,
    scale: f32,
    queries: i32,
    #[fixed] causal: bool,
    #[fixed] rules: Rules,
    #[dim] P: usize,
    #[dim] N: usize,
    #[dim] BK: usize,
) {
    let rows = OnlineSoftmax { max, sum, acc };
    let step = program_id(4);
    if step == 0 {
        scaled.store(q.load().cast::<f32>() * scale);
        rows.initialize();
    }
    let length = minimum(lengths.at(program_id(0)), L);
    let blocks = cdiv(length, BK);
    let each = cdiv(blocks, P);
    let key = (program_id(2) * each + step) * BK;
    // Every row sees keys below `every`, the last query those below `length`.
    let every = if causal { length - queries + 1 } else { length };
    if step < each && key < length {
        if key + BK <= every {
            let (k, v) = (k.load().cast::<f32>(), v.load().cast::<f32>());
            rows.accumulate(rules.scores(dot(scaled.load(), k.t()), None).0, |p| dot(p, v));
        } else {
            let keys = iota::<i32>([1, BK], 1) + key;
            let mut live = keys.lt(length);
            if causal {
                live &= keys.le(iota::<i32>([R, 1], 0) % queries + (length - queries));
            }
            let (scores, _) = rules.scores(dot(scaled.load(), k.load().cast::<f32>().t()), None);
            // Memory after the last key may hold NaN, and 0 · NaN is NaN.
            let v = select((iota::<i32>([BK, 1], 0) + key).lt(length), v.load().cast::<f32>(), 0.0);
            rows.accumulate(select(live, scores, f32::NEG_INFINITY), |p| dot(p, v));
        }
    }
    if step == num_programs(4) - 1 {
        let (result, total) = rows.finish();
        out.store(result);
        lse.store(total.reshape([R]));
    }
}

/// Combines partial results `[parts, R, D]` of attention, weighted by their log-sum-exps. Result t is the sum of the
/// `count` parts `first, first + stride, ..`, where `[first, stride, count]` is row t of `parts_of`.
#[kernel(grid = (T, X), semantics = (parallel, arbitrary))]
pub fn combine_splits<E: Float>(
    #[prefetch([T, 3])] parts_of: Prefetch<i32>,
    #[block([U, R, D] => [_, R, D], |t, x| (parts_of.at((t, 0)) + parts_of.at((t, 1)) * x, 0, 0))] parts: In<f32>,
    #[block([U, R] => [_, R], |t, x| (parts_of.at((t, 0)) + parts_of.at((t, 1)) * x, 0))] part_lse: In<f32>,
    #[block([T, R, D] => [_, R, D], |t, _| (t, 0, 0))] out: Out<E>,
    #[block([T, R] => [_, R], |t, _| (t, 0), empty = f32::NEG_INFINITY)] lse: Out<f32>,
    #[scratch([R, 1])] max: Scratch<f32>,
    #[scratch([R, 1])] sum: Scratch<f32>,
    #[scratch([R, D])] acc: Scratch<f32>,
    #[dim] X: usize,
) {
    let rows = OnlineSoftmax { max, sum, acc };
    if program_id(1) == 0 {
        rows.initialize();
    }
    if program_id(1) < parts_of.at((program_id(0), 2)) {
        let part = parts.load();
        rows.accumulate(part_lse.load().reshape([R, 1]), |weight| part * weight);
    }
    if program_id(1) == num_programs(1) - 1 {
        let (result, total) = rows.finish();
        out.store(result.cast::<E>());
        lse.store(total.reshape([R]));
    }
}

/// On the CPU, maximum number of keys in a block, and minimum number of keys of a split.
const CPU_BLOCK_KEYS: usize = 1024;

/// Number of keys in a block that [`decode_attention`] chooses, for programs with `rows` rows of queries and `keys`
/// keys.
pub fn block_size(target: &Target, rows: usize, keys: usize, head_dim: usize) -> usize {
    // Queries, keys, values and probabilities share workgroup memory; padding between rows takes an eighth more.
    let need = |keys: usize| {
        let words = (2 * keys + rows) * head_dim + rows * keys;
        BlockResources::from_staged_words(words + words / 8)
    };
    // On the CPU, with this many keys per step the overhead of a step does not matter; scores stay in the cache.
    let most = if rows <= 16 { CPU_BLOCK_KEYS } else { CPU_BLOCK_KEYS / 2 };
    let candidates = target.cores.map(|_| most).into_iter().chain([32, 16, 8]);
    let [block] =
        choose_block_sizes(BlockSizeKey::DecodeAttention, target, [keys], candidates.map(|keys| ([keys], need(keys))));
    block
}

/// Attention of queries `[batch, heads, queries, d]`, at most 64 of them, over keys and values `[batch, key heads,
/// keys, d]`; f32, f16 or bf16, computed in f32.
///
/// Heads of queries are a multiple of those of keys: query head h uses key head `h / (heads / key heads)`. A row
/// without live key gives 0.
///
/// # Errors
/// Ranks, sizes, element types or heads that do not fit, more than 64 queries; device trouble.
///
/// ```
/// use pallas_kernels::decode_attention::{Options, decode_attention};
/// use pallas_rt::Array;
/// let q = Array::from_slice(&[0.0f32, 0.0], &[1, 1, 1, 2])?;
/// let kv = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2])?;
/// let out = decode_attention(&q, &kv, &kv, &Options { splits: Some(2), ..Options::default() })?;
/// assert_eq!(out.to_vec::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn decode_attention(q: &Array, k: &Array, v: &Array, options: &Options<'_>) -> Result<Array> {
    #[cfg(feature = "graph")]
    if options.lengths.is_none()
        && options.soft_cap.is_none()
        && options.splits.is_none()
        && let Some(out) = crate::composed_ops::compose_attention([q, k, v], options.causal, options.scale)?
    {
        return Ok(out);
    }
    decode_attention_with_lse(q, k, v, options).map(|(out, _)| out)
}

/// [`decode_attention`] and the log-sum-exp of each row's scores, f32 `[batch, heads, queries]`; -inf for rows without
/// live keys.
///
/// # Errors
/// As [`decode_attention`].
#[track_caller]
#[inline]
pub fn decode_attention_with_lse(q: &Array, k: &Array, v: &Array, options: &Options<'_>) -> Result<(Array, Array)> {
    let client = q.client();
    let ([batch, heads, queries, d], [_, key_heads, keys, _]) =
        (attention_extents("q", q)?, attention_extents("k", k)?);
    if queries > MAX_QUERIES {
        return argument_error(format!(
            "{queries} queries per sequence are more than {MAX_QUERIES}: take `flash_attention`"
        ));
    }
    let group = heads_per_key_head(heads, key_heads)?;
    // A block's rows are the queries of as many heads of a group as have at most 64 queries together.
    let apart = (1..=group).find(|m| group.is_multiple_of(*m) && group / m * queries <= MAX_QUERIES).unwrap_or(1);
    let rows = group / apart * queries;
    let block = block_size(client.target(), rows, keys, d);
    let blocks = keys.div_ceil(block);
    let programs = batch * key_heads * apart;
    // A split must have several blocks to be worth its launch.
    let some = if client.target().cores.is_some() { CPU_BLOCK_KEYS.div_ceil(block) } else { 4 };
    let worth = min_busy_programs(client).div_ceil(programs.max(1)).min(blocks / some);
    let splits = options.splits.unwrap_or(worth).clamp(1, blocks.max(1));
    let lengths = match options.lengths {
        Some(lengths) => lengths.clone(),
        None => upload_i32(client, &vec![keys; batch], &[batch])?,
    };
    let rules = Rules { soft_cap: soft_cap_bits(options.soft_cap)?, ..Rules::default() };
    let scale = score_scale(options.scale, d)?;
    let stacked = q.reshape(&[batch, key_heads, apart, rows, d]);
    let steps = blocks.div_ceil(splits);
    let of = |shape: [usize; 4]| shape.iter().product::<usize>();
    let parts_of = || {
        let rows = (0..programs).map(|at| [at / apart * splits * apart + at % apart, apart, splits]);
        rows.flatten().collect::<Vec<_>>()
    };
    let (out, lse) = floats!("decode_attention", q.dtype(), E => {
        let (out, lse) = decode_attention_splits::<E>(
            &stacked, k, v, &lengths, scale, queries as i32, options.causal, rules, splits, steps, block)?;
        if splits == 1 && q.dtype() == DType::F32 {
            Ok((out, lse))
        } else {
            let parts = of([batch, key_heads, splits, apart]);
            let (out, lse) = (out.reshape(&[parts, rows, d]), lse.reshape(&[parts, rows]));
            let parts_of = upload_i32(client, &parts_of(), &[programs, 3])?;
            combine_splits::<E>(&parts_of, &out, &lse, splits)
        }
    })?;
    Ok((out.reshape(q.shape()), lse.reshape(&[batch, heads, queries])))
}

/// Number of query heads that share each head of keys.
///
/// # Errors
/// `heads` is not a multiple of `key_heads`.
#[track_caller]
pub(crate) fn heads_per_key_head(heads: usize, key_heads: usize) -> Result<usize> {
    if key_heads == 0 || !heads.is_multiple_of(key_heads) {
        return argument_error(format!("{heads} heads of queries are no multiple of {key_heads} heads of keys"));
    }
    Ok(heads / key_heads)
}

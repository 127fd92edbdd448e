//! Flash attention: `softmax(q kᵀ · scale) v` without the matrix of scores in memory.
//!
//! Per query row, with running maximum `m`, sum `l` and accumulator `a` over blocks of keys (Milakov & Gimelshein 2018;
//! Dao et al. 2022, Algorithm 1):
//!
//! ```text
//! m' = max(m, max_j s_j)   p_j = exp(s_j - m')   l' = l·exp(m - m') + Σ p_j   a' = a·exp(m - m') + Σ p_j v_j
//! out = a / l              lse = m + ln l
//! ```
//! Everything but the operands is f32. Blocks of keys that no row of a program sees are skipped: nothing is loaded or
//! multiplied for them.
use crate::dispatch::floats;
use pallas_rt::prelude::*;
use pallas_rt::{DeviceLimits, Profile};

/// Which keys a query sees; key lengths apply besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Causal {
    /// All of them.
    #[default]
    No,
    /// Query i sees keys `j <= i`, also where there are more keys than queries: PyTorch's and JAX's `is_causal`.
    FromStart,
    /// The last query sees the last live key, query i keys `j <= i + keys - queries`: for queries that continue a cache
    /// of keys. With more queries than keys the first ones see none.
    FromEnd,
}

/// How attention is computed; `Options::default()` is plain softmax attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Factor of the scores; `None`: `1 / sqrt(head dimension)`.
    pub scale: Option<f32>,
    /// Which keys a query sees.
    pub causal: Causal,
    /// i32 array `[batch]`: how many keys of each batch element are live; the others are never looked at. `None`: all.
    pub lengths: Option<&'a Array>,
}

/// What a program keeps while keys and values stream past it.
#[derive(Clone, Copy)]
struct State {
    q: Scratch<f32>,
    max: Scratch<f32>,
    sum: Scratch<f32>,
    acc: Scratch<f32>,
}

impl State {
    /// Takes a block of keys `[BK, D]` in; where `live` does not hold, a key is dead for a query.
    fn visit(self, k: Tile<f32>, v: Tile<f32>, live: Option<Tile<bool>>) {
        let scores = dot(self.q.load(), k.t());
        let scores = live.map_or(scores, |live| select(live, scores, f32::NEG_INFINITY));
        let m = maximum(self.max.load(), scores.max(1));
        // Before a row's first live key its maximum is -inf; its sum stays 0.
        let base = select(m.eq(f32::NEG_INFINITY), 0.0, m);
        let (p, alpha) = ((scores - base).exp(), (self.max.load() - base).exp());
        self.sum.store(self.sum.load() * alpha + p.sum(1));
        self.acc.store(self.acc.load() * alpha + dot(p, v));
        self.max.store(m);
    }
}

/// One tile of attention per program; keys and values stream past it. Heads of queries share heads of keys in groups.
///
/// `causal` masks keys `j > i + diagonal`; the diagonal is 0, or `from_end` that of [`Causal::FromEnd`].
#[kernel(grid = (B, H, cdiv(S, BQ), cdiv(L, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn flash_attention_blocks<E: Float, const BQ: usize, const BK: usize>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, h, _, j| (b, h / (H / G), j, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, h, _, j| (b, h / (H / G), j, 0), fill = 0.0)] v: In<E>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0))] out: Out<E>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i, _| (b, h, i), empty = f32::NEG_INFINITY)] lse: Out<f32>,
    #[scratch([BQ, D])] scaled: Scratch<f32>,
    #[scratch([BQ, 1])] max: Scratch<f32>,
    #[scratch([BQ, 1])] sum: Scratch<f32>,
    #[scratch([BQ, D])] acc: Scratch<f32>,
    scale: f32,
    #[fixed] causal: bool,
    #[fixed] from_end: bool,
) {
    let (row, key) = (program_id(2) * BQ, program_id(3) * BK);
    if program_id(3) == 0 {
        scaled.store(q.load().cast::<f32>() * scale);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        acc.fill(0.0);
    }
    let length = minimum(lengths.at(program_id(0)), L);
    let diagonal = if from_end { length - S } else { scalar(0) };
    // Some row sees keys below `some`, every row those below `every`.
    let (mut some, mut every) = (length, length);
    if causal {
        some = minimum(length, minimum(row + BQ, S) + diagonal);
        every = minimum(length, row + 1 + diagonal);
    }
    if key < some {
        let state = State { q: scaled, max, sum, acc };
        if key + BK <= every {
            state.visit(k.load().cast::<f32>(), v.load().cast::<f32>(), None);
        } else {
            let keys = iota::<i32>([1, BK], 1) + key;
            let mut live = keys.lt(length);
            if causal {
                live &= keys.le(iota::<i32>([BQ, 1], 0) + (row + diagonal));
            }
            // What lies behind the last key may be anything, NaN too, and 0 · NaN is NaN.
            let values = select((iota::<i32>([BK, 1], 0) + key).lt(some), v.load().cast::<f32>(), 0.0);
            state.visit(k.load().cast::<f32>(), values, Some(live));
        }
    }
    if program_id(3) == num_programs(3) - 1 {
        let total = sum.load();
        let dead = total.eq(0.0);
        out.store(select(dead, 0.0, acc.load() / total).cast::<E>());
        lse.store(select(dead, f32::NEG_INFINITY, max.load() + total.log()).reshape([BQ]));
    }
}

/// Queries and keys of a block that [`flash_attention`] chooses for this many queries of this size.
pub fn block_sizes(device: &DeviceLimits, queries: usize, head_dim: usize) -> (usize, usize) {
    match (device.profile, queries, head_dim) {
        // Keys, values and probabilities of a step share workgroup memory; the rest is in registers.
        (Profile::Gpu, _, ..=64) if device.workgroup_bytes >= 32 << 10 => (64, 16),
        (Profile::Gpu, ..) => (32, 16),
        (Profile::SimtCpu, ..) => (16, 64),
        (_, ..=16, _) => (16, 128),
        (_, _, ..=128) => (128, 128),
        _ => (64, 128),
    }
}

/// Attention of queries `[batch, heads, queries, d]` over keys and values `[batch, key heads, keys, d]`; f32, f16 or bf16.
///
/// Heads of queries are a multiple of those of keys: query head h uses key head `h / (heads / key heads)`. A row without
/// live key gives 0, and so does one whose live scores are all -inf. NaN in a row, or in a live key or value, passes on.
///
/// # Errors
/// Ranks, sizes, element types or heads that do not fit; device trouble.
///
/// ```
/// use pallas_kernels::flash_attention::{Options, flash_attention};
/// use pallas_rt::Array;
/// let q = Array::from_slice(&[0.0f32, 0.0], &[1, 1, 1, 2])?;
/// let kv = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2])?;
/// let out = flash_attention(&q, &kv, &kv, &Options::default())?;
/// assert_eq!(out.to_vec::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
pub fn flash_attention(q: &Array, k: &Array, v: &Array, options: &Options<'_>) -> Result<Array> {
    flash_attention_with_lse(q, k, v, options).map(|(out, _)| out)
}

/// [`flash_attention`] and the logarithm of each row's sum of exponentials, f32 `[batch, heads, queries]`; -inf for rows
/// without live key.
///
/// # Errors
/// As [`flash_attention`].
pub fn flash_attention_with_lse(q: &Array, k: &Array, v: &Array, options: &Options<'_>) -> Result<(Array, Array)> {
    let lengths = &full_lengths(q, k, options)?;
    let [.., queries, d] = axes("q", q)?;
    let scale = options.scale.unwrap_or(1.0 / (d as f32).sqrt());
    let (causal, from_end) = (options.causal != Causal::No, options.causal == Causal::FromEnd);
    macro_rules! call {
        ($E:ident $($BQ:literal $BK:literal),*) => {
            match block_sizes(q.client().limits(), queries, d) {
                $(($BQ, $BK) => {
                    flash_attention_blocks::<$E, $BQ, $BK>(q, k, v, lengths, scale, causal, from_end)
                })*
                other => unreachable!("no kernel was compiled for blocks of {other:?}"),
            }
        };
    }
    floats!("flash_attention", q.dtype(), E => call!(E 64 16, 32 16, 16 64, 16 128, 64 128, 128 128))
}

/// The given lengths, or as many as there are keys.
///
/// # Errors
/// Ranks or heads that do not fit.
pub(crate) fn full_lengths(q: &Array, k: &Array, options: &Options<'_>) -> Result<Array> {
    let ([batch, heads, ..], [_, key_heads, keys, _]) = (axes("q", q)?, axes("k", k)?);
    if heads != 0 && (key_heads == 0 || heads % key_heads != 0) {
        let message = format!("{heads} heads of queries are no multiple of {key_heads} heads of keys");
        return Err(Error::Value { message });
    }
    match options.lengths {
        Some(lengths) => Ok(lengths.clone()),
        None => q.client().array(&vec![i32::try_from(keys).unwrap_or(i32::MAX); batch], &[batch]),
    }
}

/// Extents of an operand.
fn axes(name: &str, x: &Array) -> Result<[usize; 4]> {
    <[usize; 4]>::try_from(x.shape()).map_err(|_| Error::Value {
        message: format!("`{name}` has shape {:?}, expected [batch, heads, positions, head dimension]", x.shape()),
    })
}

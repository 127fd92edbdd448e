//! Flash attention: `softmax(q kᵀ · scale) v` without the matrix of scores in memory.
//!
//! Per query row, with running maximum `m`, sum `l` and accumulator `a` over blocks of keys (Milakov & Gimelshein 2018;
//! Dao et al. 2022, Algorithm 1):
//!
//! ```text
//! m' = max(m, max_j s_j)   p_j = exp(s_j - m')   l' = l·exp(m - m') + Σ p_j   a' = a·exp(m - m') + Σ p_j v_j
//! out = a / l              lse = m + ln l
//! ```
//! Masks, bias, soft-cap, sinks and dropout are those of [`crate::attention_scores`]. Everything but the operands is f32.
//! Blocks of keys that no row of a program sees are skipped: nothing is loaded or multiplied for them.
use crate::attention_options::axes;
pub use crate::attention_options::{Dropout, Operands, Options, Window};
pub use crate::attention_scores::Causal;
use crate::attention_scores::{Block, Rules, Wide};
use crate::dispatch::floats;
use pallas_rt::prelude::*;
use pallas_rt::{DeviceLimits, Profile};

/// What a program keeps while keys and values stream past it.
#[derive(Clone, Copy)]
struct State<A> {
    rules: Rules,
    q: Scratch<A>,
    max: Scratch<A>,
    sum: Scratch<A>,
    acc: Scratch<A>,
}

impl<A: Wide> State<A> {
    /// Takes a block of keys `[BK, D]` in. Where `live` does not hold, a key is dead for a query; probabilities are
    /// multiplied by `kept`.
    fn visit(self, [k, v]: [Tile<A>; 2], bias: Option<Tile<A>>, live: Option<Tile<bool>>, kept: Option<Tile<A>>) {
        let (scores, _) = self.rules.scores(dot(self.q.load(), k.t()), bias);
        let scores = live.map_or(scores, |live| select(live, scores, f32::NEG_INFINITY));
        let m = maximum(self.max.load(), scores.max(1));
        // Before a row's first live key its maximum is -inf; its sum stays 0.
        let base = select(m.eq(f32::NEG_INFINITY), 0.0, m);
        let (p, alpha) = ((scores - base).exp(), (self.max.load() - base).exp());
        self.sum.store(self.sum.load() * alpha + p.sum(1));
        self.acc.store(self.acc.load() * alpha + dot(kept.map_or(p, |kept| p * kept), v));
        self.max.store(m);
    }
}

/// One tile of attention per program; keys and values stream past it. Heads of queries share heads of keys in groups.
///
/// Which options hold is in `rules`; the arrays of others are not read. [`Options::operands`] makes all of them.
#[kernel(grid = (B, H, cdiv(S, BQ), cdiv(L, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn flash_attention_blocks<E: Real, A: Wide, const BQ: usize, const BK: usize>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, h, _, j| (b, h / (H / G), j, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, h, _, j| (b, h / (H / G), j, 0), fill = 0.0)] v: In<E>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[block([BB, BH, BS, BL] => [_, _, BQ, BK], |b, h, i, j| (b % BB, h % BH, i, j), fill = 0.0)] bias: In<E>,
    #[block([B, QS] => [_, BQ], |b, _, i, _| (b, i), fill = 0.0)] query_segments: In<i32>,
    #[block([B, KS] => [_, BK], |b, _, _, j| (b, j), fill = 0.0)] key_segments: In<i32>,
    #[block([HS] => [1], |_, h, _, _| (h,))] sinks: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0))] out: Out<E>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i, _| (b, h, i), empty = f32::NEG_INFINITY)] lse: Out<A>,
    #[scratch([BQ, D])] scaled: Scratch<A>,
    #[scratch([BQ, 1])] max: Scratch<A>,
    #[scratch([BQ, 1])] sum: Scratch<A>,
    #[scratch([BQ, D])] acc: Scratch<A>,
    scale: f32,
    seed_high: u32,
    seed_low: u32,
    #[fixed] rules: Rules,
) {
    let (row, key) = (program_id(2) * BQ, program_id(3) * BK);
    if program_id(3) == 0 {
        scaled.store(q.load().cast::<A>() * scale.cast::<A>());
        acc.fill(0.0);
        // A sink is a key that came before all others and has no value.
        if rules.sinks {
            max.store(sinks.load().cast::<A>().reshape([1, 1]).broadcast([BQ, 1]));
            sum.fill(1.0);
        } else {
            max.fill(f32::NEG_INFINITY);
            sum.fill(0.0);
        }
    }
    let length = minimum(lengths.at(program_id(0)), L);
    let position = row + rules.first_position(S, length);
    let block = Block { rules, size: [BQ, BK], position, rows: S - row, key, length };
    if block.is_live() {
        let state = State { rules, q: scaled, max, sum, acc };
        let bias = block.bias(bias);
        let kept = block.kept([seed_high, seed_low], (program_id(0) * H + program_id(1)) * S + row);
        if block.is_whole() {
            state.visit([k.load().cast::<A>(), v.load().cast::<A>()], bias, None, kept);
        } else {
            let live = block.live(Some([query_segments, key_segments]));
            state.visit([k.load().cast::<A>(), block.seen(v.load().cast::<A>())], bias, Some(live), kept);
        }
    }
    if program_id(3) == num_programs(3) - 1 {
        let total = sum.load();
        let dead = total.eq(0.0);
        out.store(select(dead, 0.0, acc.load() / total).cast::<E>());
        lse.store(select(dead, f32::NEG_INFINITY, max.load() + total.log()).reshape([BQ]));
    }
}

/// Queries and keys of a block that [`flash_attention`] chooses for queries `[batch, heads, queries, d]`.
pub fn block_sizes(
    device: &DeviceLimits,
    [batch, heads, queries, d]: [usize; 4],
    options: &Options<'_>,
) -> (usize, usize) {
    // Keys are packed once for all queries of a block. Of keys that only some rows see, wide blocks multiply more in vain.
    let all_seen = options.causal == Causal::No && options.window == Window::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pays = all_seen && batch * heads * queries / 256 >= 2 * threads;
    match (device.profile, queries, d) {
        // Keys, values and probabilities of a step share workgroup memory; the rest is in registers.
        (Profile::Gpu, _, ..=64) if device.workgroup_bytes >= 32 << 10 => (64, 16),
        (Profile::Gpu, ..) => (32, 16),
        (Profile::SimtCpu, ..) => (8, 64),
        (_, ..=16, _) => (16, 128),
        (_, _, ..=128) if pays && 2 * queries.div_ceil(256) == queries.div_ceil(128) => (256, 128),
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
    let shape = axes("q", q)?;
    macro_rules! call {
        ($E:ident $($BQ:literal $BK:literal),*) => {
            match block_sizes(q.client().limits(), shape, options) {
                $(($BQ, $BK) => flash_attention_in_blocks::<$E, f32, $BQ, $BK>(q, k, v, options),)*
                other => unreachable!("no kernel was compiled for blocks of {other:?}"),
            }
        };
    }
    floats!("flash_attention", q.dtype(), E => call!(E 64 16, 32 16, 8 64, 16 128, 64 128, 128 128, 256 128))
}

/// [`flash_attention_with_lse`] of elements `E`, computed in `A`, in blocks of `BQ` queries and `BK` keys.
///
/// # Errors
/// As [`flash_attention`].
pub fn flash_attention_in_blocks<E: Real, A: Wide, const BQ: usize, const BK: usize>(
    q: &Array,
    k: &Array,
    v: &Array,
    options: &Options<'_>,
) -> Result<(Array, Array)> {
    let Operands { lengths, bias, segments, sinks, scale, seed, rules } = &options.operands(q, k)?;
    flash_attention_blocks::<E, A, BQ, BK>(
        q,
        k,
        v,
        lengths,
        bias,
        &segments[0],
        &segments[1],
        sinks,
        *scale,
        seed[0],
        seed[1],
        *rules,
    )
}

//! Flash attention: `softmax(q kᵀ · scale) v` without the matrix of scores in memory.
//!
//! Per query row, with running maximum `m`, sum `l` and accumulator `a` over blocks of keys (Milakov & Gimelshein 2018;
//! Dao et al. 2022, Algorithm 1):
//!
//! ```text
//! m' = max(m, max_j s_j)   p_j = exp(s_j - m')   l' = l·exp(m - m') + Σ p_j   a' = a·exp(m - m') + Σ p_j v_j
//! out = a / l              lse = m + ln l
//! ```
//! Masks, bias, soft-cap, sinks and dropout are those of [`crate::attention_scores`]. Everything but the operands is f32;
//! where the device multiplies f16 by cooperative matrices, probabilities of f16 operands are rounded to f16 before their
//! product with the values, as on every tensor core.
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
struct State<E, A> {
    rules: Rules,
    /// Multiplied by the factor of the scores.
    q: Scratch<A>,
    /// Where products are of operands as they are: the queries, and that factor.
    narrow: Option<(Scratch<E>, Scalar<A>)>,
    max: Scratch<A>,
    sum: Scratch<A>,
    acc: Scratch<A>,
}

impl<E: Real, A: Wide> State<E, A> {
    /// Takes a block of keys `[BK, D]` in. Of a block that is seen in `part`, the rule says which keys are dead for a query;
    /// probabilities are multiplied by `kept`.
    fn visit(
        self,
        [k, v]: [Tile<E>; 2],
        bias: Option<Tile<A>>,
        part: Option<(Block, Tile<bool>)>,
        kept: Option<Tile<A>>,
    ) {
        let products = match self.narrow {
            Some((q, scale)) => dot(q.load(), k.t()).cast::<A>() * scale,
            None => dot(self.q.load(), k.cast::<A>().t()),
        };
        let (scores, _) = self.rules.scores(products, bias);
        let scores = part.map_or(scores, |(_, live)| select(live, scores, f32::NEG_INFINITY));
        let m = maximum(self.max.load(), scores.max(1));
        // Before a row's first live key its maximum is -inf; its sum stays 0.
        let base = select(m.eq(f32::NEG_INFINITY), 0.0, m);
        let (p, alpha) = ((scores - base).exp(), (self.max.load() - base).exp());
        self.sum.store(self.sum.load() * alpha + p.sum(1));
        let p = kept.map_or(p, |kept| p * kept);
        let sums = match self.narrow {
            Some(_) => dot(p.cast::<E>(), part.map_or(v, |(block, _)| block.seen(v))).cast::<A>(),
            None => {
                let v = v.cast::<A>();
                dot(p, part.map_or(v, |(block, _)| block.seen(v)))
            }
        };
        self.acc.store(self.acc.load() * alpha + sums);
        self.max.store(m);
    }
}

/// One tile of attention per program; keys and values stream past it. Heads of queries share heads of keys in groups.
///
/// Which options hold is in `rules`; the arrays of others are not read. [`Options::operands`] makes all of them. `narrow`
/// products are of queries, keys and values as they are, and of probabilities rounded to their type: what cooperative
/// matrices of f16 multiply. Else all factors are `A`.
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
    #[scratch([BQ, D])] queries: Scratch<E>,
    #[scratch([BQ, 1])] max: Scratch<A>,
    #[scratch([BQ, 1])] sum: Scratch<A>,
    #[scratch([BQ, D])] acc: Scratch<A>,
    scale: f32,
    seed_high: u32,
    seed_low: u32,
    #[fixed] rules: Rules,
    #[fixed] narrow: bool,
) {
    let (row, key) = (program_id(2) * BQ, program_id(3) * BK);
    if program_id(3) == 0 {
        if narrow {
            queries.store(q.load());
        } else {
            scaled.store(q.load().cast::<A>() * scale.cast::<A>());
        }
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
        let narrow = narrow.then_some((queries, scale.cast::<A>()));
        let state = State { rules, q: scaled, narrow, max, sum, acc };
        let bias = block.bias(bias);
        let kept = block.kept([seed_high, seed_low], (program_id(0) * H + program_id(1)) * S + row);
        if block.is_whole() {
            state.visit([k.load(), v.load()], bias, None, kept);
        } else {
            let live = block.live(Some([query_segments, key_segments]));
            state.visit([k.load(), v.load()], bias, Some((block, live)), kept);
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
    dtype: DType,
    [batch, heads, queries, d]: [usize; 4],
    options: &Options<'_>,
) -> (usize, usize) {
    // Keys are packed once for all queries of a block. Of keys that only some rows see, wide blocks multiply more in vain.
    let all_seen = options.causal == Causal::No && options.window == Window::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pays = all_seen && batch * heads * queries / 256 >= 2 * threads;
    let roomy = is_narrow(device, dtype) && device.workgroup_bytes >= 48 << 10;
    match (device.profile, queries, d) {
        // Scores and products leave their accumulators through workgroup memory besides.
        (Profile::Gpu, _, ..=64) if roomy => (64, 32),
        (Profile::Gpu, _, ..=128) if roomy => (32, 32),
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

/// Whether a device multiplies f16 by cooperative matrices: products are those of [`flash_attention_blocks`]' `narrow`.
fn is_narrow(device: &DeviceLimits, dtype: DType) -> bool {
    dtype == DType::F16 && device.matrices.is_some_and(|matrices| matrices.half.is_some())
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
            match block_sizes(q.client().limits(), q.dtype(), shape, options) {
                $(($BQ, $BK) => flash_attention_in_blocks::<$E, f32, $BQ, $BK>(q, k, v, options),)*
                other => unreachable!("no kernel was compiled for blocks of {other:?}"),
            }
        };
    }
    floats!("flash_attention", q.dtype(), E => call!(E 64 32, 32 32, 64 16, 32 16, 8 64, 16 128, 64 128, 128 128, 256 128))
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
        is_narrow(q.client().limits(), E::DTYPE),
    )
}

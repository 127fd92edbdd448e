//! Flash attention: `softmax(q kᵀ · scale) v` without the matrix of scores in memory.
//!
//! Per query row, with running maximum `m`, sum `l` and accumulator `a` over blocks of keys (Milakov & Gimelshein 2018;
//! Dao et al. 2022, Algorithm 1):
//!
//! ```text
//! m' = max(m, max_j s_j)   p_j = exp(s_j - m')   l' = l·exp(m - m') + Σ p_j   a' = a·exp(m - m') + Σ p_j v_j
//! out = a / l              lse = m + ln l
//! ```
//! Masks, bias, soft-cap, sinks and dropout are those of [`crate::attention_scores`]. Everything but the operands is
//! f32; where the device multiplies 16-bit floats faster (f16 by cooperative matrices, bf16 on the CPU), probabilities
//! are rounded to the type of the operands before their product with the values, as on every tensor core. Blocks of
//! keys that no row of a program sees are skipped: nothing is loaded or multiplied for them.
use crate::attention_options::attention_extents;
pub use crate::attention_options::{Cotangents, Dropout, Operands, Options, Seed, Window};
pub use crate::attention_scores::Causal;
use crate::attention_scores::{Block, Rules, Segments};
use crate::block_sizes::{BlockResources, BlockSizeKey, choose_block_sizes};
#[cfg(feature = "graph")]
use crate::composed_ops::{compose_attention_gradients, compose_attention_with_probabilities};
use crate::dtype_dispatch::{floats, with_gradient};
use crate::element::Floating;
use crate::flash_attention_backward::{flash_attention_backward, flash_attention_backward_with_bias};
use crate::flash_attention_bias::sinks_gradient;
use crate::flash_attention_whole::{flash_attention_whole, heads_per_program, whole_keys_rules as whole_rules};
use crate::online_softmax::OnlineSoftmax;
use pallas_rt::prelude::*;
use pallas_rt::{Differentiable, Target};

/// Operands of the products that a program computes with the keys and values streaming past it.
#[derive(Clone, Copy)]
struct QueryOperands<E: Floating> {
    rules: Rules,
    /// The queries, multiplied by the factor of the scores.
    q: Scratch<E::Acc>,
    /// The queries as they are and the factor of the scores, if products take operands in type `E`.
    narrow: Option<(Scratch<E>, Scalar<E::Acc>)>,
    bias: Option<Tile<E::Acc>>,
    /// Factors of the probabilities under dropout.
    kept: Option<Tile<E::Acc>>,
}

impl<E: Floating> QueryOperands<E> {
    /// Returns the scores of a block of keys `[BK, D]`.
    fn scores(self, k: Tile<E>) -> Tile<E::Acc> {
        let products = match self.narrow {
            Some((q, scale)) => dot(q.load(), k.t()) * scale,
            None => dot(self.q.load(), k.cast::<E::Acc>().t()),
        };
        self.rules.scores(products, self.bias).0
    }
    /// Returns probabilities (after dropout) and values, whose product is added to the sums. `partial_block` is the
    /// block if only a part of it is seen: values that no query sees then become 0.
    fn product_factors(self, p: Tile<E::Acc>, v: Tile<E>, partial_block: Option<Block>) -> ProductFactors<E> {
        let p = self.kept.map_or(p, |kept| p * kept);
        match self.narrow {
            Some(_) => {
                ProductFactors::Narrow(p.cast::<E>(), partial_block.map_or(v, |block| block.zero_unseen_keys(v)))
            }
            None => {
                let v = v.cast::<E::Acc>();
                ProductFactors::Wide(p, partial_block.map_or(v, |block| block.zero_unseen_keys(v)))
            }
        }
    }
}

/// Probabilities and values, in the operands' type or in that of the accumulator.
enum ProductFactors<E: Floating> {
    Narrow(Tile<E>, Tile<E>),
    Wide(Tile<E::Acc>, Tile<E::Acc>),
}

impl<E: Floating> ProductFactors<E> {
    /// Multiplies probabilities and values.
    fn product(self) -> Tile<E::Acc> {
        match self {
            ProductFactors::Narrow(p, v) => dot(p, v),
            ProductFactors::Wide(p, v) => dot(p, v),
        }
    }
}

/// Computes one block of queries per program; keys and values stream past it. Groups of query heads share a head of
/// keys.
///
/// `rules` says which options are set; the arrays of others are not read. [`Options::operands`] makes all of them. With
/// `narrow`, products take queries, keys and values as they are, and probabilities rounded to their type: cooperative
/// matrices of f16 and processors with products of bf16 multiply these. Otherwise all factors are `E::Acc`.
#[kernel(grid = (B, H, cdiv(S, BQ), cdiv(L, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn flash_attention_blocks<E: Floating>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, h, _, j| (b, h / (H / G), j, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, h, _, j| (b, h / (H / G), j, 0), fill = 0.0)] v: In<E>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[prefetch([OE])] offsets: Prefetch<i32>,
    #[prefetch([SE])] seed: Prefetch<u32>,
    #[block([BB, BH, BS, BL] => [_, _, BQ, BK], |b, h, i, j| (b % BB, h % BH, i, j), fill = 0.0)] bias: In<E>,
    #[block([B, QS] => [_, BQ], |b, _, i, _| (b, i), fill = 0.0)] query_segments: In<i32>,
    #[block([B, KS] => [_, BK], |b, _, _, j| (b, j), fill = 0.0)] key_segments: In<i32>,
    #[prefetch([B, QT, QE])] query_spans: Prefetch<i32>,
    #[prefetch([B, KT, KE])] key_spans: Prefetch<i32>,
    #[block([HS] => [1], |_, h, _, _| (h,))] sinks: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0))] out: Out<E>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i, _| (b, h, i), empty = f32::NEG_INFINITY)] lse: Out<E::Acc>,
    #[scratch([BQ, D])] scaled: Scratch<E::Acc>,
    #[scratch([BQ, D])] queries: Scratch<E>,
    #[scratch([BQ, 1])] max: Scratch<E::Acc>,
    #[scratch([BQ, 1])] sum: Scratch<E::Acc>,
    #[scratch([BQ, D])] acc: Scratch<E::Acc>,
    scale: f32,
    #[fixed] rules: Rules,
    #[fixed] narrow: bool,
    #[dim] BQ: usize,
    #[dim] BK: usize,
) {
    let rows = OnlineSoftmax { max, sum, acc };
    if program_id(3) == 0 {
        if narrow {
            queries.store(q.load());
        } else {
            scaled.store(q.load().cast::<E::Acc>() * scale.cast::<E::Acc>());
        }
        if rules.sinks {
            rows.initialize_with_score(sinks.load().cast::<E::Acc>().reshape([1, 1]).broadcast([BQ, 1]));
        } else {
            rows.initialize();
        }
    }
    let at = [program_id(0), program_id(2), program_id(3)];
    let segments = Segments { numbers: [query_segments, key_segments], spans: [query_spans, key_spans] };
    let block = rules.block([BQ, BK], at, [S, L], [lengths, offsets], segments);
    if block.has_live_scores() {
        let narrow = narrow.then_some((queries, scale.cast::<E::Acc>()));
        let bias = block.load_bias(bias);
        let kept = block.dropout_factors(seed, program_id(0) * H + program_id(1));
        let products = QueryOperands { rules, q: scaled, narrow, bias, kept };
        if block.is_fully_seen() {
            let (k, v) = (k.load(), v.load());
            rows.accumulate_with(products.scores(k), |p| products.product_factors(p, v, None), ProductFactors::product);
        } else {
            let live = block.live_mask();
            let (k, v) = (k.load(), v.load());
            let scores = select(live, products.scores(k), f32::NEG_INFINITY);
            rows.accumulate_with(scores, |p| products.product_factors(p, v, Some(block)), ProductFactors::product);
        }
    }
    if program_id(3) == num_programs(3) - 1 {
        let (result, total) = rows.finish();
        out.store(result.cast::<E>());
        lse.store(total.reshape([BQ]));
    }
}

/// Numbers of queries and keys of a block that [`flash_attention`] chooses for queries `[batch, heads, queries, d]`.
pub fn block_sizes(
    target: &Target,
    dtype: DType,
    [batch, heads, queries, d]: [usize; 4],
    keys: usize,
    options: &Options<'_>,
) -> [usize; 2] {
    // Keys are packed once for all queries of a block. Of keys that only some rows see, wide blocks multiply more in
    // vain.
    let all_seen = options.causal == Causal::No && options.window == Window::default();
    let whole = 2 * queries.div_ceil(256) == queries.div_ceil(128);
    let on_cores = |cores: usize| match (queries, d) {
        (..=16, _) => [16, 128],
        (_, ..=128) if all_seen && whole && batch * heads * queries / 256 >= 2 * cores => [256, 128],
        (_, ..=128) => [128, 128],
        // Accumulators of more than 64 KiB do not fit the inner caches.
        _ => [64, 128],
    };
    // With a bias or segments, tiles of keys and of scores have additional copies.
    let more = usize::from(options.bias.is_some() || options.segments.is_some());
    // Queries, keys, values, the values without padding, and probabilities are in workgroup memory; the rest is in
    // registers.
    let staged = |[own, keys]: [usize; 2]| {
        let words = (own + (3 + more) * keys) * d + (1 + more) * own * keys;
        ([own, keys], BlockResources::from_staged_words(words))
    };
    // Scores and products are copied from cooperative matrices through workgroup memory as well.
    let roomy = |blocks| (blocks, BlockResources { staged_bytes: 48 << 10, ..BlockResources::NO_REQUIREMENTS });
    let narrow = has_narrow_products(target, dtype);
    // The copy of the queries is moved out of workgroup memory before the number of queries per block is reduced.
    let leaves = more == 0 && d <= 128;
    let candidates = [
        target.cores.map(|cores| staged(on_cores(cores))),
        (narrow && d <= 64).then(|| roomy([64, 32])),
        (narrow && d <= 128).then(|| roomy([32, 32])),
        Some(staged([64, 16])),
        Some(staged([64, 8])),
        leaves.then_some(([64, 8], BlockResources { staged_bytes: 32 << 10, ..BlockResources::NO_REQUIREMENTS })),
        Some(staged([32, 16])),
        Some(staged([32, 8])),
        (!leaves).then(|| staged([16, 8])),
        (!leaves).then(|| staged([8, 8])),
    ];
    choose_block_sizes(BlockSizeKey::Attention, target, [queries, keys], candidates.into_iter().flatten())
}

/// Returns true if the device multiplies 16-bit floats of this type directly, so that [`flash_attention_blocks`] uses
/// `narrow` products.
fn has_narrow_products(target: &Target, dtype: DType) -> bool {
    match dtype {
        DType::F16 => target.matrices.is_some_and(|matrices| matrices.half.is_some()),
        DType::Bf16 => target.cores.is_some(),
        _ => false,
    }
}

/// Attention of queries `[batch, heads, queries, d]` over keys and values `[batch, key heads, keys, d]`; f32, f16 or
/// bf16.
///
/// Heads of queries are a multiple of those of keys: query head h uses key head `h / (heads / key heads)`. A row
/// without live key gives 0, and so does one whose live scores are all -inf.
///
/// Keys past [`Options::lengths`], and queries and keys of padding (a segment below 0), may hold anything: they do not
/// affect any result, on any device, forward or backward. A NaN in another key reaches the queries that see it. Since 0
/// · NaN is NaN, a NaN or infinite *value* also reaches queries that do not see it, if they share a block with one that
/// does. State unused memory past a causal mask or a window as padding, too.
///
/// In traced functions on the CPU, f32 attention of up to 128 positions with no options but scale and causality is
/// computed by operations on arrays (feature `graph`), which are faster there. So are gradients of f32 attention with a
/// bias `[batch, heads, queries, keys]` of up to 2^24 elements and no other options but a scale and sinks, which keep
/// the probabilities in memory.
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
#[track_caller]
#[inline]
pub fn flash_attention(q: &Array, k: &Array, v: &Array, options: &Options<'_>) -> Result<Array> {
    #[cfg(feature = "graph")]
    if options.has_only_scale_and_causal()
        && let Some(out) =
            crate::composed_ops::compose_attention([q, k, v], options.causal != Causal::No, options.scale)?
    {
        return Ok(out);
    }
    flash_attention_with_lse(q, k, v, options).map(|(out, _)| out)
}

/// [`flash_attention`] and the log-sum-exp of each row's scores, f32 `[batch, heads, queries]`. Both have gradients.
///
/// The sum includes the head's sink, if there are [`Options::sinks`]. For a row without live keys, also if there are no
/// keys at all, the log-sum-exp is therefore the sink's score, and -inf without sinks.
///
/// # Errors
/// As [`flash_attention`].
#[track_caller]
#[inline]
pub fn flash_attention_with_lse(q: &Array, k: &Array, v: &Array, options: &Options<'_>) -> Result<(Array, Array)> {
    match (options.bias, options.sinks) {
        (None, None) => compute_differentiable([q, k, v], options),
        (Some(bias), None) => compute_differentiable([q, k, v, bias], options),
        (None, Some(sinks)) => compute_differentiable([q, k, v, sinks], options),
        (Some(bias), Some(sinks)) => compute_differentiable([q, k, v, bias, sinks], options),
    }
}

/// Computes [`flash_attention_with_lse`] with gradients by `args`: q, k, v, then bias and sinks if there are any.
#[track_caller]
fn compute_differentiable<const N: usize>(args: [&Array; N], options: &Options<'_>) -> Result<(Array, Array)> {
    let (call, args) = Differentiable::begin(args)?;
    let args: Vec<&Array> = args.iter().collect();
    let ([q, k, v], options) = split_arguments(&args, options);
    let (out, lse) = compute_forward(q, k, v, &options)?;
    #[cfg(feature = "graph")]
    if crate::composed_ops::can_keep_probabilities([q, k, v], &options) {
        return differentiate_composed(call, [&out, &lse], &options);
    }
    let results = [out.clone(), lse.clone()];
    let residuals = [&args[..], &[&out, &lse]].concat();
    let [out, lse] = with_gradient!(call, results, &residuals, |[args @ .., out, lse], [dout, dlse]| {
        let args: Vec<&Array> = args.iter().collect();
        let (operands, options) = split_arguments(&args, &options);
        let by = Cotangents { out: &dout, lse: Some(&dlse) };
        let mut all = match options.bias {
            Some(_) => {
                flash_attention_backward_with_bias(operands, [out, lse], by, &options).map(<[_; 4]>::from)?.to_vec()
            }
            None => flash_attention_backward(operands, [out, lse], by, &options).map(<[_; 3]>::from)?.to_vec(),
        };
        if let Some(sinks) = options.sinks {
            all.push(sinks_gradient([out, lse], by, sinks)?);
        }
        all
    });
    Ok((out, lse))
}

/// Replaces results and gradients of a differentiated call by operations on arrays that keep the probabilities.
#[cfg(feature = "graph")]
#[track_caller]
fn differentiate_composed(call: Differentiable, results: [&Array; 2], options: &Options<'_>) -> Result<(Array, Array)> {
    let (call, args) = call.begin_forward(results)?;
    let args: Vec<&Array> = args.iter().flatten().collect();
    let (operands, options) = split_arguments(&args, options);
    let [out, lse, probabilities] = compose_attention_with_probabilities(operands, &options)?;
    let residuals = [&args[..], &[&lse, &probabilities]].concat();
    let results = [out, lse.clone()];
    let [out, lse] = with_gradient!(call, results, &residuals, |[args @ .., lse, kept], [dout, dlse]| {
        let args: Vec<&Array> = args.iter().collect();
        let (operands, options) = split_arguments(&args, &options);
        compose_attention_gradients(operands, [lse, kept], [&dout, &dlse], &options)?
    });
    Ok((out, lse))
}

/// Splits arguments `q, k, v, bias?, sinks?` into the operands and options with this bias and these sinks.
fn split_arguments<'a>(args: &[&'a Array], options: &Options<'a>) -> ([&'a Array; 3], Options<'a>) {
    let mut more = args[3..].iter().copied();
    let bias = options.bias.and_then(|_| more.next());
    let sinks = options.sinks.and_then(|_| more.next());
    ([args[0], args[1], args[2]], Options { bias, sinks, ..*options })
}

/// Computes [`flash_attention_with_lse`] without gradients, in blocks that it chooses.
#[track_caller]
#[inline]
fn compute_forward(q: &Array, k: &Array, v: &Array, options: &Options<'_>) -> Result<(Array, Array)> {
    let (shape, [_, _, keys, _]) = (attention_extents("q", q)?, attention_extents("k", k)?);
    let target = q.client().target();
    let blocks = block_sizes(target, q.dtype(), shape, keys, options);
    let operands = options.operands(q, k)?;
    if let Some(rules) = whole_rules(target, [keys, shape[3]], options, &operands) {
        let (scale, rows) = (operands.scale, blocks[0]);
        let own = [shape[0], shape[1], rows.min(shape[2]), shape[3]];
        let [batch, heads] = heads_per_program(target, own, [attention_extents("k", k)?[1], keys]);
        return floats!("flash_attention", q.dtype(), E => {
            flash_attention_whole::<E>(q, k, v, scale, rules, batch, heads, rows)
        });
    }
    floats!("flash_attention", q.dtype(), E => flash_attention_in_blocks::<E>(q, k, v, options, blocks))
}

/// [`flash_attention_with_lse`] of elements `E` with `blocks = [queries, keys]` as block size, without gradients.
///
/// # Errors
/// As [`flash_attention`].
#[track_caller]
pub fn flash_attention_in_blocks<E: Floating>(
    q: &Array,
    k: &Array,
    v: &Array,
    options: &Options<'_>,
    blocks: [usize; 2],
) -> Result<(Array, Array)> {
    let operands = &options.operands(q, k)?;
    let ([_, _, keys, _], [_, _, values, _]) = (attention_extents("k", k)?, attention_extents("v", v)?);
    if options.sinks.is_some() && keys == 0 && values == 0 {
        // Without a block of keys no program would run, and no sum would include the sinks: pad with one masked key.
        let one = |x: &Array| x.client().zeros(&[x.shape()[0], x.shape()[1], 1, x.shape()[3]], x.dtype());
        let none = q.client().zeros(&[q.shape()[0]], DType::I32)?;
        let unseen = Options { lengths: Some(&none), bias: None, segments: None, ..*options };
        return flash_attention_in_blocks::<E>(q, &one(k)?, &one(v)?, &unseen, blocks);
    }
    let Operands { lengths, offsets, bias, segments: [own, theirs], sinks, scale, seed, rules } = operands;
    let [queries, keys] = &operands.spans(blocks)?;
    let narrow = has_narrow_products(q.client().target(), E::DTYPE);
    let [bq, bk] = blocks;
    flash_attention_blocks::<E>(
        q, k, v, lengths, offsets, seed, bias, own, theirs, queries, keys, sinks, *scale, *rules, narrow, bq, bk,
    )
}

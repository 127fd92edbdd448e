//! Gradients of flash attention: the scores are computed anew, block by block, from q, k and the log-sum-exp.
//!
//! With `P = exp(s - lse)`, and masks, bias, soft-cap, sinks and dropout as in [`crate::attention_scores`] (Dao et al.
//! 2022, Algorithm 4; Dao 2023):
//!
//! ```text
//! δ_i = Σ_c dout_ic·out_ic - dlse_i      dv = P'ᵀ dout      ds = P ∘ (kept ∘ dout vᵀ - δ)      dx = ds · (1 - tanh²(scale·q kᵀ / cap))
//! dq = dx k · scale             dk = dxᵀ q · scale     dbias = Σ ds over what it is broadcast to
//! dsink = -Σ_i exp(sink - lse_i)·δ_i
//! ```
//! Where there are many threads and little memory (a GPU), one kernel gathers dq while keys stream past, one dk and dv
//! while the queries of all heads of a group do: seven products. On the CPU, [`crate::flash_attention_resident`] has
//! them in one pass of five. Either way every element is summed by one program in one order, so gradients are the same
//! every time. Everything but the operands is f32. Blocks of keys that no row of a block of queries sees are skipped.
use crate::attention_options::{Cotangents, Operands, Options, attention_extents, score_scale};
use crate::attention_scores::{BackwardInputs, BlockGradients, Rules, Segments};
use crate::block_sizes::{BlockResources, BlockSizeKey, choose_block_sizes};
use crate::dtype_dispatch::floats;
use crate::element::Floating;
use crate::flash_attention_bias::bias_gradient;
use crate::flash_attention_resident::{is_resident_faster, resident_gradients, resident_gradients_with_bias};
use crate::flash_attention_whole::{
    MAX_WHOLE_KEYS, flash_attention_whole_gradients, heads_per_program, whole_keys_rules as whole_rules,
};
use pallas_rt::Target;
use pallas_rt::prelude::*;

/// Computes the gradient by queries: a block of it per program; keys and values stream past.
#[kernel(grid = (B, H, cdiv(S, BQ), cdiv(L, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn flash_attention_dq<E: Floating>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, h, _, j| (b, h / (H / G), j, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, h, _, j| (b, h / (H / G), j, 0), fill = 0.0)] v: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0), fill = 0.0)] dout: In<E>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i, _| (b, h, i), fill = f32::INFINITY)] lse: In<E::Acc>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i, _| (b, h, i), fill = 0.0)] delta: In<E::Acc>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[prefetch([OE])] offsets: Prefetch<i32>,
    #[prefetch([SE])] seed: Prefetch<u32>,
    #[block([BB, BH, BS, BL] => [_, _, BQ, BK], |b, h, i, j| (b % BB, h % BH, i, j), fill = 0.0)] bias: In<E>,
    #[block([B, QS] => [_, BQ], |b, _, i, _| (b, i), fill = 0.0)] query_segments: In<i32>,
    #[block([B, KS] => [_, BK], |b, _, _, j| (b, j), fill = 0.0)] key_segments: In<i32>,
    #[prefetch([B, QT, QE])] query_spans: Prefetch<i32>,
    #[prefetch([B, KT, KE])] key_spans: Prefetch<i32>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0))] dq: Out<E>,
    #[scratch([BQ, D])] acc: Scratch<E::Acc>,
    scale: f32,
    #[fixed] rules: Rules,
    #[dim] BQ: usize,
    #[dim] BK: usize,
) {
    if program_id(3) == 0 {
        acc.fill(0.0);
    }
    let at = [program_id(0), program_id(2), program_id(3)];
    let segments = Segments { numbers: [query_segments, key_segments], spans: [query_spans, key_spans] };
    let block = rules.block([BQ, BK], at, [S, L], [lengths, offsets], segments);
    if block.has_live_scores() {
        let inputs =
            BackwardInputs { rules, matrices: [q, k, v, dout], rows: [lse, delta], scale: scale.cast::<E::Acc>() };
        let kept = block.dropout_factors(seed, program_id(0) * H + program_id(1));
        let options = [block.load_bias(bias), kept];
        if block.is_fully_seen() {
            acc.store(acc.load() + inputs.backward_of_block(options, None, &|x| x).dq());
        } else {
            let back = inputs.backward_of_block(options, Some(block.live_mask()), &|[q, k, dout]| {
                [q, block.zero_unseen_keys(k), dout]
            });
            acc.store(acc.load() + back.dq());
        }
    }
    if program_id(3) == num_programs(3) - 1 {
        dq.store((acc.load() * scale.cast::<E::Acc>()).cast::<E>());
    }
}

/// Computes the gradients by keys and values: a block of both per program; queries of all heads of a group stream past.
#[kernel(
    grid = (B, G, cdiv(L, BK), cdiv(H, G), cdiv(S, BQ)),
    semantics = (parallel, parallel, parallel, arbitrary, arbitrary)
)]
pub fn flash_attention_dkv<E: Floating>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, g, _, h, i| (b, g * (H / G) + h, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0), fill = 0.0)] v: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, g, _, h, i| (b, g * (H / G) + h, i, 0), fill = 0.0)] dout: In<E>,
    #[block([B, H, S] => [_, _, BQ], |b, g, _, h, i| (b, g * (H / G) + h, i), fill = f32::INFINITY)] lse: In<E::Acc>,
    #[block([B, H, S] => [_, _, BQ], |b, g, _, h, i| (b, g * (H / G) + h, i), fill = 0.0)] delta: In<E::Acc>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[prefetch([OE])] offsets: Prefetch<i32>,
    #[prefetch([SE])] seed: Prefetch<u32>,
    #[block([BB, BH, BS, BL] => [_, _, BQ, BK], |b, g, j, h, i| (b % BB, (g * (H / G) + h) % BH, i, j), fill = 0.0)]
    bias: In<E>,
    #[block([B, QS] => [_, BQ], |b, _, _, _, i| (b, i), fill = 0.0)] query_segments: In<i32>,
    #[block([B, KS] => [_, BK], |b, _, j, _, _| (b, j), fill = 0.0)] key_segments: In<i32>,
    #[prefetch([B, QT, QE])] query_spans: Prefetch<i32>,
    #[prefetch([B, KT, KE])] key_spans: Prefetch<i32>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0))] dk: Out<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0))] dv: Out<E>,
    #[scratch([BK, D])] keys: Scratch<E::Acc>,
    #[scratch([BK, D])] values: Scratch<E::Acc>,
    scale: f32,
    #[fixed] rules: Rules,
    #[dim] BQ: usize,
    #[dim] BK: usize,
) {
    let step = program_id(3) * num_programs(4) + program_id(4);
    if step == 0 {
        keys.fill(0.0);
        values.fill(0.0);
    }
    let at = [program_id(0), program_id(4), program_id(2)];
    let segments = Segments { numbers: [query_segments, key_segments], spans: [query_spans, key_spans] };
    let block = rules.block([BQ, BK], at, [S, L], [lengths, offsets], segments);
    if block.has_live_scores() {
        let inputs =
            BackwardInputs { rules, matrices: [q, k, v, dout], rows: [lse, delta], scale: scale.cast::<E::Acc>() };
        let head = program_id(1) * (H / G) + program_id(3);
        let options = [block.load_bias(bias), block.dropout_factors(seed, program_id(0) * H + head)];
        let add = |back: BlockGradients<E::Acc>| {
            values.store(values.load() + back.dv());
            keys.store(keys.load() + back.dk());
        };
        if block.is_fully_seen() {
            add(inputs.backward_of_block(options, None, &|x| x));
        } else {
            let clean = |[q, k, dout]: [_; 3]| [block.zero_padding_queries(q), k, block.zero_padding_queries(dout)];
            add(inputs.backward_of_block(options, Some(block.live_mask()), &clean));
        }
    }
    if step == num_programs(3) * num_programs(4) - 1 {
        dk.store((keys.load() * scale.cast::<E::Acc>()).cast::<E>());
        dv.store(values.load().cast::<E>());
    }
}

/// Returns the number of rows whose gradients a program of [`flash_attention_backward`] accumulates, and the number of
/// rows that it processes per step, for axes with `rows` rows.
pub fn block_sizes(target: &Target, rows: [usize; 2], head_dim: usize) -> [usize; 2] {
    // Two tiles of operands each, probabilities and the gradient by scores share workgroup memory; an eighth more lies
    // between their rows.
    let need = |own: usize, past: usize| {
        let words = 2 * (own + past) * head_dim + 2 * own * past;
        // Both accumulators are scratch.
        BlockResources { scratch_bytes: 8 * own * head_dim, ..BlockResources::from_staged_words(words + words / 8) }
    };
    // For a CPU: accumulators of more than 64 KiB do not fit the inner caches.
    let widest = if head_dim <= 128 { [128, 128] } else { [64, 64] };
    let all = [widest, [32, 32], [32, 16], [16, 16], [16, 8], [8, 8], [8, 4]];
    choose_block_sizes(
        BlockSizeKey::AttentionGradients,
        target,
        rows,
        all.map(|[own, past]| ([own, past], need(own, past))),
    )
}

/// Gradients by q, k and v of [`crate::flash_attention::flash_attention`] with the same options, from its result, its
/// log-sum-exp and the gradient by the result.
///
/// Where scores are -inf or a row has no live key, the gradient is 0. The gradients by bias and sinks are
/// [`crate::flash_attention_bias::bias_gradient`] and [`crate::flash_attention_bias::sinks_gradient`].
///
/// # Errors
/// Ranks, sizes, element types or heads that do not fit; device trouble.
///
/// ```
/// use pallas_kernels::flash_attention::{Options, flash_attention_with_lse};
/// use pallas_kernels::flash_attention_backward::flash_attention_backward;
/// use pallas_rt::Array;
/// let q = Array::from_slice(&[0.0f32, 0.0], &[1, 1, 1, 2])?;
/// let kv = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2])?;
/// let (out, lse) = flash_attention_with_lse(&q, &kv, &kv, &Options::default())?;
/// let dout = Array::from_slice(&[1.0f32, 0.0], &[1, 1, 1, 2])?;
/// let (_, _, dv) = flash_attention_backward([&q, &kv, &kv], [&out, &lse], &dout, &Options::default())?;
/// assert_eq!(dv.to_vec::<f32>()?, [0.5, 0.0, 0.5, 0.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn flash_attention_backward<'a>(
    operands: [&Array; 3],
    results: [&Array; 2],
    by: impl Into<Cotangents<'a>>,
    options: &Options<'_>,
) -> Result<(Array, Array, Array)> {
    let by = by.into();
    let [q, k, _] = operands;
    let ([_, heads, s, d], [_, key_heads, l, _]) = (attention_extents("q", q)?, attention_extents("k", k)?);
    // Without heads there is nothing to divide a grid by, and each operand is its gradient.
    if heads == 0 && key_heads == 0 {
        return Ok((q.clone(), operands[1].clone(), operands[2].clone()));
    }
    let target = q.client().target();
    let whole = whole_rules(target, [l, d], options, &options.operands(q, k)?);
    if let Some(rules) = whole.filter(|_| heads == key_heads && (1..=MAX_WHOLE_KEYS).contains(&s)) {
        let [batch, heads] = heads_per_program(target, attention_extents("q", q)?, [key_heads, l]);
        let ([q, k, v], [out, lse], scale) = (operands, results, score_scale(options.scale, d)?);
        return floats!("flash_attention_backward", q.dtype(), E => {
            let dlse = by.lse.unwrap_or(lse);
            let by_lse = by.lse.is_some();
            flash_attention_whole_gradients::<E>(q, k, v, out, lse, by.out, dlse, scale, rules, by_lse, batch, heads)
        });
    }
    let of_queries = block_sizes(target, [s, l], d);
    if is_resident_faster(target, attention_extents("q", q)?, attention_extents("k", k)?) {
        return floats!("flash_attention_backward", q.dtype(), E =>
            resident_gradients::<E>(operands, results, by, options, of_queries));
    }
    let [keys, queries] = block_sizes(target, [l, s], d);
    floats!("flash_attention_backward", q.dtype(), E =>
        gradients_in_blocks::<E>(operands, results, by, options, [of_queries, [queries, keys]]))
}

/// [`flash_attention_backward`] that also returns the gradient by [`Options::bias`], of its shape: see
/// [`crate::flash_attention_bias::bias_gradient`].
///
/// On the CPU, a bias that no heads or batch elements share needs no additional products.
///
/// # Errors
/// As there, and without a bias in the options.
#[track_caller]
#[inline]
pub fn flash_attention_backward_with_bias<'a>(
    operands: [&Array; 3],
    results: [&Array; 2],
    by: impl Into<Cotangents<'a>>,
    options: &Options<'_>,
) -> Result<(Array, Array, Array, Array)> {
    let by = by.into();
    let [q, k, _] = operands;
    let ([batch, heads, s, d], [_, _, l, _]) = (attention_extents("q", q)?, attention_extents("k", k)?);
    let target = q.client().target();
    let is_own = options.bias.is_some_and(|bias| bias.shape() == [batch, heads, s, l]);
    if is_own && is_resident_faster(target, attention_extents("q", q)?, attention_extents("k", k)?) {
        let blocks = block_sizes(target, [s, l], d);
        return floats!("flash_attention_backward", q.dtype(), E =>
            resident_gradients_with_bias::<E>(operands, results, by, options, blocks));
    }
    let (dq, dk, dv) = flash_attention_backward(operands, results, by, options)?;
    Ok((dq, dk, dv, bias_gradient(operands, results, by, options)?))
}

/// [`flash_attention_backward`] of elements `E` by two kernels with these block sizes (queries, keys): `of_queries` for
/// dq, `of_keys` for dk and dv.
///
/// # Errors
/// As [`flash_attention_backward`].
#[track_caller]
pub fn gradients_in_blocks<'a, E: Floating>(
    [q, k, v]: [&Array; 3],
    [out, lse]: [&Array; 2],
    by: impl Into<Cotangents<'a>>,
    options: &Options<'_>,
    [of_queries, of_keys]: [[usize; 2]; 2],
) -> Result<(Array, Array, Array)> {
    let by = by.into();
    let operands = &options.operands(q, k)?;
    let Operands { lengths, offsets, bias, segments: [own, theirs], scale, seed, rules, .. } = operands;
    let delta = &by.delta::<E>(out, of_queries[0])?;
    let ([queries, keys], [bq, bk]) = (&operands.spans(of_queries)?, of_queries);
    let dq = flash_attention_dq::<E>(
        q, k, v, by.out, lse, delta, lengths, offsets, seed, bias, own, theirs, queries, keys, *scale, *rules, bq, bk,
    )?;
    let ([queries, keys], [bq, bk]) = (&operands.spans(of_keys)?, of_keys);
    let (dk, dv) = flash_attention_dkv::<E>(
        q, k, v, by.out, lse, delta, lengths, offsets, seed, bias, own, theirs, queries, keys, *scale, *rules, bq, bk,
    )?;
    Ok((dq, dk, dv))
}

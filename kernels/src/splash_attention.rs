//! Block-sparse attention ("splash", after JAX's kernel of that name): its time is that of the blocks that a mask
//! leaves.
//!
//! ```text
//! out_i = softmax(cap(q_i kᵀ · scale)) v        over the keys that the mask lets query i see
//! ```
//! A [`MaskInfo`] holds for each block of queries the list of blocks of keys that are not empty, and the same by
//! columns. The lists are prefetched: index maps read them, so that a program's step n loads the n-th *live* block,
//! whichever it is. A masked block is neither fetched nor visited; the grid is as long as the longest list, not as the
//! row of keys. Blocks that are seen whole are multiplied without a mask. Others compute it from positions, or load it:
//! each different block of an array is stored once.
//!
//! Gradients are those of [`crate::flash_attention_backward`]: dq over the lists by rows, dk and dv over those by
//! columns.
//!
//! Use it for masks that leave large holes: windows, chunks, documents, patterns in an array, different ones for each
//! head. [`crate::flash_attention`] needs no lists and skips blocks above a diagonal or outside of a window, too; it
//! takes lengths and segments that change with every batch.
use crate::argument_errors::argument_error;
use crate::attention_options::{attention_extents, score_scale};
use crate::attention_scores::{BackwardInputs, Rules, flash_attention_delta};
use crate::dtype_dispatch::{floats, with_gradient};
use crate::element::Floating;
use crate::online_softmax::OnlineSoftmax;
use crate::splash_mask::{Computed, MaskInfo, UNMASKED_BLOCK};
use pallas_rt::Differentiable;
use pallas_rt::prelude::*;

/// Options of block-sparse attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Factor of the scores `q kᵀ`; `None`: `1 / sqrt(head dimension)`.
    pub scale: Option<f32>,
    /// Bound `c` of the scores, applied as `c · tanh(s / c)`; `None`: no bound.
    pub soft_cap: Option<f32>,
}

/// Computes one block of queries per program; the live blocks of keys and values of its list stream past it.
#[kernel(grid = (B, H, cdiv(S, BQ), N), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn splash_attention_blocks<E: Floating, const BQ: usize, const BK: usize>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0), fill = 0.0)] q: In<E>,
    #[block(
        [B, G, L, D] => [_, _, BK, D],
        |b, h, i, n| (b, h / (H / G), lists.at((mask_of.at(h), i, 2 * n + 1)), 0), fill = 0.0
    )]
    k: In<E>,
    #[block(
        [B, G, L, D] => [_, _, BK, D],
        |b, h, i, n| (b, h / (H / G), lists.at((mask_of.at(h), i, 2 * n + 1)), 0), fill = 0.0
    )]
    v: In<E>,
    #[prefetch([H])] mask_of: Prefetch<i32>,
    #[prefetch([M, Q, X])] lists: Prefetch<i32>,
    #[block([U, BQ, BK] => [_, BQ, BK], |_, h, i, n| (max(lists.at((mask_of.at(h), i, 2 * n + 2)), 0), 0, 0))]
    partial: In<bool>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0))] out: Out<E>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i, _| (b, h, i), empty = f32::NEG_INFINITY)] lse: Out<E::Acc>,
    #[scratch([BQ, D])] scaled: Scratch<E::Acc>,
    #[scratch([BQ, 1])] max: Scratch<E::Acc>,
    #[scratch([BQ, 1])] sum: Scratch<E::Acc>,
    #[scratch([BQ, D])] acc: Scratch<E::Acc>,
    scale: f32,
    #[fixed] rules: Rules,
    #[fixed] computed: Computed,
    #[dim] N: usize,
) {
    let rows = OnlineSoftmax { max, sum, acc };
    let (mask, i, step) = (mask_of.at(program_id(1)), program_id(2), program_id(3));
    if step == 0 {
        scaled.store(q.load().cast::<E::Acc>() * scale.cast::<E::Acc>());
        rows.initialize();
    }
    if step < lists.at((mask, i, 0)) {
        let (block, number) = (lists.at((mask, i, step * 2 + 1)), lists.at((mask, i, step * 2 + 2)));
        let (k, v) = (k.load().cast::<E::Acc>(), v.load().cast::<E::Acc>());
        let (scores, _) = rules.scores(dot(scaled.load(), k.t()), None);
        if number == UNMASKED_BLOCK {
            rows.accumulate(scores, |p| dot(p, v));
        } else {
            let live = computed.live_mask([number, i * BQ, block * BK, L], partial, [BQ, BK]);
            rows.accumulate(select(live, scores, f32::NEG_INFINITY), |p| dot(p, v));
        }
    }
    if step == num_programs(3) - 1 {
        let (result, total) = rows.finish();
        out.store(result.cast::<E>());
        lse.store(total.reshape([BQ]));
    }
}

/// Computes the gradient by queries: a block of it per program, past which the live blocks of keys and values stream.
#[kernel(grid = (B, H, cdiv(S, BQ), N), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn splash_attention_dq<E: Floating, const BQ: usize, const BK: usize>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0), fill = 0.0)] q: In<E>,
    #[block(
        [B, G, L, D] => [_, _, BK, D],
        |b, h, i, n| (b, h / (H / G), lists.at((mask_of.at(h), i, 2 * n + 1)), 0), fill = 0.0
    )]
    k: In<E>,
    #[block(
        [B, G, L, D] => [_, _, BK, D],
        |b, h, i, n| (b, h / (H / G), lists.at((mask_of.at(h), i, 2 * n + 1)), 0), fill = 0.0
    )]
    v: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0), fill = 0.0)] dout: In<E>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i, _| (b, h, i), fill = f32::INFINITY)] lse: In<E::Acc>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i, _| (b, h, i), fill = 0.0)] delta: In<E::Acc>,
    #[prefetch([H])] mask_of: Prefetch<i32>,
    #[prefetch([M, Q, X])] lists: Prefetch<i32>,
    #[block([U, BQ, BK] => [_, BQ, BK], |_, h, i, n| (max(lists.at((mask_of.at(h), i, 2 * n + 2)), 0), 0, 0))]
    partial: In<bool>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0))] dq: Out<E>,
    #[scratch([BQ, D])] acc: Scratch<E::Acc>,
    scale: f32,
    #[fixed] rules: Rules,
    #[fixed] computed: Computed,
    #[dim] N: usize,
) {
    let (mask, i, step) = (mask_of.at(program_id(1)), program_id(2), program_id(3));
    if step == 0 {
        acc.fill(0.0);
    }
    if step < lists.at((mask, i, 0)) {
        let (j, number) = (lists.at((mask, i, step * 2 + 1)), lists.at((mask, i, step * 2 + 2)));
        let inputs =
            BackwardInputs { rules, matrices: [q, k, v, dout], rows: [lse, delta], scale: scale.cast::<E::Acc>() };
        if number == UNMASKED_BLOCK {
            acc.store(acc.load() + inputs.backward_of_block([None, None], None, &|x| x).dq());
        } else {
            let live = computed.live_mask([number, i * BQ, j * BK, L], partial, [BQ, BK]);
            acc.store(acc.load() + inputs.backward_of_block([None, None], Some(live), &|x| x).dq());
        }
    }
    if step == num_programs(3) - 1 {
        dq.store((acc.load() * scale.cast::<E::Acc>()).cast::<E>());
    }
}

/// Computes the gradients by keys and values: a block of both per program, past which the live blocks of queries of
/// all heads of a group stream.
#[kernel(
    grid = (B, G, cdiv(L, BK), cdiv(H, G), N),
    semantics = (parallel, parallel, parallel, arbitrary, arbitrary)
)]
pub fn splash_attention_dkv<E: Floating, const BQ: usize, const BK: usize>(
    #[block(
        [B, H, S, D] => [_, _, BQ, D],
        |b, g, j, h, n| (b, g * (H / G) + h, lists.at((mask_of.at(g * (H / G) + h), j, 2 * n + 1)), 0), fill = 0.0
    )]
    q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0), fill = 0.0)] v: In<E>,
    #[block(
        [B, H, S, D] => [_, _, BQ, D],
        |b, g, j, h, n| (b, g * (H / G) + h, lists.at((mask_of.at(g * (H / G) + h), j, 2 * n + 1)), 0), fill = 0.0
    )]
    dout: In<E>,
    #[block(
        [B, H, S] => [_, _, BQ],
        |b, g, j, h, n| (b, g * (H / G) + h, lists.at((mask_of.at(g * (H / G) + h), j, 2 * n + 1))), fill = f32::INFINITY
    )]
    lse: In<E::Acc>,
    #[block(
        [B, H, S] => [_, _, BQ],
        |b, g, j, h, n| (b, g * (H / G) + h, lists.at((mask_of.at(g * (H / G) + h), j, 2 * n + 1))), fill = 0.0
    )]
    delta: In<E::Acc>,
    #[prefetch([H])] mask_of: Prefetch<i32>,
    #[prefetch([M, K, X])] lists: Prefetch<i32>,
    #[block(
        [U, BQ, BK] => [_, BQ, BK],
        |_, g, j, h, n| (max(lists.at((mask_of.at(g * (H / G) + h), j, 2 * n + 2)), 0), 0, 0)
    )]
    partial: In<bool>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0))] dk: Out<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0))] dv: Out<E>,
    #[scratch([BK, D])] keys: Scratch<E::Acc>,
    #[scratch([BK, D])] values: Scratch<E::Acc>,
    scale: f32,
    #[fixed] rules: Rules,
    #[fixed] computed: Computed,
    #[dim] N: usize,
) {
    let (j, step) = (program_id(2), program_id(4));
    if program_id(3) + step == 0 {
        keys.fill(0.0);
        values.fill(0.0);
    }
    let mask = mask_of.at(program_id(1) * (H / G) + program_id(3));
    if step < lists.at((mask, j, 0)) {
        let (i, number) = (lists.at((mask, j, step * 2 + 1)), lists.at((mask, j, step * 2 + 2)));
        let inputs =
            BackwardInputs { rules, matrices: [q, k, v, dout], rows: [lse, delta], scale: scale.cast::<E::Acc>() };
        let add = |live: Option<Tile<bool>>| {
            let back = inputs.backward_of_block([None, None], live, &|x| x);
            values.store(values.load() + back.dv());
            keys.store(keys.load() + back.dk());
        };
        if number == UNMASKED_BLOCK {
            add(None);
        } else {
            add(Some(computed.live_mask([number, i * BQ, j * BK, L], partial, [BQ, BK])));
        }
    }
    if program_id(3) == num_programs(3) - 1 && step == num_programs(4) - 1 {
        dk.store((keys.load() * scale.cast::<E::Acc>()).cast::<E>());
        dv.store(values.load().cast::<E>());
    }
}

/// Attention of queries `[batch, heads, queries, d]` over keys and values `[batch, key heads, keys, d]` under the masks
/// of each head; f32, f16 or bf16, computed in f32.
///
/// Heads of queries are a multiple of those of keys: query head h uses key head `h / (heads / key heads)`. A row that
/// sees no key gives 0. Blocks that no query sees may hold anything. In other blocks values must not be NaN or
/// infinite, even where they are masked, as they are multiplied by 0: use [`crate::flash_attention`] for padding inside
/// of a block.
///
/// # Errors
/// Ranks, sizes, element types or heads that do not fit; device trouble.
///
/// ```
/// use pallas_kernels::splash_attention::{Options, splash_attention};
/// use pallas_kernels::splash_mask::{Mask, MaskInfo};
/// use pallas_rt::Array;
/// let x = Array::from_slice(&[1.0f32, 2.0, 4.0], &[1, 1, 3, 1])?;
/// // Made once for all calls and layers: two of four blocks are live.
/// let masks = [Mask::window(1) & !Mask::Chunked { size: 2 }];
/// let info = MaskInfo::new(x.client(), &masks, [3, 3])?;
/// let out = splash_attention(&x, &x, &x, &info, &Options::default())?;
/// assert_eq!(out.to_vec::<f32>()?, [0.0, 0.0, 2.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn splash_attention(q: &Array, k: &Array, v: &Array, info: &MaskInfo, options: &Options) -> Result<Array> {
    let (call, [q, k, v]) = Differentiable::begin([q, k, v])?;
    let (out, lse) = splash_attention_with_lse(&q, &k, &v, info, options)?;
    let [out] = with_gradient!(call, [out.clone()], &[&q, &k, &v, &out, &lse], |[q, k, v, out, lse], [dout]| {
        <[Array; 3]>::from(splash_attention_backward([q, k, v], [out, lse], &dout, info, options)?)
    });
    Ok(out)
}

/// Calls a function for the mask's block size, which is one of those that kernels are compiled for.
macro_rules! blocks {
    ($info:ident, $f:ident::<$E:ident>($($argument:expr),*)) => {
        match $info.block {
            [128, 128] => $f::<$E, 128, 128>($($argument),*),
            [64, 64] => $f::<$E, 64, 64>($($argument),*),
            [32, 32] => $f::<$E, 32, 32>($($argument),*),
            [32, 16] => $f::<$E, 32, 16>($($argument),*),
            [16, 16] => $f::<$E, 16, 16>($($argument),*),
            [16, 8] => $f::<$E, 16, 8>($($argument),*),
            other => argument_error(format!("no kernel was compiled for blocks of {other:?}: call the one of generic blocks")),
        }
    };
}

/// [`splash_attention`] and the log-sum-exp of each row's scores, f32 `[batch, heads, queries]`; -inf for rows that see
/// no key.
///
/// # Errors
/// As [`splash_attention`].
#[track_caller]
#[inline]
pub fn splash_attention_with_lse(
    q: &Array,
    k: &Array,
    v: &Array,
    info: &MaskInfo,
    options: &Options,
) -> Result<(Array, Array)> {
    floats!("splash_attention", q.dtype(), E => blocks!(info, attention_in_blocks::<E>(q, k, v, info, options)))
}

/// [`splash_attention_with_lse`] for a [`MaskInfo`] of blocks of `BQ` queries and `BK` keys.
///
/// # Errors
/// As [`splash_attention`], and an `info` whose blocks are not of `BQ` queries and `BK` keys.
#[track_caller]
pub fn attention_in_blocks<E: Floating, const BQ: usize, const BK: usize>(
    q: &Array,
    k: &Array,
    v: &Array,
    info: &MaskInfo,
    options: &Options,
) -> Result<(Array, Array)> {
    let (scale, rules) = score_scale_and_rules::<BQ, BK>(q, k, info, options)?;
    let MaskInfo { mask_of, rows, partial, computed, .. } = info;
    splash_attention_blocks::<E, BQ, BK>(
        q,
        k,
        v,
        mask_of,
        &rows.table,
        partial,
        scale,
        rules,
        computed.clone(),
        rows.longest,
    )
}

/// Gradients by q, k and v of [`splash_attention`] with the same masks and options, from its result, its log-sum-exp
/// and the gradient by the result.
///
/// # Errors
/// Ranks, sizes, element types or heads that do not fit; device trouble.
///
/// ```
/// use pallas_kernels::splash_attention::{Options, splash_attention_backward, splash_attention_with_lse};
/// use pallas_kernels::splash_mask::{Mask, MaskInfo};
/// use pallas_rt::Array;
/// let x = Array::from_slice(&[0.0f32, 0.0], &[1, 1, 2, 1])?;
/// let info = MaskInfo::new(x.client(), &[Mask::causal()], [2, 2])?;
/// let (out, lse) = splash_attention_with_lse(&x, &x, &x, &info, &Options::default())?;
/// let dout = Array::from_slice(&[1.0f32, 2.0], &[1, 1, 2, 1])?;
/// let (_, _, dv) = splash_attention_backward([&x; 3], [&out, &lse], &dout, &info, &Options::default())?;
/// assert_eq!(dv.to_vec::<f32>()?, [2.0, 1.0], "the first key has all of the first query and half of the second");
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn splash_attention_backward(
    operands: [&Array; 3],
    results: [&Array; 2],
    dout: &Array,
    info: &MaskInfo,
    options: &Options,
) -> Result<(Array, Array, Array)> {
    floats!("splash_attention_backward", operands[0].dtype(), E =>
        blocks!(info, gradients_in_blocks::<E>(operands, results, dout, info, options)))
}

/// [`splash_attention_backward`] for a [`MaskInfo`] of blocks of `BQ` queries and `BK` keys.
///
/// # Errors
/// As [`splash_attention_backward`], and an `info` whose blocks are not of `BQ` queries and `BK` keys.
#[track_caller]
pub fn gradients_in_blocks<E: Floating, const BQ: usize, const BK: usize>(
    [q, k, v]: [&Array; 3],
    [out, lse]: [&Array; 2],
    dout: &Array,
    info: &MaskInfo,
    options: &Options,
) -> Result<(Array, Array, Array)> {
    let (scale, rules) = score_scale_and_rules::<BQ, BK>(q, k, info, options)?;
    let MaskInfo { mask_of, rows, columns, partial, computed, .. } = info;
    let delta = &flash_attention_delta::<E>(out, dout, lse, false, BQ)?;
    let dq = splash_attention_dq::<E, BQ, BK>(
        q,
        k,
        v,
        dout,
        lse,
        delta,
        mask_of,
        &rows.table,
        partial,
        scale,
        rules,
        computed.clone(),
        rows.longest,
    )?;
    let (dk, dv) = splash_attention_dkv::<E, BQ, BK>(
        q,
        k,
        v,
        dout,
        lse,
        delta,
        mask_of,
        &columns.table,
        partial,
        scale,
        rules,
        computed.clone(),
        columns.longest,
    )?;
    Ok((dq, dk, dv))
}

/// Checks the masks' block size, and returns the factor of the scores and the rules of a call.
#[track_caller]
fn score_scale_and_rules<const BQ: usize, const BK: usize>(
    q: &Array,
    k: &Array,
    info: &MaskInfo,
    options: &Options,
) -> Result<(f32, Rules)> {
    if info.block != [BQ, BK] {
        return argument_error(format!("masks in blocks of {:?} for a kernel of blocks of {:?}", info.block, [BQ, BK]));
    }
    let (q, k) = (attention_extents("q", q)?, attention_extents("k", k)?);
    let rules = info.check_operands(q, k, options.soft_cap)?;
    Ok((score_scale(options.scale, q[3])?, rules))
}

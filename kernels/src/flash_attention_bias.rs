//! Gradients of flash attention by its bias and its sinks; [`crate::flash_attention_backward`] has the formulas.
//!
//! The gradient by the bias is that by the scores, summed over the batch elements and heads that share it: a matrix as
//! large as the bias, so it is computed only when asked for, by a kernel of its own (two products).
use crate::argument_errors::argument_error;
use crate::attention_options::{Cotangents, Operands, Options, attention_extents};
use crate::attention_scores::{BackwardInputs, Rules, Segments};
use crate::dtype_dispatch::floats;
use crate::element::Floating;
use crate::flash_attention_backward::block_sizes;
use pallas_rt::prelude::*;

/// Computes the gradient by the bias: a block of it per program; batch elements and heads that share it stream past.
#[kernel(
    grid = (BB, BH, cdiv(S, BQ), cdiv(L, BK), cdiv(B, BB), cdiv(H, BH)),
    semantics = (parallel, parallel, parallel, parallel, arbitrary, arbitrary)
)]
pub fn flash_attention_dbias<E: Floating>(
    #[block([B, H, S, D] => [_, _, BQ, D], |x, y, i, _, b, h| (x + b * BB, y + h * BH, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |x, y, _, j, b, h| (x + b * BB, (y + h * BH) / (H / G), j, 0), fill = 0.0)]
    k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |x, y, _, j, b, h| (x + b * BB, (y + h * BH) / (H / G), j, 0), fill = 0.0)]
    v: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |x, y, i, _, b, h| (x + b * BB, y + h * BH, i, 0), fill = 0.0)] dout: In<E>,
    #[block([B, H, S] => [_, _, BQ], |x, y, i, _, b, h| (x + b * BB, y + h * BH, i), fill = f32::INFINITY)] lse: In<
        E::Acc,
    >,
    #[block([B, H, S] => [_, _, BQ], |x, y, i, _, b, h| (x + b * BB, y + h * BH, i), fill = 0.0)] delta: In<E::Acc>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[prefetch([OE])] offsets: Prefetch<i32>,
    #[prefetch([SE])] seed: Prefetch<u32>,
    #[block([BB, BH, S, L] => [_, _, BQ, BK], |x, y, i, j, _, _| (x, y, i, j), fill = 0.0)] bias: In<E>,
    #[block([B, QS] => [_, BQ], |x, _, i, _, b, _| (x + b * BB, i), fill = 0.0)] query_segments: In<i32>,
    #[block([B, KS] => [_, BK], |x, _, _, j, b, _| (x + b * BB, j), fill = 0.0)] key_segments: In<i32>,
    #[prefetch([B, QT, QE])] query_spans: Prefetch<i32>,
    #[prefetch([B, KT, KE])] key_spans: Prefetch<i32>,
    #[block([BB, BH, S, L] => [_, _, BQ, BK], |x, y, i, j, _, _| (x, y, i, j))] dbias: Out<E>,
    #[scratch([BQ, BK])] acc: Scratch<E::Acc>,
    scale: f32,
    #[fixed] rules: Rules,
    #[dim] BQ: usize,
    #[dim] BK: usize,
) {
    let step = program_id(4) * num_programs(5) + program_id(5);
    if step == 0 {
        acc.fill(0.0);
    }
    let (b, h) = (program_id(0) + program_id(4) * BB, program_id(1) + program_id(5) * BH);
    let segments = Segments { numbers: [query_segments, key_segments], spans: [query_spans, key_spans] };
    let block = rules.block([BQ, BK], [b, program_id(2), program_id(3)], [S, L], [lengths, offsets], segments);
    if block.has_live_scores() {
        let inputs =
            BackwardInputs { rules, matrices: [q, k, v, dout], rows: [lse, delta], scale: scale.cast::<E::Acc>() };
        let options = [block.load_bias(bias), block.dropout_factors(seed, b * H + h)];
        if block.is_fully_seen() {
            acc.store(acc.load() + inputs.backward_of_block(options, None, &|x| x).by_scores);
        } else {
            acc.store(acc.load() + inputs.backward_of_block(options, Some(block.live_mask()), &|x| x).by_scores);
        }
    }
    if step == num_programs(4) * num_programs(5) - 1 {
        dbias.store(acc.load().cast::<E>());
    }
}

/// Computes the gradient by the sinks: one head per program; all rows stream past.
#[kernel(grid = (H, B, cdiv(S, BQ)), semantics = (parallel, arbitrary, arbitrary))]
pub fn flash_attention_dsinks<E: Floating, const BQ: usize>(
    #[block([B, H, S] => [_, _, BQ], |h, b, i| (b, h, i), fill = f32::INFINITY)] lse: In<E::Acc>,
    #[block([B, H, S] => [_, _, BQ], |h, b, i| (b, h, i), fill = 0.0)] delta: In<E::Acc>,
    #[block([H] => [1], |h, _, _| (h,))] sinks: In<E>,
    #[block([H] => [1], |h, _, _| (h,))] dsinks: Out<E>,
    #[scratch([1])] acc: Scratch<E::Acc>,
) {
    let step = program_id(1) * num_programs(2) + program_id(2);
    if step == 0 {
        acc.fill(0.0);
    }
    let lse = lse.load();
    // A row without finite score has no gradient.
    let lse = select(lse.eq(f32::NEG_INFINITY), f32::INFINITY, lse);
    acc.store(acc.load() - ((sinks.load().cast::<E::Acc>() - lse).exp() * delta.load()).sum(0));
    if step == num_programs(1) * num_programs(2) - 1 {
        dsinks.store(acc.load().cast::<E>());
    }
}

/// Gradient by [`Options::bias`], of its shape, from q, k and v, the forward pass' results and the gradients by them:
/// the arguments of [`crate::flash_attention_backward::flash_attention_backward`].
///
/// # Errors
/// Without a bias in the options; ranks, sizes, element types or heads that do not fit; device trouble.
///
/// ```
/// use pallas_kernels::flash_attention::{Options, flash_attention_with_lse};
/// use pallas_kernels::flash_attention_bias::bias_gradient;
/// use pallas_rt::Array;
/// let q = Array::from_slice(&[0.0f32, 0.0], &[1, 1, 1, 2])?;
/// let kv = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2])?;
/// let bias = Array::from_slice(&[0.0f32, 0.0], &[1, 1, 1, 2])?;
/// let options = Options { bias: Some(&bias), ..Options::default() };
/// let (out, lse) = flash_attention_with_lse(&q, &kv, &kv, &options)?;
/// let dout = Array::from_slice(&[1.0f32, 0.0], &[1, 1, 1, 2])?;
/// let dbias = bias_gradient([&q, &kv, &kv], [&out, &lse], &dout, &options)?;
/// assert_eq!(dbias.to_vec::<f32>()?, [-0.5, 0.5]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn bias_gradient<'a>(
    operands: [&Array; 3],
    results: [&Array; 2],
    by: impl Into<Cotangents<'a>>,
    options: &Options<'_>,
) -> Result<Array> {
    let (by, [q, k, _]) = (by.into(), operands);
    let ([.., s, d], [_, _, l, _]) = (attention_extents("q", q)?, attention_extents("k", k)?);
    let blocks = block_sizes(q.client().target(), [s, l], d);
    floats!("bias_gradient", q.dtype(), E => bias_gradient_in_blocks::<E>(operands, results, by, options, blocks))
}

/// [`bias_gradient`] of elements `E`, in blocks of `[bq, bk]` queries and keys.
///
/// # Errors
/// As [`bias_gradient`].
#[track_caller]
pub fn bias_gradient_in_blocks<'a, E: Floating>(
    [q, k, v]: [&Array; 3],
    [out, lse]: [&Array; 2],
    by: impl Into<Cotangents<'a>>,
    options: &Options<'_>,
    [bq, bk]: [usize; 2],
) -> Result<Array> {
    let by = by.into();
    let operands = &options.operands(q, k)?;
    let Operands { lengths, offsets, bias, segments: [own, theirs], scale, seed, rules, .. } = operands;
    let [queries, keys] = &operands.spans([bq, bk])?;
    if !rules.bias {
        return argument_error("there is no `bias` in the options to have a gradient".into());
    }
    // A bias without elements is its gradient, and nothing can be divided by its extents.
    if let Some(bias) = options.bias.filter(|bias| bias.shape().contains(&0)) {
        return Ok(bias.clone());
    }
    let delta = &by.delta::<E>(out, bq)?;
    flash_attention_dbias::<E>(
        q, k, v, by.out, lse, delta, lengths, offsets, seed, bias, own, theirs, queries, keys, *scale, *rules, bq, bk,
    )
}

/// Number of rows that the gradient by the sinks processes at a time.
const SINKS_BLOCK_ROWS: usize = 256;

/// Gradient by [`Options::sinks`], from the forward pass' result, its log-sum-exp and the gradient by the result. Rows
/// of padding must be finite here, since segments are not among the operands.
///
/// # Errors
/// Ranks, sizes or element types that do not fit; device trouble.
///
/// ```
/// use pallas_kernels::flash_attention::{Options, flash_attention_with_lse};
/// use pallas_kernels::flash_attention_bias::sinks_gradient;
/// use pallas_rt::Array;
/// let (q, v) = (Array::from_slice(&[0.0f32], &[1, 1, 1, 1])?, Array::from_slice(&[1.0f32], &[1, 1, 1, 1])?);
/// let sinks = Array::from_slice(&[0.0f32], &[1])?;
/// let (out, lse) = flash_attention_with_lse(&q, &q, &v, &Options { sinks: Some(&sinks), ..Options::default() })?;
/// let dsinks = sinks_gradient([&out, &lse], &v, &sinks)?.to_vec::<f32>()?;
/// assert!((dsinks[0] + 0.25).abs() < 1e-6, "half of the weight is the sink's, and a half of that the key's");
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn sinks_gradient<'a>([out, lse]: [&Array; 2], by: impl Into<Cotangents<'a>>, sinks: &Array) -> Result<Array> {
    let by = by.into();
    floats!("sinks_gradient", out.dtype(), E => sinks_gradient_in::<E>([out, lse], by, sinks))
}

/// [`sinks_gradient`] of elements `E`.
///
/// # Errors
/// As [`sinks_gradient`].
#[track_caller]
pub fn sinks_gradient_in<'a, E: Floating>(
    [out, lse]: [&Array; 2],
    by: impl Into<Cotangents<'a>>,
    sinks: &Array,
) -> Result<Array> {
    let delta = &by.into().delta::<E>(out, SINKS_BLOCK_ROWS)?;
    flash_attention_dsinks::<E, SINKS_BLOCK_ROWS>(lse, delta, sinks)
}

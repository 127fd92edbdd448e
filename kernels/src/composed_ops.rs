//! Functions composed of operations on arrays, which take a kernel's place where they are faster.
//!
//! One rule ([`is_composed_faster`]): a traced function that no mesh divides computes small problems of f32, and
//! softmax and norms of long rows in any type of floats, by operations where the number of cores is known. `jit` fuses
//! them with their neighbours, and their gradients reuse intermediate values; a kernel is a launch of its own, and
//! recomputes scores and logits for its gradients, since those of large problems need too much memory. A long row is
//! work for several programs, while a kernel of rows has one program for it. The limits are stated at each function.
//! [`compose_rotary`] has none. Two use operations at any size and in any type of floats: [`compose_segment_sums`], also
//! outside of traced functions, and [`compose_row_lookup`]. `cargo bench --bench plain` compares both.
use crate::attention_options::{Options, attention_extents, score_scale};
use crate::attention_scores::Causal;
use crate::row_blocks::{has_long_rows, is_divided_among_cores};
use pallas_rt::launch::calls_run;
use pallas_rt::prelude::*;
use pallas_rt::{keep, ops};

/// Maximum number of queries, and of keys, up to which operations on arrays compute attention; beyond it a kernel does.
/// A single query may have `MAX_COMPOSED_SINGLE_QUERY_KEYS` keys.
const MAX_COMPOSED_POSITIONS: usize = 128;
const MAX_COMPOSED_SINGLE_QUERY_KEYS: usize = 256;
/// Maximum number of attention probabilities, 64 MiB of them, that are kept for gradients; beyond it the gradients'
/// kernels compute them again.
const MAX_KEPT_PROBABILITIES: usize = 1 << 24;
/// Maximum number of logits up to which operations on arrays compute the loss; beyond it a kernel does.
const MAX_COMPOSED_LOGITS: usize = 1 << 14;
/// Maximum number of elements up to which operations on arrays compute norms of short rows; beyond it a kernel does.
const MAX_COMPOSED_NORM_ELEMENTS: usize = 1 << 19;
/// Minimum length of a row from which operations on arrays compute softmax, by several programs; a kernel computes
/// shorter rows.
const MIN_COMPOSED_SOFTMAX_ROW_ELEMENTS: usize = 1 << 16;

/// Returns true if operations on arrays, which the compiler may fuse, are faster than a kernel: for f32 operands for
/// which [`can_be_fused`] holds, if the caller states by `has_suitable_size` that their sizes are within the measured
/// bounds.
fn is_composed_faster(operands: &[&Array], has_suitable_size: bool) -> bool {
    has_suitable_size && operands.iter().all(|x| x.dtype() == DType::F32) && can_be_fused(operands)
}

/// Returns true for the element types that kernels with f32 arithmetic take.
fn has_kernel_dtype(x: &Array) -> bool {
    matches!(x.dtype(), DType::F32 | DType::F16 | DType::Bf16)
}

/// Returns true in a traced function that no mesh divides, on a target whose number of cores is known.
fn can_be_fused(operands: &[&Array]) -> bool {
    operands.iter().any(|x| x.is_traced()) && is_divided_among_cores(operands[0])
}

/// Attention over up to 128 positions, or of a single query over up to 256 keys; all queries see all keys or, if it is
/// causal, with as many queries as keys, those up to their own. `None`: a kernel has to compute it.
///
/// # Errors
/// A scale that is not finite.
#[track_caller]
pub(crate) fn compose_attention(
    [q, k, v]: [&Array; 3],
    is_causal: bool,
    scale_factor: Option<f32>,
) -> Result<Option<Array>> {
    let ([batch, heads, queries, d], [_, _, keys, _]) = (attention_extents("q", q)?, attention_extents("k", k)?);
    let fits = [k, v].iter().all(|x| x.shape() == [batch, heads, keys, d]) && !(is_causal && queries != keys);
    let is_small =
        if queries == 1 { keys <= MAX_COMPOSED_SINGLE_QUERY_KEYS } else { queries.max(keys) <= MAX_COMPOSED_POSITIONS };
    if !fits || q.is_empty() || k.is_empty() || !is_composed_faster(&[q, k, v], is_small) {
        return Ok(None);
    }
    let mut scores = q.matmul(&k.swapaxes(-1, -2)) * score_scale(scale_factor, d)?;
    if is_causal {
        let positions = ops::arange(0, keys as u32, 1, DType::I32);
        scores = ops::select(&positions.expand_dims(1).ge(&positions), &scores, f64::NEG_INFINITY);
    }
    // A softmax in which a row whose scores are all -inf has weights of 0: its sum is 0, and at least 1 in any other
    // row.
    let most = scores.max(keep(-1)).maximum(f64::from(f32::MIN)).stop_gradient();
    let weights = (&scores - most).exp();
    let sum = weights.sum(keep(-1)).broadcast_to(scores.shape()).maximum(0.5);
    Ok(Some((weights / sum).matmul(v)))
}

/// Returns true if gradients of attention use its probabilities, which then stay in memory: if each head of each batch
/// element has its own bias, which is as large, and no other options are set but a scale and sinks; up to 2^24 scores,
/// since a `vmap` over other operands has probabilities for each example.
pub(crate) fn can_keep_probabilities([q, k, v]: [&Array; 3], options: &Options<'_>) -> bool {
    let (Some(bias), &[batch, heads, queries, d]) = (options.bias, q.shape()) else { return false };
    let keys = bias.shape()[3];
    let is_own =
        bias.shape() == [batch, heads, queries, keys] && [k, v].iter().all(|x| x.shape() == [batch, heads, keys, d]);
    let is_plain = options.has_only_scale_causal_bias() && options.causal == Causal::No;
    let has_size = !q.is_empty() && !k.is_empty() && bias.len() <= MAX_KEPT_PROBABILITIES;
    is_own && is_plain && is_composed_faster(&[q, k, v, bias, options.sinks.unwrap_or(bias)], has_size)
}

/// Result, log-sum-exp and probabilities of attention for which [`can_keep_probabilities`] holds.
///
/// # Errors
/// A scale that is not finite.
#[track_caller]
pub(crate) fn compose_attention_with_probabilities(
    [q, k, v]: [&Array; 3],
    options: &Options<'_>,
) -> Result<[Array; 3]> {
    let mut scores = q.matmul(&k.swapaxes(-1, -2)) * score_scale(options.scale, q.shape()[3])?;
    if let Some(bias) = options.bias {
        scores = scores + bias;
    }
    let sinks = options.sinks.map(|sinks| sinks.reshape(&[sinks.len(), 1, 1]));
    let mut most = scores.max(keep(-1)).maximum(f64::from(f32::MIN));
    if let Some(sinks) = &sinks {
        most = most.maximum(sinks);
    }
    let weights = (scores - &most).exp();
    let mut sum = weights.sum(keep(-1));
    if let Some(sinks) = &sinks {
        sum = sum + (sinks - &most).exp();
    }
    let lse = (most + sum.log()).squeeze(-1);
    // A row without finite score has a sum of 0, any other one of at least 1.
    let probabilities = weights / sum.maximum(0.5);
    Ok([probabilities.matmul(v), lse, probabilities])
}

/// Gradients of [`compose_attention_with_probabilities`] by q, k, v, the bias and, if there are any, the sinks, given
/// those by its result (`dout`) and by its log-sum-exp (`dlse`).
///
/// # Errors
/// A scale that is not finite.
#[track_caller]
pub(crate) fn compose_attention_gradients(
    [q, k, v]: [&Array; 3],
    [lse, probabilities]: [&Array; 2],
    [dout, dlse]: [&Array; 2],
    options: &Options<'_>,
) -> Result<Vec<Array>> {
    let factor = score_scale(options.scale, q.shape()[3])?;
    let by_probabilities = dout.matmul(&v.swapaxes(-1, -2));
    // The sum of `out * dout`, computed without `out`, which then need not be kept for it.
    let delta = (probabilities * &by_probabilities).sum(keep(-1)) - dlse.expand_dims(-1);
    let by_scores = probabilities * (by_probabilities - &delta);
    let dq = by_scores.matmul(k) * factor;
    let dk = by_scores.swapaxes(-1, -2).matmul(q) * factor;
    let dv = probabilities.swapaxes(-1, -2).matmul(dout);
    let mut all = vec![dq, dk, dv, by_scores];
    if let Some(sinks) = options.sinks {
        let lse = ops::select(&lse.eq(f64::NEG_INFINITY), f64::INFINITY, lse);
        all.push(-((sinks.expand_dims(-1) - lse).exp() * delta.squeeze(-1)).sum([0, 2]));
    }
    Ok(all)
}

/// Softmax, or with `log` its logarithm, of rows of at least 2^16 elements, which are work for several programs;
/// `None`: a kernel has to compute it.
#[track_caller]
pub(crate) fn compose_softmax(x: &Array, log: bool) -> Option<Array> {
    let is_long = x.shape().last().is_some_and(|&n| n >= MIN_COMPOSED_SOFTMAX_ROW_ELEMENTS);
    if x.is_empty() || !is_long || !has_kernel_dtype(x) || !can_be_fused(&[x]) {
        return None;
    }
    let wide = x.cast(DType::F32);
    Some(if log { wide.log_softmax(-1) } else { wide.softmax(-1) }.cast(x.dtype()))
}

/// RMS norm, or layer norm with a shift `beta`, of rows of up to 2^19 elements in all or of more than 2^17 each;
/// `None`: a kernel has to compute it.
pub(crate) fn compose_norm(x: &Array, gamma: &Array, beta: Option<&Array>, epsilon: f32) -> Option<Array> {
    let operands = [x, gamma, beta.unwrap_or(gamma)];
    let is_alike = has_kernel_dtype(x) && operands.iter().all(|operand| operand.dtype() == x.dtype());
    let is_long = is_alike && has_long_rows(x) && can_be_fused(&operands);
    if x.is_empty() || !(is_long || is_composed_faster(&operands, x.len() <= MAX_COMPOSED_NORM_ELEMENTS)) {
        return None;
    }
    let [wide, gamma] = [x, gamma].map(|operand| operand.cast(DType::F32));
    let beta = beta.map(|beta| beta.cast(DType::F32));
    let centred = if beta.is_some() { &wide - wide.mean(keep(-1)) } else { wide };
    let variance = (&centred * &centred).mean(keep(-1));
    let scaled = centred * (variance + f64::from(epsilon)).rsqrt() * gamma;
    Some(beta.map_or_else(|| scaled.clone(), |beta| &scaled + beta).cast(x.dtype()))
}

/// Loss and log-sum-exp of rows `x` with labels `[n, 1]`, if there are up to 2^14 logits `x wᵀ`; rows with the label
/// `ignore` have loss 0. `None`: a kernel has to compute them.
pub(crate) fn compose_cross_entropy(x: &Array, w: &Array, labels: &Array, ignore: i32) -> Option<[Array; 2]> {
    let classes = w.shape()[0];
    let is_small = labels.dtype() == DType::I32 && labels.len() * classes <= MAX_COMPOSED_LOGITS;
    if labels.is_empty() || !is_composed_faster(&[x, w], is_small) {
        return None;
    }
    let (logits, labels) = (x.matmul(&w.t()), labels.squeeze(-1));
    let lse = logits.logsumexp(-1);
    let known = labels.clip(0, classes as i64 - 1);
    let of_label = logits.take_along_axis(&known.expand_dims(-1), -1).squeeze(-1);
    let is_class = labels.eq(&known);
    // The loss of a label that is not a class is NaN; its gradient is that of the log-sum-exp.
    let loss = &lse - ops::select(&is_class, &of_label, f64::NAN);
    Some([ops::select(&labels.eq(ignore), 0.0, &loss), lse.stop_gradient()])
}

/// Looks up the rows of a float table with these `ids` by an operation on arrays, at any size; an id out of range gives
/// NaN. `None` unless [`can_be_fused`] holds and the table has elements: a kernel has to look them up.
#[track_caller]
pub(crate) fn compose_row_lookup(table: &Array, ids: &Array) -> Option<Array> {
    let is_better = table.dtype().is_float() && can_be_fused(&[table, ids]);
    // `take` counts negative numbers from the end, so they are made out of range.
    let numbers = || ops::select(&ids.lt(0), table.shape()[0] as i64, ids);
    (is_better && !table.is_empty()).then(|| table.take(&numbers(), 0))
}

/// Rotary embedding of any number of elements `[.., positions, d]`: pairs an element of the first half of d with one
/// of the second and rotates the pair by the tables' angle, in the opposite direction if `inverse`; `None`: a kernel
/// has to do it.
#[track_caller]
pub(crate) fn compose_rotary(x: &Array, [cos, sin]: [&Array; 2], inverse: bool) -> Option<Array> {
    let [.., positions, d] = *x.shape() else { return None };
    let fits = d.is_multiple_of(2) && [cos, sin].iter().all(|table| table.shape() == [positions, d / 2]);
    if !fits || x.is_empty() || !is_composed_faster(&[x, cos, sin], true) {
        return None;
    }
    let halves = x.split(2, -1);
    let ([a, b], sin) = ([&halves[0], &halves[1]], if inverse { -sin } else { sin.clone() });
    Some(ops::concatenate(&[a * cos - b * &sin, a * &sin + b * cos], -1))
}

/// Sums the rows with equal `segment_ids`, one sum for each of `segment_count` segments, without the rows of segment
/// `ignored_id`; `None`: a kernel has to compute them.
///
/// # Errors
/// Device trouble.
#[track_caller]
pub(crate) fn compose_segment_sums(
    rows: &Array,
    segment_ids: &[i32],
    segment_count: usize,
    ignored_id: Option<i32>,
) -> Result<Option<Array>> {
    let client = rows.client();
    if !is_divided_among_cores(rows) || !calls_run() || rows.is_empty() || !rows.dtype().is_float() {
        return Ok(None);
    }
    let kept = segment_ids.iter().map(|&number| if Some(number) == ignored_id { segment_count as i32 } else { number });
    let numbers = client.array(&kept.collect::<Vec<_>>(), &[segment_ids.len()])?;
    Ok(Some(rows.segment_sum(&numbers, segment_count)))
}

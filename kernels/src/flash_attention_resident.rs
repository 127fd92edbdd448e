//! All gradients of flash attention in one pass: five products instead of seven, for processors with few threads and
//! much memory.
//!
//! A program has one head of keys. Blocks of keys stream past in the outer loop, queries in the inner one, and the
//! gradients of the whole head stay in scratch, so that scores and their gradients are computed once:
//!
//! ```text
//! for each head of the group, block j of keys, block i of queries:
//!     P', dx of the block        dv_j += P'ᵀ dout_i        dk_j += dxᵀ q_i        dq_i += dx k_j
//! ```
//! The formulas are those of [`crate::flash_attention_backward`]. Sums have one order: gradients are the same every
//! time.
use crate::attention_options::{Cotangents, Operands, Options, attention_extents};
use crate::attention_scores::{BackwardInputs, Rules, Segments};
use crate::element::Floating;
use pallas_rt::Target;
use pallas_rt::prelude::*;

/// Computes gradients by queries, keys and values, one head of keys per program. `R` and `C` are the numbers of queries
/// and keys rounded up to whole blocks.
#[kernel(
    grid = (B, G, cdiv(H, G), cdiv(L, BK), cdiv(S, BQ)),
    semantics = (parallel, parallel, arbitrary, arbitrary, arbitrary)
)]
pub fn flash_attention_resident<E: Floating>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, g, h, _, i| (b, g * (H / G) + h, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, _, j, _| (b, g, j, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, _, j, _| (b, g, j, 0), fill = 0.0)] v: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, g, h, _, i| (b, g * (H / G) + h, i, 0), fill = 0.0)] dout: In<E>,
    #[block([B, H, S] => [_, _, BQ], |b, g, h, _, i| (b, g * (H / G) + h, i), fill = f32::INFINITY)] lse: In<E::Acc>,
    #[block([B, H, S] => [_, _, BQ], |b, g, h, _, i| (b, g * (H / G) + h, i), fill = 0.0)] delta: In<E::Acc>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[prefetch([OE])] offsets: Prefetch<i32>,
    #[prefetch([SE])] seed: Prefetch<u32>,
    #[block([BB, BH, BS, BL] => [_, _, BQ, BK], |b, g, h, j, i| (b % BB, (g * (H / G) + h) % BH, i, j), fill = 0.0)]
    bias: In<E>,
    #[block([B, QS] => [_, BQ], |b, _, _, _, i| (b, i), fill = 0.0)] query_segments: In<i32>,
    #[block([B, KS] => [_, BK], |b, _, _, j, _| (b, j), fill = 0.0)] key_segments: In<i32>,
    #[prefetch([B, QT, QE])] query_spans: Prefetch<i32>,
    #[prefetch([B, KT, KE])] key_spans: Prefetch<i32>,
    #[block([B, H, S, D] => [_, _, R, D], |b, g, h, _, _| (b, g * (H / G) + h, 0, 0))] dq: Out<E>,
    #[block([B, G, L, D] => [_, _, C, D], |b, g, _, _, _| (b, g, 0, 0))] dk: Out<E>,
    #[block([B, G, L, D] => [_, _, C, D], |b, g, _, _, _| (b, g, 0, 0))] dv: Out<E>,
    #[scratch([R, D])] queries: Scratch<E::Acc>,
    #[scratch([C, D])] keys: Scratch<E::Acc>,
    #[scratch([C, D])] values: Scratch<E::Acc>,
    scale: f32,
    #[fixed] rules: Rules,
    #[dim] BQ: usize,
    #[dim] BK: usize,
    #[dim] R: usize,
    #[dim] C: usize,
) {
    let step = program_id(3) * num_programs(4) + program_id(4);
    if step == 0 {
        queries.fill(0.0);
        if program_id(2) == 0 {
            keys.fill(0.0);
            values.fill(0.0);
        }
    }
    let at = [program_id(0), program_id(4), program_id(3)];
    let segments = Segments { numbers: [query_segments, key_segments], spans: [query_spans, key_spans] };
    let block = rules.block([BQ, BK], at, [S, L], [lengths, offsets], segments);
    if block.has_live_scores() {
        let inputs =
            BackwardInputs { rules, matrices: [q, k, v, dout], rows: [lse, delta], scale: scale.cast::<E::Acc>() };
        let head = program_id(1) * (H / G) + program_id(2);
        let options = [block.load_bias(bias), block.dropout_factors(seed, program_id(0) * H + head)];
        let (own, theirs) = ((ds(block.row, BQ), ..), (ds(block.key, BK), ..));
        let (dq, dk, dv) = (queries.at(own), keys.at(theirs), values.at(theirs));
        if block.is_fully_seen() {
            let back = inputs.backward_of_block(options, None, &|x| x);
            dv.store(dv.load() + back.dv());
            dk.store(dk.load() + back.dk());
            dq.store(dq.load() + back.dq());
        } else {
            let clean = |[q, k, dout]: [_; 3]| {
                [block.zero_padding_queries(q), block.zero_unseen_keys(k), block.zero_padding_queries(dout)]
            };
            let back = inputs.backward_of_block(options, Some(block.live_mask()), &clean);
            dv.store(dv.load() + back.dv());
            dk.store(dk.load() + back.dk());
            dq.store(dq.load() + back.dq());
        }
    }
    if step == num_programs(3) * num_programs(4) - 1 {
        dq.store((queries.load() * scale.cast::<E::Acc>()).cast::<E>());
        if program_id(2) == num_programs(2) - 1 {
            dk.store((keys.load() * scale.cast::<E::Acc>()).cast::<E>());
            dv.store(values.load().cast::<E>());
        }
    }
}

/// Computes what [`flash_attention_resident`] does, and the gradient by a bias that each head of queries has for
/// itself: the gradient by its scores, of which each step writes a block.
#[kernel(
    grid = (B, G, cdiv(H, G), cdiv(L, BK), cdiv(S, BQ)),
    semantics = (parallel, parallel, arbitrary, arbitrary, arbitrary)
)]
pub fn flash_attention_resident_bias<E: Floating>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, g, h, _, i| (b, g * (H / G) + h, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, _, j, _| (b, g, j, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, _, j, _| (b, g, j, 0), fill = 0.0)] v: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, g, h, _, i| (b, g * (H / G) + h, i, 0), fill = 0.0)] dout: In<E>,
    #[block([B, H, S] => [_, _, BQ], |b, g, h, _, i| (b, g * (H / G) + h, i), fill = f32::INFINITY)] lse: In<E::Acc>,
    #[block([B, H, S] => [_, _, BQ], |b, g, h, _, i| (b, g * (H / G) + h, i), fill = 0.0)] delta: In<E::Acc>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[prefetch([OE])] offsets: Prefetch<i32>,
    #[prefetch([SE])] seed: Prefetch<u32>,
    #[block([BB, BH, BS, BL] => [_, _, BQ, BK], |b, g, h, j, i| (b % BB, (g * (H / G) + h) % BH, i, j), fill = 0.0)]
    bias: In<E>,
    #[block([B, QS] => [_, BQ], |b, _, _, _, i| (b, i), fill = 0.0)] query_segments: In<i32>,
    #[block([B, KS] => [_, BK], |b, _, _, j, _| (b, j), fill = 0.0)] key_segments: In<i32>,
    #[prefetch([B, QT, QE])] query_spans: Prefetch<i32>,
    #[prefetch([B, KT, KE])] key_spans: Prefetch<i32>,
    #[block([B, H, S, D] => [_, _, R, D], |b, g, h, _, _| (b, g * (H / G) + h, 0, 0))] dq: Out<E>,
    #[block([B, G, L, D] => [_, _, C, D], |b, g, _, _, _| (b, g, 0, 0))] dk: Out<E>,
    #[block([B, G, L, D] => [_, _, C, D], |b, g, _, _, _| (b, g, 0, 0))] dv: Out<E>,
    #[block([B, H, S, L] => [_, _, BQ, BK], |b, g, h, j, i| (b, g * (H / G) + h, i, j))] dbias: Out<E>,
    #[scratch([R, D])] queries: Scratch<E::Acc>,
    #[scratch([C, D])] keys: Scratch<E::Acc>,
    #[scratch([C, D])] values: Scratch<E::Acc>,
    scale: f32,
    #[fixed] rules: Rules,
    #[dim] BQ: usize,
    #[dim] BK: usize,
    #[dim] R: usize,
    #[dim] C: usize,
) {
    let step = program_id(3) * num_programs(4) + program_id(4);
    if step == 0 {
        queries.fill(0.0);
        if program_id(2) == 0 {
            keys.fill(0.0);
            values.fill(0.0);
        }
    }
    let at = [program_id(0), program_id(4), program_id(3)];
    let segments = Segments { numbers: [query_segments, key_segments], spans: [query_spans, key_spans] };
    let block = rules.block([BQ, BK], at, [S, L], [lengths, offsets], segments);
    if block.has_live_scores() {
        let inputs =
            BackwardInputs { rules, matrices: [q, k, v, dout], rows: [lse, delta], scale: scale.cast::<E::Acc>() };
        let head = program_id(1) * (H / G) + program_id(2);
        let options = [block.load_bias(bias), block.dropout_factors(seed, program_id(0) * H + head)];
        let (own, theirs) = ((ds(block.row, BQ), ..), (ds(block.key, BK), ..));
        let (dq, dk, dv) = (queries.at(own), keys.at(theirs), values.at(theirs));
        if block.is_fully_seen() {
            let back = inputs.backward_of_block(options, None, &|x| x);
            dv.store(dv.load() + back.dv());
            dk.store(dk.load() + back.dk());
            dq.store(dq.load() + back.dq());
            dbias.store(back.by_scores.cast::<E>());
        } else {
            let clean = |[q, k, dout]: [_; 3]| {
                [block.zero_padding_queries(q), block.zero_unseen_keys(k), block.zero_padding_queries(dout)]
            };
            let back = inputs.backward_of_block(options, Some(block.live_mask()), &clean);
            dv.store(dv.load() + back.dv());
            dk.store(dk.load() + back.dk());
            dq.store(dq.load() + back.dq());
            dbias.store(back.by_scores.cast::<E>());
        }
    }
    if !block.has_live_scores() {
        dbias.fill(0.0);
    }
    if step == num_programs(3) * num_programs(4) - 1 {
        dq.store((queries.load() * scale.cast::<E::Acc>()).cast::<E>());
        if program_id(2) == num_programs(2) - 1 {
            dk.store((keys.load() * scale.cast::<E::Acc>()).cast::<E>());
            dv.store(values.load().cast::<E>());
        }
    }
}

/// Maximum number of bytes of the sums that one program keeps; if they are larger, two kernels compute the gradients
/// separately.
const MAX_RESIDENT_BYTES: usize = 64 << 20;

/// Returns true if five products in one program per head of keys take less time than seven products spread over all
/// cores; false where the number of cores is unknown (GPUs).
pub(crate) fn is_resident_faster(
    target: &Target,
    [batch, .., queries, d]: [usize; 4],
    [_, key_heads, keys, _]: [usize; 4],
) -> bool {
    let Some(cores) = target.cores else { return false };
    let programs = batch * key_heads;
    let rounds = programs.div_ceil(cores);
    5 * rounds * cores <= 7 * programs
        && (queries + 2 * keys).saturating_mul(d * size_of::<f32>()) <= MAX_RESIDENT_BYTES
}

/// [`crate::flash_attention_backward::flash_attention_backward`] of elements `E`, in one pass with blocks of `[bq, bk]`
/// queries and keys.
///
/// # Errors
/// As there.
#[track_caller]
pub fn resident_gradients<'a, E: Floating>(
    [q, k, v]: [&Array; 3],
    [out, lse]: [&Array; 2],
    by: impl Into<Cotangents<'a>>,
    options: &Options<'_>,
    [bq, bk]: [usize; 2],
) -> Result<(Array, Array, Array)> {
    let by = by.into();
    let operands = &options.operands(q, k)?;
    let Operands { lengths, offsets, bias, segments: [own, theirs], scale, seed, rules, .. } = operands;
    let [queries, keys] = &operands.spans([bq, bk])?;
    let ([.., s, _], [.., l, _]) = (attention_extents("q", q)?, attention_extents("k", k)?);
    let (r, c) = (s.max(1).next_multiple_of(bq), l.max(1).next_multiple_of(bk));
    let delta = &by.delta::<E>(out, bq)?;
    flash_attention_resident::<E>(
        q, k, v, by.out, lse, delta, lengths, offsets, seed, bias, own, theirs, queries, keys, *scale, *rules, bq, bk,
        r, c,
    )
}

/// [`resident_gradients`] that also returns the gradient by [`Options::bias`], of which each head of queries has its
/// own.
///
/// # Errors
/// As there.
#[track_caller]
pub fn resident_gradients_with_bias<'a, E: Floating>(
    [q, k, v]: [&Array; 3],
    [out, lse]: [&Array; 2],
    by: impl Into<Cotangents<'a>>,
    options: &Options<'_>,
    [bq, bk]: [usize; 2],
) -> Result<(Array, Array, Array, Array)> {
    let by = by.into();
    let operands = &options.operands(q, k)?;
    let Operands { lengths, offsets, bias, segments: [own, theirs], scale, seed, rules, .. } = operands;
    let [queries, keys] = &operands.spans([bq, bk])?;
    let ([.., s, _], [.., l, _]) = (attention_extents("q", q)?, attention_extents("k", k)?);
    let (r, c) = (s.max(1).next_multiple_of(bq), l.max(1).next_multiple_of(bk));
    let delta = &by.delta::<E>(out, bq)?;
    flash_attention_resident_bias::<E>(
        q, k, v, by.out, lse, delta, lengths, offsets, seed, bias, own, theirs, queries, keys, *scale, *rules, bq, bk,
        r, c,
    )
}

//! Attention whose keys are one block, and its gradients where the queries are one block, too: nothing streams past, so
//! a program for few positions takes few steps.
//!
//! ```text
//! P = softmax(s)      out = P v
//! dv = Pᵀ dout        ds = P ∘ (dout vᵀ - Σ out ∘ dout + dlse)        dq = ds k · scale        dk = dsᵀ q · scale
//! ```
//! Scores are those of [`crate::attention_scores`], with causal masks, windows and a soft-cap.
use crate::attention_options::{Operands, Options};
use crate::attention_scores::{Block, Rules};
use crate::element::{Floating, Wide};
use pallas_rt::Target;
use pallas_rt::launch::launch_parts;
use pallas_rt::prelude::*;

/// Maximum number of keys of a block that a program takes at once; it stays in a core's second-level cache.
pub(crate) const MAX_WHOLE_KEYS: usize = 128;
/// Maximum number of elements of a block of keys.
const MAX_WHOLE_KEY_ELEMENTS: usize = 1 << 14;

/// The rules of a call whose keys fit one block and whose options are neither arrays nor random; `None` for all other
/// calls, and where the number of cores is unknown (GPUs).
pub(crate) fn whole_keys_rules(
    target: &Target,
    [keys, d]: [usize; 2],
    options: &Options<'_>,
    operands: &Operands,
) -> Option<Rules> {
    let is_small = (1..=MAX_WHOLE_KEYS).contains(&keys) && keys * d <= MAX_WHOLE_KEY_ELEMENTS;
    let Rules { offsets, segments, bias, sinks, dropout, .. } = operands.rules;
    let is_plain = options.lengths.is_none() && !offsets && !segments && !bias && !sinks && dropout.is_none();
    (target.cores.is_some() && is_small && is_plain).then_some(operands.rules)
}

/// The block of `size = [queries, keys]` scores that begins at query `first_query`, over all keys.
fn whole_keys_block(rules: Rules, size: [usize; 2], first_query: Scalar<i32>, query_count: Scalar<i32>) -> Block {
    let length = scalar(size[1] as i32);
    Block {
        rules,
        size,
        row: first_query,
        position: if rules.from_end { first_query + (length - query_count) } else { first_query },
        queries: query_count,
        key: scalar(0),
        length,
        segments: None,
        spans: None,
    }
}

/// Returns true if the rules hide keys from queries by their positions, as a causal mask or a window does.
fn has_position_mask(rules: Rules) -> bool {
    rules.left.is_some() || rules.right.is_some()
}

/// Computes scores from products of queries and keys, -inf where a query does not see a key, and the tanh of a
/// soft-cap.
fn masked_scores<A: Wide>(products: Tile<A>, block: Block) -> (Tile<A>, Option<Tile<A>>) {
    let (scores, slope) = block.rules.scores(products, None);
    match has_position_mask(block.rules) {
        true => (select(live_mask(block), scores, f32::NEG_INFINITY), slope),
        false => (scores, slope),
    }
}

/// Mask that is true where a query sees a key, equal for all heads.
fn live_mask(block: Block) -> Tile<bool> {
    block.live_mask().reshape([1, 1, block.size[0], block.size[1]])
}

/// Sets keys or values of some heads to 0 where no query sees them.
fn zero_unseen_rows<A: Wide>(rows: Tile<A>, block: Block) -> Tile<A> {
    if !has_position_mask(block.rules) {
        return rows;
    }
    let seen = block.zero_unseen_keys(full::<A>([block.size[1], 1], 1.0)).ne(0.0);
    select(seen.reshape([1, 1, block.size[1], 1]), rows, 0.0)
}

/// Batch axes of products: batch elements and heads, the first axes of both operands.
const HEAD_BATCH_AXES: &[(usize, usize)] = &[(0, 0), (1, 1)];

/// Maximum number of multiply-adds of a program with several heads.
const MAX_PROGRAM_MULTIPLY_ADDS: usize = 1 << 18;
/// Maximum number of elements of the tiles of a program with several heads.
const MAX_TILE_ELEMENTS: usize = 1 << 13;

/// Numbers of batch elements and of heads per program: as many as make it worth its overhead and leave programs for
/// each core. A program has a single head if heads of queries share keys, or if several devices divide them.
pub(crate) fn heads_per_program(
    target: &Target,
    [batch, heads, queries, d]: [usize; 4],
    [key_heads, keys]: [usize; 2],
) -> [usize; 2] {
    if key_heads != heads || launch_parts() > 1 {
        return [1, 1];
    }
    let most = (MAX_PROGRAM_MULTIPLY_ADDS / (queries * keys * d).max(1))
        .min(MAX_TILE_ELEMENTS / (queries.max(keys) * keys.max(d)).max(1));
    let all = batch * heads;
    // If all heads together are little work, they are one program: giving some to another thread would take longer.
    let cores = if all <= most { 1 } else { target.cores.unwrap_or(1) };
    let most = most.min(all / cores).max(1);
    let part = |extent: usize, most: usize| {
        (1..=most.min(extent).max(1)).rev().find(|part| extent.is_multiple_of(*part)).unwrap_or(1)
    };
    let own = part(heads, most);
    [if own == heads { part(batch, most / own) } else { 1 }, own]
}

/// Computes results and log-sum-exps of a block of queries of some heads. Groups of query heads may share a head of
/// keys if a program has one head.
#[kernel(grid = (cdiv(B, BB), cdiv(H, BH), cdiv(S, BQ)))]
pub fn flash_attention_whole<E: Floating>(
    #[block([B, H, S, D] => [BB, BH, BQ, D], |b, h, i| (b, h, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [BB, BH, L, D], |b, h, _| (b, h / (H / G), 0, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [BB, BH, L, D], |b, h, _| (b, h / (H / G), 0, 0), fill = 0.0)] v: In<E>,
    #[block([B, H, S, D] => [BB, BH, BQ, D], |b, h, i| (b, h, i, 0))] out: Out<E>,
    #[block([B, H, S] => [BB, BH, BQ], |b, h, i| (b, h, i))] lse: Out<E::Acc>,
    scale: f32,
    #[fixed] rules: Rules,
    #[dim] BB: usize,
    #[dim] BH: usize,
    #[dim] BQ: usize,
) {
    let block = whole_keys_block(rules, [BQ, L], program_id(2) * BQ, S);
    let [q, k, v] = [q, k, v].map(|x| x.load().cast::<E::Acc>());
    let products = dot_general(q, k, &[(3, 3)], HEAD_BATCH_AXES) * scale.cast::<E::Acc>();
    let (scores, _) = masked_scores(products, block);
    let m = scores.max(3);
    // A row without live key has weights of 0.
    let m = select(m.eq(f32::NEG_INFINITY), 0.0, m);
    let p = (scores - m).exp();
    let total = p.sum(3);
    let dead = total.eq(0.0);
    out.store(select(dead, 0.0, dot(p, zero_unseen_rows(v, block)) / total).cast::<E>());
    lse.store(select(dead, f32::NEG_INFINITY, m + total.log()).reshape([BB, BH, BQ]));
}

/// Computes gradients by queries, keys and values of some heads, each of which has its own keys.
#[kernel(grid = (cdiv(B, BB), cdiv(H, BH)))]
pub fn flash_attention_whole_gradients<E: Floating>(
    #[block([B, H, S, D] => [BB, BH, S, D], |b, h| (b, h, 0, 0))] q: In<E>,
    #[block([B, H, L, D] => [BB, BH, L, D], |b, h| (b, h, 0, 0))] k: In<E>,
    #[block([B, H, L, D] => [BB, BH, L, D], |b, h| (b, h, 0, 0))] v: In<E>,
    #[block([B, H, S, D] => [BB, BH, S, D], |b, h| (b, h, 0, 0))] out: In<E>,
    #[block([B, H, S] => [BB, BH, S], |b, h| (b, h, 0))] lse: In<E::Acc>,
    #[block([B, H, S, D] => [BB, BH, S, D], |b, h| (b, h, 0, 0))] dout: In<E>,
    #[block([B, H, S] => [BB, BH, S], |b, h| (b, h, 0))] dlse: In<E::Acc>,
    #[block([B, H, S, D] => [BB, BH, S, D], |b, h| (b, h, 0, 0))] dq: Out<E>,
    #[block([B, H, L, D] => [BB, BH, L, D], |b, h| (b, h, 0, 0))] dk: Out<E>,
    #[block([B, H, L, D] => [BB, BH, L, D], |b, h| (b, h, 0, 0))] dv: Out<E>,
    scale: f32,
    #[fixed] rules: Rules,
    #[fixed] by_lse: bool,
    #[dim] BB: usize,
    #[dim] BH: usize,
) {
    let block = whole_keys_block(rules, [S, L], scalar(0), scalar(S as i32));
    let product = |a, b, along| dot_general(a, b, &[along], HEAD_BATCH_AXES);
    let [q, k, v, dout] = [q, k, v, dout].map(|x| x.load().cast::<E::Acc>());
    let (k, scale) = (zero_unseen_rows(k, block), scale.cast::<E::Acc>());
    let (scores, slope) = masked_scores(product(q, k, (3, 3)) * scale, block);
    let lse = lse.load().expand(3);
    // A row without finite score has no gradient.
    let p = (scores - select(lse.eq(f32::NEG_INFINITY), f32::INFINITY, lse)).exp();
    dv.store(product(p, dout, (2, 2)).cast::<E>());
    let along = (out.load().cast::<E::Acc>() * dout).sum(3);
    let delta = if by_lse { along - dlse.load().expand(3) } else { along };
    let by_scores = p * (product(dout, zero_unseen_rows(v, block), (3, 3)) - delta);
    let mut by_products = rules.scores_backward(by_scores, slope) * scale;
    if has_position_mask(rules) {
        by_products = select(live_mask(block), by_products, 0.0);
    }
    dq.store(product(by_products, k, (3, 2)).cast::<E>());
    dk.store(product(by_products, q, (2, 2)).cast::<E>());
}

//! All gradients of flash attention in one pass: five products instead of seven, for processors with few threads and much
//! memory.
//!
//! A program has one head of keys. Blocks of keys stream past in the outer loop, queries in the inner one, and the gradients
//! of the whole head stay in scratch, so that scores and their gradients are computed once:
//!
//! ```text
//! for each head of the group, block j of keys, block i of queries:
//!     P', dx of the block        dv_j += P'ᵀ dout_i        dk_j += dxᵀ q_i        dq_i += dx k_j
//! ```
//! The formulas are those of [`crate::flash_attention_backward`]. Sums have one order: gradients are the same every time.
use crate::attention_options::{Operands, Options, axes};
use crate::attention_scores::{Block, Rules, Wide};
use crate::flash_attention_backward::flash_attention_delta;
use pallas_rt::prelude::*;

/// Where a program gathers gradients: all queries of a head, all keys, all values.
#[derive(Clone, Copy)]
struct Sums<A> {
    queries: Scratch<A>,
    keys: Scratch<A>,
    values: Scratch<A>,
}

/// The operands of a block: queries, keys, values and the gradient by the result; log-sum-exp and δ of queries.
#[derive(Clone, Copy)]
struct Inputs<E, A> {
    matrices: [In<E>; 4],
    rows: [In<A>; 2],
}

impl<A: Wide> Sums<A> {
    /// Adds what a block of scores gives; `live` and `options` as for [`Block::back`].
    fn add<E: Real>(
        self,
        (block, row): (Block, Scalar<i32>),
        inputs: Inputs<E, A>,
        scale: Scalar<A>,
        options: [Option<Tile<A>>; 2],
        live: Option<Tile<bool>>,
    ) {
        let [q, k, v, dout] = inputs.matrices.map(|x| x.load().cast::<A>());
        let k = if live.is_some() { block.seen(k) } else { k };
        let rows = inputs.rows.map(|x| x.load().reshape([block.size[0], 1]));
        let back = block.back([q, k, v, dout], rows, scale, options, live);
        let (queries, keys) = ((ds(row, block.size[0]), ..), (ds(block.key, block.size[1]), ..));
        let (dq, dk, dv) = (self.queries.at(queries), self.keys.at(keys), self.values.at(keys));
        dv.store(dv.load() + dot(back.kept.t(), dout));
        dk.store(dk.load() + dot(back.by_products.t(), q));
        dq.store(dq.load() + dot(back.by_products, k));
    }
}

/// The gradients by queries, keys and values, one head of keys a program. `R` and `C` are the numbers of queries and keys in
/// whole blocks.
#[kernel(
    grid = (B, G, cdiv(H, G), cdiv(L, BK), cdiv(S, BQ)),
    semantics = (parallel, parallel, arbitrary, arbitrary, arbitrary)
)]
pub fn flash_attention_resident<E: Real, A: Wide, const BQ: usize, const BK: usize>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, g, h, _, i| (b, g * (H / G) + h, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, _, j, _| (b, g, j, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, _, j, _| (b, g, j, 0), fill = 0.0)] v: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, g, h, _, i| (b, g * (H / G) + h, i, 0), fill = 0.0)] dout: In<E>,
    #[block([B, H, S] => [_, _, BQ], |b, g, h, _, i| (b, g * (H / G) + h, i), fill = f32::INFINITY)] lse: In<A>,
    #[block([B, H, S] => [_, _, BQ], |b, g, h, _, i| (b, g * (H / G) + h, i), fill = 0.0)] delta: In<A>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[block([BB, BH, BS, BL] => [_, _, BQ, BK], |b, g, h, j, i| (b % BB, (g * (H / G) + h) % BH, i, j), fill = 0.0)]
    bias: In<E>,
    #[block([B, QS] => [_, BQ], |b, _, _, _, i| (b, i), fill = 0.0)] query_segments: In<i32>,
    #[block([B, KS] => [_, BK], |b, _, _, j, _| (b, j), fill = 0.0)] key_segments: In<i32>,
    #[block([B, H, S, D] => [_, _, R, D], |b, g, h, _, _| (b, g * (H / G) + h, 0, 0))] dq: Out<E>,
    #[block([B, G, L, D] => [_, _, C, D], |b, g, _, _, _| (b, g, 0, 0))] dk: Out<E>,
    #[block([B, G, L, D] => [_, _, C, D], |b, g, _, _, _| (b, g, 0, 0))] dv: Out<E>,
    #[scratch([R, D])] queries: Scratch<A>,
    #[scratch([C, D])] keys: Scratch<A>,
    #[scratch([C, D])] values: Scratch<A>,
    scale: f32,
    seed_high: u32,
    seed_low: u32,
    #[fixed] rules: Rules,
    #[dim] R: usize,
    #[dim] C: usize,
) {
    let (row, key) = (program_id(4) * BQ, program_id(3) * BK);
    let step = program_id(3) * num_programs(4) + program_id(4);
    if step == 0 {
        queries.fill(0.0);
        if program_id(2) == 0 {
            keys.fill(0.0);
            values.fill(0.0);
        }
    }
    let length = minimum(lengths.at(program_id(0)), L);
    let position = row + rules.first_position(S, length);
    let block = Block { rules, size: [BQ, BK], position, rows: S - row, key, length };
    if block.is_live() {
        let inputs = Inputs { matrices: [q, k, v, dout], rows: [lse, delta] };
        let head = program_id(1) * (H / G) + program_id(2);
        let kept = block.kept([seed_high, seed_low], (program_id(0) * H + head) * S + row);
        let options = [block.bias(bias), kept];
        let sums = Sums { queries, keys, values };
        if block.is_whole() {
            sums.add((block, row), inputs, scale.cast::<A>(), options, None);
        } else {
            let live = block.live(Some([query_segments, key_segments]));
            sums.add((block, row), inputs, scale.cast::<A>(), options, Some(live));
        }
    }
    if step == num_programs(3) * num_programs(4) - 1 {
        dq.store((queries.load() * scale.cast::<A>()).cast::<E>());
        if program_id(2) == num_programs(2) - 1 {
            dk.store((keys.load() * scale.cast::<A>()).cast::<E>());
            dv.store(values.load().cast::<E>());
        }
    }
}

/// Most bytes of sums that a program keeps.
const RESIDENT: usize = 64 << 20;

/// Whether five products, a program for each head of keys, take less time than seven spread over all threads.
pub(crate) fn is_worth_it([batch, .., queries, d]: [usize; 4], [_, key_heads, keys, _]: [usize; 4]) -> bool {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let programs = batch * key_heads;
    let rounds = programs.div_ceil(threads);
    5 * rounds * threads <= 7 * programs && (queries + 2 * keys).saturating_mul(d * size_of::<f32>()) <= RESIDENT
}

/// [`crate::flash_attention_backward::flash_attention_backward`] of elements `E`, computed in `A`, in one pass with blocks of
/// `BQ` queries and `BK` keys.
///
/// # Errors
/// As there.
pub fn resident_gradients<E: Real, A: Wide, const BQ: usize, const BK: usize>(
    [q, k, v]: [&Array; 3],
    [out, lse]: [&Array; 2],
    dout: &Array,
    options: &Options<'_>,
) -> Result<(Array, Array, Array)> {
    let Operands { lengths, bias, segments: [own, theirs], scale, seed: [high, low], rules, .. } =
        &options.operands(q, k)?;
    let ([.., queries, _], [.., keys, _]) = (axes("q", q)?, axes("k", k)?);
    let (r, c) = (queries.max(1).next_multiple_of(BQ), keys.max(1).next_multiple_of(BK));
    let delta = &flash_attention_delta::<E, A, BQ>(out, dout)?;
    flash_attention_resident::<E, A, BQ, BK>(
        q, k, v, dout, lse, delta, lengths, bias, own, theirs, *scale, *high, *low, *rules, r, c,
    )
}

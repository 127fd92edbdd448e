//! Flash attention: `softmax(q kᵀ · scale) v` without the matrix of scores in memory.
//!
//! Per query row, with running maximum `m`, sum `l` and accumulator `a` over blocks of keys (Milakov & Gimelshein 2018;
//! Dao et al. 2022, Algorithm 1):
//!
//! ```text
//! m' = max(m, max_j s_j)   p_j = exp(s_j - m')   l' = l·exp(m - m') + Σ p_j   a' = a·exp(m - m') + Σ p_j v_j
//! out = a / l              lse = m + ln l
//! ```
use pallas_rt::prelude::*;

/// One tile of attention per program; keys and values stream past it.
#[kernel(grid = (B, H, cdiv(S, BQ), cdiv(L, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn flash_attention_blocks<const BQ: usize, const BK: usize>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0), fill = 0.0)] q: In<f32>,
    #[block([B, H, L, D] => [_, _, BK, D], |b, h, _, j| (b, h, j, 0), fill = 0.0)] k: In<f32>,
    #[block([B, H, L, D] => [_, _, BK, D], |b, h, _, j| (b, h, j, 0), fill = 0.0)] v: In<f32>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0))] out: Out<f32>,
    #[scratch([BQ, 1])] max: Scratch<f32>,
    #[scratch([BQ, 1])] sum: Scratch<f32>,
    #[scratch([BQ, D])] acc: Scratch<f32>,
    scale: f32,
) {
    let step = program_id(3);
    if step == 0 {
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        acc.fill(0.0);
    }
    let length = lengths.at(program_id(0));
    let start = step * BK;
    if start < length {
        let live = (iota::<i32>([1, BK], 1) + start).lt(length);
        let scores = select(live, dot(q.load(), k.load().t()) * scale, f32::NEG_INFINITY);
        let m = maximum(max.load(), scores.max(1));
        let (p, alpha) = ((scores - m).exp(), (max.load() - m).exp());
        sum.store(sum.load() * alpha + p.sum(1));
        acc.store(acc.load() * alpha + dot(p, v.load()));
        max.store(m);
    }
    if step == num_programs(3) - 1 {
        let total = sum.load();
        out.store(select(total.gt(0.0), acc.load() / total, 0.0));
    }
}

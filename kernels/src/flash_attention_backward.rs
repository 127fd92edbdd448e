//! Gradients of flash attention: the scores are computed anew, block by block, from q, k and the log-sum-exp.
//!
//! With `p = exp(q kᵀ·scale - lse)` (Dao et al. 2022, Algorithm 4; Dao 2023):
//!
//! ```text
//! δ_i = Σ_c dout_ic·out_ic       dv = pᵀ dout       ds = p ∘ (dout vᵀ - δ)·scale       dq = ds k       dk = dsᵀ q
//! ```
//! One kernel sums δ, one gathers dq while keys stream past, one dk and dv while the queries of all heads of a group do:
//! every element is summed by one program in one order, so gradients are the same every time. Everything but the operands
//! is f32. Blocks of keys that no row of a block of queries sees are skipped.
use crate::dispatch::floats;
use crate::flash_attention::{Causal, Options, full_lengths};
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

/// Inner products of the rows of `out` and its gradient.
#[kernel(grid = (B, H, cdiv(S, BQ)))]
pub fn flash_attention_delta<E: Float, const BQ: usize>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i| (b, h, i, 0))] out: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i| (b, h, i, 0))] dout: In<E>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i| (b, h, i))] delta: Out<f32>,
) {
    delta.store((out.load().cast::<f32>() * dout.load().cast::<f32>()).sum(1).reshape([BQ]));
}

/// Which keys of a block the rows of a block of queries see: see [`crate::flash_attention::flash_attention_blocks`].
#[derive(Clone, Copy)]
struct Mask {
    /// First query and key.
    row: Scalar<i32>,
    key: Scalar<i32>,
    /// How many keys are live, and how many queries there are.
    length: Scalar<i32>,
    queries: Scalar<i32>,
    causal: bool,
    from_end: bool,
}

impl Mask {
    fn diagonal(self) -> Scalar<i32> {
        if self.from_end { self.length - self.queries } else { scalar(0) }
    }
    /// Some of the rows see keys below.
    fn some<const BQ: usize>(self) -> Scalar<i32> {
        if !self.causal {
            return self.length;
        }
        minimum(self.length, minimum(self.row + BQ, self.queries) + self.diagonal())
    }
    fn live<const BQ: usize, const BK: usize>(self) -> Tile<bool> {
        let keys = iota::<i32>([1, BK], 1) + self.key;
        let live = keys.lt(self.length);
        if self.causal {
            live & keys.le(iota::<i32>([BQ, 1], 0) + (self.row + self.diagonal()))
        } else {
            live & full([BQ, 1], true)
        }
    }
}

/// Probabilities and the gradient by scores, from blocks of all operands.
fn gradients(
    [q, k, v, dout]: [Tile<f32>; 4],
    [lse, delta]: [Tile<f32>; 2],
    live: Tile<bool>,
    scale: Scalar<f32>,
) -> (Tile<f32>, Tile<f32>) {
    // A row without finite score has no gradient.
    let lse = select(lse.eq(f32::NEG_INFINITY), f32::INFINITY, lse);
    let p = select(live, (dot(q, k.t()) * scale - lse).exp(), 0.0);
    let ds = select(live, p * (dot(dout, v.t()) - delta) * scale, 0.0);
    (p, ds)
}

/// The gradient by queries: one tile of it per program; keys and values stream past.
#[kernel(grid = (B, H, cdiv(S, BQ), cdiv(L, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn flash_attention_dq<E: Float, const BQ: usize, const BK: usize>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, h, _, j| (b, h / (H / G), j, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, h, _, j| (b, h / (H / G), j, 0), fill = 0.0)] v: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0), fill = 0.0)] dout: In<E>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i, _| (b, h, i), fill = f32::INFINITY)] lse: In<f32>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i, _| (b, h, i), fill = 0.0)] delta: In<f32>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i, _| (b, h, i, 0))] dq: Out<E>,
    #[scratch([BQ, D])] acc: Scratch<f32>,
    scale: f32,
    #[fixed] causal: bool,
    #[fixed] from_end: bool,
) {
    if program_id(3) == 0 {
        acc.fill(0.0);
    }
    let (row, key) = (program_id(2) * BQ, program_id(3) * BK);
    let mask = Mask { row, key, length: minimum(lengths.at(program_id(0)), L), queries: S, causal, from_end };
    let some = mask.some::<BQ>();
    if key < some {
        // What lies behind the last key may be anything, NaN too, and 0 · NaN is NaN.
        let seen = (iota::<i32>([BK, 1], 0) + key).lt(some);
        let k = select(seen, k.load().cast::<f32>(), 0.0);
        let blocks = [q.load().cast::<f32>(), k, v.load().cast::<f32>(), dout.load().cast::<f32>()];
        let rows = [lse.load().reshape([BQ, 1]), delta.load().reshape([BQ, 1])];
        let (_, ds) = gradients(blocks, rows, mask.live::<BQ, BK>(), scale);
        acc.store(acc.load() + dot(ds, k));
    }
    if program_id(3) == num_programs(3) - 1 {
        dq.store(acc.load().cast::<E>());
    }
}

/// The gradients by keys and values: one tile of both per program; queries of all heads of a group stream past.
#[kernel(
    grid = (B, G, cdiv(L, BK), cdiv(H, G), cdiv(S, BQ)),
    semantics = (parallel, parallel, parallel, arbitrary, arbitrary)
)]
pub fn flash_attention_dkv<E: Float, const BQ: usize, const BK: usize>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, g, _, h, i| (b, g * (H / G) + h, i, 0), fill = 0.0)] q: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0), fill = 0.0)] k: In<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0), fill = 0.0)] v: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, g, _, h, i| (b, g * (H / G) + h, i, 0), fill = 0.0)] dout: In<E>,
    #[block([B, H, S] => [_, _, BQ], |b, g, _, h, i| (b, g * (H / G) + h, i), fill = f32::INFINITY)] lse: In<f32>,
    #[block([B, H, S] => [_, _, BQ], |b, g, _, h, i| (b, g * (H / G) + h, i), fill = 0.0)] delta: In<f32>,
    #[prefetch([B])] lengths: Prefetch<i32>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0))] dk: Out<E>,
    #[block([B, G, L, D] => [_, _, BK, D], |b, g, j, _, _| (b, g, j, 0))] dv: Out<E>,
    #[scratch([BK, D])] keys: Scratch<f32>,
    #[scratch([BK, D])] values: Scratch<f32>,
    scale: f32,
    #[fixed] causal: bool,
    #[fixed] from_end: bool,
) {
    let step = program_id(3) * num_programs(4) + program_id(4);
    if step == 0 {
        keys.fill(0.0);
        values.fill(0.0);
    }
    let (row, key) = (program_id(4) * BQ, program_id(2) * BK);
    let mask = Mask { row, key, length: minimum(lengths.at(program_id(0)), L), queries: S, causal, from_end };
    if key < mask.some::<BQ>() {
        let (q, dout) = (q.load().cast::<f32>(), dout.load().cast::<f32>());
        let blocks = [q, k.load().cast::<f32>(), v.load().cast::<f32>(), dout];
        let rows = [lse.load().reshape([BQ, 1]), delta.load().reshape([BQ, 1])];
        let (p, ds) = gradients(blocks, rows, mask.live::<BQ, BK>(), scale);
        values.store(values.load() + dot(p.t(), dout));
        keys.store(keys.load() + dot(ds.t(), q));
    }
    if step == num_programs(3) * num_programs(4) - 1 {
        dk.store(keys.load().cast::<E>());
        dv.store(values.load().cast::<E>());
    }
}

/// Queries and keys of a block that [`flash_attention_backward`] chooses.
fn block_sizes(device: DeviceKind) -> (usize, usize) {
    match device {
        // Workgroup memory is small, and threads are many.
        DeviceKind::Gpu => (16, 16),
        _ => (128, 128),
    }
}

/// Gradients by q, k and v of [`crate::flash_attention::flash_attention`] with the same options, from its result, its
/// log-sum-exp and the gradient by the result.
///
/// Where scores are -inf or a row has no live key, nothing flows back.
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
pub fn flash_attention_backward(
    [q, k, v]: [&Array; 3],
    [out, lse]: [&Array; 2],
    dout: &Array,
    options: &Options<'_>,
) -> Result<(Array, Array, Array)> {
    let lengths = full_lengths(q, k, options)?;
    let d = q.shape()[3];
    let scale = options.scale.unwrap_or(1.0 / (d as f32).sqrt());
    let (causal, from_end) = (options.causal != Causal::No, options.causal == Causal::FromEnd);
    macro_rules! call {
        ($E:ident $($BQ:literal $BK:literal),*) => {
            match block_sizes(q.client().kind()) {
                $(($BQ, $BK) => {
                    let delta = &flash_attention_delta::<$E, $BQ>(out, dout)?;
                    let dq = flash_attention_dq::<$E, $BQ, $BK>(
                        q, k, v, dout, lse, delta, &lengths, scale, causal, from_end)?;
                    let (dk, dv) = flash_attention_dkv::<$E, $BQ, $BK>(
                        q, k, v, dout, lse, delta, &lengths, scale, causal, from_end)?;
                    Ok((dq, dk, dv))
                })*
                other => unreachable!("no kernel was compiled for blocks of {other:?}"),
            }
        };
    }
    floats!("flash_attention_backward", q.dtype(), E => call!(E 16 16, 128 128))
}

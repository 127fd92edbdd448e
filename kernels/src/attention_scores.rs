//! Rules of attention: which keys a query sees, and how a score is changed; one description for every kernel of
//! attention, forward and backward.
//!
//! For a query at position p and key j, beginning with `s = scale · q kᵀ`:
//!
//! ```text
//! soft-cap    s = cap · tanh(s / cap)                                  Gemma 2 (Gemma Team 2024)
//! bias        s = s + bias_pj                                          T5 (Raffel et al. 2020), ALiBi (Press et al. 2022)
//! live        j < length                                               padded batches
//!             p - left <= j <= p + right                               causal: right = 0; windows: Longformer (Beltagy et al. 2020);
//!                                                                      with offsets, of parts of a sequence: Liu et al. 2023
//!             segment_p = segment_j, not below 0                       packed sequences, padding
//! sinks       P = exp(s) / (exp(sink) + Σ_live exp(s))                 gpt-oss (2025), after Xiao et al. 2024
//! dropout     P' = P / (1 - rate), or 0 with probability `rate`        Srivastava et al. 2014
//! ```
//! Dropout does not change the sum of the softmax. Which elements are dropped follows from the seed and the element's
//! coordinates alone ([`pallas_rt::threefry`]), so that forward and backward agree, whatever their blocks.
//!
//! [`Rules`] says which of these apply; it is a `#[fixed]` value, and an absent rule leaves no trace in the kernel.
//! [`Block`] is a block of the matrix of all scores, with its position there.
use crate::element::{Floating, Wide};
use pallas_rt::prelude::*;
use pallas_rt::threefry;

/// The keys that a query sees by its position; key lengths apply in addition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Causal {
    /// Every query sees all keys.
    #[default]
    No,
    /// Query i sees keys `j <= i`, even if there are more keys than queries, as with `is_causal` of PyTorch and JAX.
    FromStart,
    /// Query i sees keys `j <= i + keys - queries`, so the last query sees the last live key: for queries that continue
    /// a cache of keys. With more queries than keys the first ones see none.
    FromEnd,
}

/// The options of attention that a kernel is specialised for while it is traced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rules {
    /// Maximum distance of a visible key before the query; `None`: no limit.
    pub left: Option<i32>,
    /// Maximum distance of a visible key after the query; `None`: no limit.
    pub right: Option<i32>,
    /// True if the last query's position is that of the last live key; otherwise the first query's is that of the first
    /// key.
    pub from_end: bool,
    /// True if the positions of the first query and of the first key are given.
    pub offsets: bool,
    /// True if a query sees keys of its own segment only.
    pub segments: bool,
    /// True if a bias is added to the scores.
    pub bias: bool,
    /// True if each head has a sink: an extra score without a key.
    pub sinks: bool,
    /// The soft-cap, as the bits of an `f32`; `None`: no soft-cap.
    pub soft_cap: Option<u32>,
    /// Dropout threshold: a probability is dropped if its random 32-bit word is below; `None`: no dropout.
    pub dropout: Option<u32>,
    /// True if every block is masked, even one that all its queries see whole: for devices that execute both sides of a
    /// branch.
    pub one_way: bool,
}

impl Rules {
    /// Returns the position, counted in keys, of the first of `query_count` queries: 0, or `live_key_count -
    /// query_count` if the last query is at the last live key.
    pub fn first_query_position(self, query_count: Scalar<i32>, live_key_count: Scalar<i32>) -> Scalar<i32> {
        if self.from_end { live_key_count - query_count } else { scalar(0) }
    }
    /// Returns block `(i, j)` along queries and keys of batch element b. `lengths` are the live keys of each batch
    /// element; `offsets`, the positions of the first query and the first key, are read only if the rules have
    /// `offsets`.
    pub fn block(
        self,
        size: [usize; 2],
        [b, i, j]: [Scalar<i32>; 3],
        [queries, keys]: [Scalar<i32>; 2],
        [lengths, offsets]: [Prefetch<i32>; 2],
        segments: Segments,
    ) -> Block {
        let (row, key) = (i * size[0], j * size[1]);
        let length = minimum(lengths.at(b), keys);
        let first = match self.offsets {
            true => offsets.at(0) - offsets.at(1),
            false => self.first_query_position(queries, length),
        };
        let position = row + first;
        let span = |of: Prefetch<i32>, n: Scalar<i32>| [0, 1, 2].map(|end| of.at((b, n, end)));
        let spans = self.segments.then(|| [span(segments.spans[0], i), span(segments.spans[1], j)]);
        let segments = self.segments.then_some(segments.numbers);
        Block { rules: self, size, row, position, queries, key, length, segments, spans }
    }
    /// Applies soft-cap and bias to scaled products; also returns tanh of the soft-cap, which
    /// [`Rules::scores_backward`] needs.
    pub fn scores<A: Wide>(self, products: Tile<A>, bias: Option<Tile<A>>) -> (Tile<A>, Option<Tile<A>>) {
        let (mut scores, mut slope) = (products, None);
        if let Some(bits) = self.soft_cap {
            let cap = f32::from_bits(bits);
            let t = (products * (1.0 / f64::from(cap))).tanh();
            scores = t * cap;
            slope = Some(t);
        }
        (bias.map_or(scores, |bias| scores + bias), slope)
    }
    /// Returns the gradient by scaled products, given the gradient by scores and the tanh that [`Rules::scores`]
    /// returned; `None` without a soft-cap.
    pub fn scores_backward<A: Wide>(self, gradient: Tile<A>, soft_cap_tanh: Option<Tile<A>>) -> Tile<A> {
        // The derivative of cap·tanh(s/cap) is 1 - tanh².
        soft_cap_tanh.map_or(gradient, |t| gradient - gradient * t * t)
    }
    /// Factor of probabilities that dropout keeps: 1 / (1 - rate).
    fn dropout_factor(self) -> f64 {
        self.dropout.map_or(1.0, |below| 1.0 / (1.0 - f64::from(below) / 2f64.powi(32)))
    }
}

/// Segment numbers of queries and keys; kernels read them only if the rules have `segments`.
#[derive(Clone, Copy)]
pub struct Segments {
    /// Segment number of each query and of each key of the block; below 0: padding.
    pub numbers: [In<i32>; 2],
    /// Output of [`segment_spans`] for blocks of queries and for blocks of keys: `[batch, blocks, 3]`.
    pub spans: [Prefetch<i32>; 2],
}

/// Computes for each block of `BN` segment numbers of a row, `T` blocks per row, three numbers: the least and the
/// greatest segment without padding, and the least number including padding.
#[kernel(grid = (B, T))]
pub fn segment_spans(
    #[block([B, N] => [_, BN], |b, i| (b, i), fill = 0)] numbers: In<i32>,
    #[block([B, T, 3] => [_, _, 3], |b, i| (b, i, 0))] out: Out<i32>,
    #[dim] BN: usize,
    #[dim] T: usize,
) {
    let (x, inside) = (numbers.load(), numbers.valid(0));
    let real = inside & x.ge(0);
    let least = |of: Tile<bool>| select(of, x, i32::MAX).min(0);
    out.store(concat([least(real), select(real, x, i32::MIN).max(0), least(inside)], 0));
}

/// A block of the matrix of scores: its position, and what decides which of its scores are live.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// The options that apply.
    pub rules: Rules,
    /// Numbers of queries and keys of the block.
    pub size: [usize; 2],
    /// Index of its first query.
    pub row: Scalar<i32>,
    /// Position of its first query, counted in keys.
    pub position: Scalar<i32>,
    /// Number of all queries.
    pub queries: Scalar<i32>,
    /// Index of its first key.
    pub key: Scalar<i32>,
    /// Number of live keys.
    pub length: Scalar<i32>,
    /// Segment number of each query and each key of the block, if there are segments; below 0: padding.
    pub segments: Option<[In<i32>; 2]>,
    /// Segment ranges of the block's queries and keys: see [`segment_spans`].
    pub spans: Option<[[Scalar<i32>; 3]; 2]>,
}

impl Block {
    /// Range of keys that at least one query of the block sees, as its start and end.
    fn seen_key_range(self) -> [Scalar<i32>; 2] {
        let last = self.position + minimum(self.queries - self.row, self.size[0]) - 1;
        let begin = self.rules.left.map_or(scalar(0), |left| maximum(self.position - left, 0));
        let end = self.rules.right.map_or(self.length, |right| minimum(self.length, last + (right + 1)));
        [begin, end]
    }
    /// Returns true if some query of the block may see some key of it; if false, nothing need be loaded.
    ///
    /// Segments are compared by their least and greatest numbers: where these ascend without gaps, as in packed
    /// sequences, the answer is exact. Padding belongs to no segment.
    pub fn has_live_scores(self) -> Scalar<bool> {
        let [begin, end] = self.seen_key_range();
        let mut live = self.key.lt(end);
        if self.rules.left.is_some() {
            live = live & (self.key + self.size[1]).gt(begin) & begin.lt(end);
        }
        if let Some([own, theirs]) = self.spans {
            live = live & own[0].le(theirs[1]) & theirs[0].le(own[1]);
        }
        live
    }
    /// Returns true if every query of the block sees every key of it, so that no mask is needed.
    pub fn is_fully_seen(self) -> Scalar<bool> {
        if self.rules.one_way {
            return scalar(false);
        }
        let end = self.rules.right.map_or(self.length, |right| minimum(self.length, self.position + (right + 1)));
        let mut whole = (self.key + self.size[1]).le(end);
        if let Some(left) = self.rules.left {
            whole &= self.key.ge(self.position + (self.size[0] as i32 - 1 - left));
        }
        if let Some([own, theirs]) = self.spans {
            // Queries and keys all belong to the same segment, and none is padding.
            whole = whole & own[2].eq(theirs[1]) & theirs[2].eq(own[1]) & own[2].eq(own[1]);
        }
        whole
    }
    /// Indices of the block's keys, as a tile of rank 2 along `axis`.
    fn key_indices(self, axis: usize) -> Tile<i32> {
        let mut shape = [1, 1];
        shape[axis] = self.size[1];
        iota::<i32>(shape, axis) + self.key
    }
    /// Sets rows of keys or values `[keys, d]` to 0 where no query of the block sees the key: unused memory may hold
    /// NaN, and 0 · NaN is NaN.
    pub fn zero_unseen_keys<E: Real>(self, rows: Tile<E>) -> Tile<E> {
        let ([begin, end], keys) = (self.seen_key_range(), self.key_indices(0));
        let mut seen = keys.lt(end);
        if self.rules.left.is_some() {
            seen &= keys.ge(begin);
        }
        if let Some([_, theirs]) = self.segments {
            seen &= theirs.load().expand(1).ge(0);
        }
        select(seen, rows, 0.0)
    }
    /// Sets rows of queries, or of the gradient by their results, `[queries, d]`, to 0 for padding.
    pub fn zero_padding_queries<E: Real>(self, rows: Tile<E>) -> Tile<E> {
        self.segments.map_or(rows, |[own, _]| select(own.load().expand(1).ge(0), rows, 0.0))
    }
    /// Returns the mask `[queries, keys]` of the block, true where the query sees the key.
    pub fn live_mask(self) -> Tile<bool> {
        let [queries, keys] = self.size;
        let numbers = self.key_indices(1);
        let mut live = numbers.lt(self.length).broadcast([queries, keys]);
        let positions = iota::<i32>([queries, 1], 0) + self.position;
        if let Some(right) = self.rules.right {
            live &= numbers.le(if right == 0 { positions } else { positions + right });
        }
        if let Some(left) = self.rules.left {
            live &= numbers.ge(positions - left);
        }
        if let Some([own, theirs]) = self.segments {
            // Padding of queries becomes -1 and padding of keys -2, so that they are never equal.
            let (own, theirs) = (maximum(own.load(), -1), theirs.load());
            let theirs = select(theirs.ge(0), theirs, -2);
            live &= own.expand(1).eq(theirs.expand(0));
        }
        live
    }
    /// Loads the block's bias; `None` if the rules have none.
    pub fn load_bias<E: Floating>(self, bias: In<E>) -> Option<Tile<E::Acc>> {
        self.rules.bias.then(|| bias.load().cast::<E::Acc>())
    }
    /// Returns factors of the probabilities under dropout, `[queries, keys]`: 0 or 1 / (1 - rate); `None` without
    /// dropout. `head` is `b · heads + h`, the index among the heads of all batch elements; `seed` has the halves of
    /// the seed.
    pub fn dropout_factors<A: Wide>(self, seed: Prefetch<u32>, head: Scalar<i32>) -> Option<Tile<A>> {
        let below = self.rules.dropout?;
        let seed = [seed.at(0), seed.at(1)];
        let [queries, keys] = self.size;
        let row = head * self.queries + self.row;
        let rows = (iota::<i32>([queries, 1], 0) + row).cast::<u32>().broadcast([queries, keys]);
        let keys = self.key_indices(1).cast::<u32>().broadcast([queries, keys]);
        let kept = threefry::bits(seed, [rows, keys]).ge(below);
        Some(select(kept, full::<A>([1, 1], self.rules.dropout_factor()), 0.0))
    }
}

/// Computes `δ`, the inner product of each row of `out` with its gradient `dout`. With `by_lse` it subtracts `dlse`,
/// the gradient by the row's log-sum-exp: the derivative of that by a score is the probability, as in the term with
/// `δ`.
#[kernel(grid = (B, H, cdiv(S, BQ)))]
pub fn flash_attention_delta<E: Floating>(
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i| (b, h, i, 0))] out: In<E>,
    #[block([B, H, S, D] => [_, _, BQ, D], |b, h, i| (b, h, i, 0))] dout: In<E>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i| (b, h, i))] dlse: In<E::Acc>,
    #[block([B, H, S] => [_, _, BQ], |b, h, i| (b, h, i))] delta: Out<E::Acc>,
    #[fixed] by_lse: bool,
    #[dim] BQ: usize,
) {
    let along = (out.load().cast::<E::Acc>() * dout.load().cast::<E::Acc>()).sum(1).reshape([BQ]);
    delta.store(if by_lse { along - dlse.load() } else { along });
}

/// Operands of a gradient kernel for one block of scores.
#[derive(Clone, Copy)]
pub(crate) struct BackwardInputs<E: Floating> {
    pub(crate) rules: Rules,
    /// Blocks of queries, keys, values, and of the gradient by the result.
    pub(crate) matrices: [In<E>; 4],
    /// For each query the log-sum-exp, and the inner product `δ` of result and gradient.
    pub(crate) rows: [In<E::Acc>; 2],
    pub(crate) scale: Scalar<E::Acc>,
}

/// Sets rows of queries, keys and the gradient by the result that no live score uses to 0. A function object and not a
/// type parameter of [`BackwardInputs::backward_of_block`], which would be compiled for every block size.
type ZeroUnusedRows<'a, A> = &'a dyn Fn([Tile<A>; 3]) -> [Tile<A>; 3];

impl<E: Floating> BackwardInputs<E> {
    /// Computes the backward pass of a block of scores, with the bias and the dropout factors of the forward pass.
    /// `live_mask` is the mask of scores, `None` if all are live; `zero_unused_rows` zeroes rows of queries, keys and
    /// the gradient by the result that no live score uses, since they may hold NaN, and 0 · NaN is NaN.
    ///
    /// With P the probabilities and F the dropout factors: `dS = P ∘ (F ∘ dout vᵀ - δ)` (Dao et al. 2022, Algorithm 4).
    pub(crate) fn backward_of_block(
        self,
        [bias, dropout_factors]: [Option<Tile<E::Acc>>; 2],
        live_mask: Option<Tile<bool>>,
        zero_unused_rows: ZeroUnusedRows<'_, E::Acc>,
    ) -> BlockGradients<E::Acc> {
        let [q, k, v, dout] = self.matrices.map(|x| x.load().cast::<E::Acc>());
        let [lse, delta] = self.rows.map(|x| x.load().expand(1));
        let [q, k, dout] = zero_unused_rows([q, k, dout]);
        let within = |x: Tile<E::Acc>| live_mask.map_or(x, |live| select(live, x, 0.0));
        let dropped = |x: Tile<E::Acc>| dropout_factors.map_or(x, |kept| x * kept);
        let (scores, slope) = self.rules.scores(dot(q, k.t()) * self.scale, bias);
        // A row without finite score has no gradient.
        let lse = select(lse.eq(f32::NEG_INFINITY), f32::INFINITY, lse);
        let p = within((scores - lse).exp());
        let by_scores = p * (dropped(dot(dout, v.t())) - delta);
        let by_products = within(self.rules.scores_backward(by_scores, slope));
        BlockGradients { kept: dropped(p), by_scores: within(by_scores), by_products, q, k, dout }
    }
}

/// Gradients of a block of scores from [`BackwardInputs::backward_of_block`], `[queries, keys]`, and the operands they
/// are multiplied with.
#[derive(Clone, Copy)]
pub(crate) struct BlockGradients<A> {
    /// Probabilities after dropout.
    kept: Tile<A>,
    /// The gradient by scores, which is the bias's gradient.
    pub(crate) by_scores: Tile<A>,
    /// The gradient by scaled products `q kᵀ`.
    by_products: Tile<A>,
    q: Tile<A>,
    k: Tile<A>,
    dout: Tile<A>,
}

impl<A: Wide> BlockGradients<A> {
    /// The block's contribution to the gradient by its queries, before scaling.
    pub(crate) fn dq(self) -> Tile<A> {
        dot(self.by_products, self.k)
    }
    /// The block's contribution to the gradient by its keys, before scaling.
    pub(crate) fn dk(self) -> Tile<A> {
        dot(self.by_products.t(), self.q)
    }
    /// The block's contribution to the gradient by its values.
    pub(crate) fn dv(self) -> Tile<A> {
        dot(self.kept.t(), self.dout)
    }
}

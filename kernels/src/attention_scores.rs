//! Which keys a query sees, and what becomes of a score: one description for every kernel of attention, forward and
//! backward.
//!
//! For a query at position p and key j, beginning with `s = scale · q kᵀ`:
//!
//! ```text
//! soft-cap    s = cap · tanh(s / cap)                                  Gemma 2 (Gemma Team 2024)
//! bias        s = s + bias_pj                                          T5 (Raffel et al. 2020), ALiBi (Press et al. 2022)
//! live        j < length                                               padded batches
//!             p - left <= j <= p + right                               causal: right = 0; windows: Longformer (Beltagy et al. 2020)
//!             segment_p = segment_j                                    packed sequences
//! sinks       P = exp(s) / (exp(sink) + Σ_live exp(s))                 gpt-oss (2025), after Xiao et al. 2024
//! dropout     P' = P / (1 - rate), or 0 with probability `rate`        Srivastava et al. 2014
//! ```
//! What the softmax sums over is not changed by dropout. Who is dropped follows from the seed and the element's coordinates
//! alone ([`pallas_rt::random`]), so that forward and backward agree, whatever their blocks.
//!
//! [`Rules`] says which of these there are; it is a `#[fixed]` value, and what is absent leaves no trace in the kernel.
//! [`Block`] is a block of scores at its place in the matrix of all scores.
use pallas_rt::ir::dtype::Accumulate;
use pallas_rt::prelude::*;
use pallas_rt::random;

/// Which keys a query sees; key lengths apply besides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Causal {
    /// All of them.
    #[default]
    No,
    /// Query i sees keys `j <= i`, also where there are more keys than queries: PyTorch's and JAX's `is_causal`.
    FromStart,
    /// The last query sees the last live key, query i keys `j <= i + keys - queries`: for queries that continue a cache
    /// of keys. With more queries than keys the first ones see none.
    FromEnd,
}

/// What kernels compute in: the type that sums of operands' products have.
pub trait Wide: Real + Accumulate<Acc = Self> {}
impl Wide for f32 {}
impl Wide for f64 {}

/// The rules of a kernel of attention, fixed while it is traced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rules {
    /// Keys further than this before the query are dead.
    pub left: Option<i32>,
    /// Keys further than this behind the query are dead.
    pub right: Option<i32>,
    /// Whether the last query stands at the last live key; else the first one at the first.
    pub from_end: bool,
    /// Whether a query sees keys of its own segment only.
    pub segments: bool,
    /// Whether something is added to the scores.
    pub bias: bool,
    /// Whether each head has a score besides those of its keys.
    pub sinks: bool,
    /// The bits of the soft-cap, an `f32`.
    pub soft_cap: Option<u32>,
    /// Probabilities are dropped where their random word is below.
    pub dropout: Option<u32>,
}

impl Rules {
    /// Position of the first query among the keys.
    pub fn first_position(self, queries: Scalar<i32>, length: Scalar<i32>) -> Scalar<i32> {
        if self.from_end { length - queries } else { scalar(0) }
    }
    /// Scores from scaled products, and with a soft-cap the slope of that step for [`Rules::through`].
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
    /// The gradient by scaled products from the one by scores.
    pub fn through<A: Wide>(self, gradient: Tile<A>, slope: Option<Tile<A>>) -> Tile<A> {
        // The derivative of cap·tanh(s/cap) is 1 - tanh².
        slope.map_or(gradient, |t| gradient - gradient * t * t)
    }
    /// 1 / (1 - rate).
    fn factor(self) -> f64 {
        self.dropout.map_or(1.0, |below| 1.0 / (1.0 - f64::from(below) / 2f64.powi(32)))
    }
}

/// A block of scores: where it lies, and which of them are live.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// What holds.
    pub rules: Rules,
    /// Queries and keys of the block.
    pub size: [usize; 2],
    /// Position of its first query among the keys.
    pub position: Scalar<i32>,
    /// How many of its queries there are.
    pub rows: Scalar<i32>,
    /// Its first key.
    pub key: Scalar<i32>,
    /// How many keys are live.
    pub length: Scalar<i32>,
}

impl Block {
    /// Some query of the block sees keys from the first of these to before the second.
    fn some(self) -> [Scalar<i32>; 2] {
        let last = self.position + minimum(self.rows, self.size[0]) - 1;
        let begin = self.rules.left.map_or(scalar(0), |left| maximum(self.position - left, 0));
        let end = self.rules.right.map_or(self.length, |right| minimum(self.length, last + (right + 1)));
        [begin, end]
    }
    /// Whether some query of the block may see some key of it. Where not, nothing need be loaded.
    pub fn is_live(self) -> Scalar<bool> {
        let [begin, end] = self.some();
        let before = self.key.lt(end);
        if self.rules.left.is_none() {
            return before;
        }
        before & (self.key + self.size[1]).gt(begin) & begin.lt(end)
    }
    /// Whether every query of the block sees every key of it: no mask is needed.
    pub fn is_whole(self) -> Scalar<bool> {
        if self.rules.segments {
            return scalar(false);
        }
        let end = self.rules.right.map_or(self.length, |right| minimum(self.length, self.position + (right + 1)));
        let mut whole = (self.key + self.size[1]).le(end);
        if let Some(left) = self.rules.left {
            whole &= self.key.ge(self.position + (self.size[0] as i32 - 1 - left));
        }
        whole
    }
    /// Indices of its keys, along this axis of two.
    fn keys(self, axis: usize) -> Tile<i32> {
        let mut shape = [1, 1];
        shape[axis] = self.size[1];
        iota::<i32>(shape, axis) + self.key
    }
    /// Rows of keys or values `[keys, d]` with 0 where no query of the block looks: anything may lie there, NaN too, and
    /// 0 · NaN is NaN.
    pub fn seen<E: Real>(self, rows: Tile<E>) -> Tile<E> {
        let ([begin, end], keys) = (self.some(), self.keys(0));
        let mut seen = keys.lt(end);
        if self.rules.left.is_some() {
            seen &= keys.ge(begin);
        }
        select(seen, rows, 0.0)
    }
    /// Which scores are live, `[queries, keys]`; segments are those of the block's queries and keys, read by this rule only.
    pub fn live(self, segments: Option<[In<i32>; 2]>) -> Tile<bool> {
        let [queries, keys] = self.size;
        let numbers = self.keys(1);
        let mut live = numbers.lt(self.length).broadcast([queries, keys]);
        let positions = iota::<i32>([queries, 1], 0) + self.position;
        if let Some(right) = self.rules.right {
            live &= numbers.le(if right == 0 { positions } else { positions + right });
        }
        if let Some(left) = self.rules.left {
            live &= numbers.ge(positions - left);
        }
        if let Some([own, theirs]) = segments.filter(|_| self.rules.segments) {
            live &= own.load().reshape([queries, 1]).eq(theirs.load().reshape([1, keys]));
        }
        live
    }
    /// What is added to the block's scores, read by this rule only.
    pub fn bias<E: Real, A: Wide>(self, bias: In<E>) -> Option<Tile<A>> {
        self.rules.bias.then(|| bias.load().cast::<A>())
    }
    /// What probabilities are multiplied by under dropout, `[queries, keys]`: 0, or 1 / (1 - rate). `row` counts the first
    /// query among those of all heads and batch elements: `(b · heads + h) · queries + i`.
    pub fn kept<A: Wide>(self, seed: [Scalar<u32>; 2], row: Scalar<i32>) -> Option<Tile<A>> {
        let below = self.rules.dropout?;
        let [queries, keys] = self.size;
        let rows = (iota::<i32>([queries, 1], 0) + row).cast::<u32>().broadcast([queries, keys]);
        let keys = self.keys(1).cast::<u32>().broadcast([queries, keys]);
        let kept = random::bits(seed, [rows, keys]).ge(below);
        Some(select(kept, full::<A>([1, 1], self.rules.factor()), 0.0))
    }
    /// The way back through a block of scores, from blocks of queries, keys, values and the gradient by the result, and per
    /// query the log-sum-exp and the inner product `δ` of result and gradient, `[queries, 1]`. Options as in the forward
    /// pass: the bias, what is live (`None`: all), what dropout keeps.
    ///
    /// With P the probabilities: `dS = P ∘ (kept ∘ dout vᵀ - δ)` (Dao et al. 2022, Algorithm 4).
    pub fn back<A: Wide>(
        self,
        [q, k, v, dout]: [Tile<A>; 4],
        [lse, delta]: [Tile<A>; 2],
        scale: Scalar<A>,
        [bias, kept]: [Option<Tile<A>>; 2],
        live: Option<Tile<bool>>,
    ) -> Back<A> {
        let within = |x: Tile<A>| live.map_or(x, |live| select(live, x, 0.0));
        let dropped = |x: Tile<A>| kept.map_or(x, |kept| x * kept);
        let (scores, slope) = self.rules.scores(dot(q, k.t()) * scale, bias);
        // A row without finite score has no gradient.
        let lse = select(lse.eq(f32::NEG_INFINITY), f32::INFINITY, lse);
        let p = within((scores - lse).exp());
        let by_scores = p * (dropped(dot(dout, v.t())) - delta);
        let by_products = within(self.rules.through(by_scores, slope));
        Back { kept: dropped(p), by_scores: within(by_scores), by_products }
    }
}

/// What [`Block::back`] finds, `[queries, keys]`.
#[derive(Clone, Copy, Debug)]
pub struct Back<A: Elem> {
    /// Probabilities after dropout: `dv = keptᵀ dout`.
    pub kept: Tile<A>,
    /// The gradient by scores: the bias's.
    pub by_scores: Tile<A>,
    /// The gradient by scaled products: `dq = by_products k · scale`, `dk = by_productsᵀ q · scale`.
    pub by_products: Tile<A>,
}

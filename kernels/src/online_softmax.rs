//! Online softmax over keys that stream past a block of rows (Milakov & Gimelshein 2018), shared by kernels of
//! attention.
//!
//! ```text
//! m' = max(m, max_j s_j)   p_j = exp(s_j - m')   l' = l·exp(m - m') + Σ p_j   a' = a·exp(m - m') + Σ p_j v_j
//! out = a / l              lse = m + ln l
//! ```
use crate::argument_errors::argument_error;
use crate::element::Wide;
use pallas_rt::prelude::*;

/// State of a block of rows between blocks of keys: maximum and sum of the scores' exponentials, and weighted values.
#[derive(Clone, Copy)]
pub(crate) struct OnlineSoftmax<A> {
    pub(crate) max: Scratch<A>,
    pub(crate) sum: Scratch<A>,
    pub(crate) acc: Scratch<A>,
}

impl<A: Wide> OnlineSoftmax<A> {
    /// Initialises the state before the first key.
    pub(crate) fn initialize(self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.acc.fill(0.0);
    }
    /// Initialises the state as after a key with these scores `[rows, 1]` and no value, such as a sink.
    pub(crate) fn initialize_with_score(self, scores: Tile<A>) {
        self.max.store(scores);
        self.sum.fill(1.0);
        self.acc.fill(0.0);
    }
    /// Adds a block of scores, -inf for dead keys; `product` multiplies the scores' weights with the block's values.
    pub(crate) fn accumulate(self, scores: Tile<A>, product: impl FnOnce(Tile<A>) -> Tile<A>) {
        self.accumulate_with(scores, |p| p, product);
    }
    /// Adds a block of scores as [`OnlineSoftmax::accumulate`] does; `factors` prepares the weights for `product`.
    pub(crate) fn accumulate_with<F>(
        self,
        scores: Tile<A>,
        factors: impl FnOnce(Tile<A>) -> F,
        product: impl FnOnce(F) -> Tile<A>,
    ) {
        let [m, p, alpha] = self.maxima_and_weights(scores);
        // Computed before the sum, so that threads of a GPU need one barrier for both.
        let factors = factors(p);
        let acc = self.rescale_accumulator(p, alpha);
        self.acc.store(acc + product(factors));
        self.max.store(m);
    }
    /// Returns the new maxima, the weights of a block's keys, and the factor that rescales earlier sums. Not generic,
    /// so that it is compiled once and not for each closure of [`OnlineSoftmax::accumulate_with`].
    fn maxima_and_weights(self, scores: Tile<A>) -> [Tile<A>; 3] {
        let m = maximum(self.max.load(), scores.max(1));
        // Before a row's first live key its maximum is -inf; its sum stays 0.
        let base = select(m.eq(f32::NEG_INFINITY), 0.0, m);
        [m, (scores - base).exp(), (self.max.load() - base).exp()]
    }
    /// Adds weights to the sum, and returns the rescaled accumulator, to which their product with values is to be
    /// added.
    fn rescale_accumulator(self, p: Tile<A>, alpha: Tile<A>) -> Tile<A> {
        self.sum.store(self.sum.load() * alpha + p.sum(1));
        self.acc.load() * alpha
    }
    /// Returns the rows' results and log-sum-exps `[rows, 1]`: 0 and -inf for rows without live keys.
    pub(crate) fn finish(self) -> (Tile<A>, Tile<A>) {
        let total = self.sum.load();
        let dead = total.eq(0.0);
        let lse = select(dead, f32::NEG_INFINITY, self.max.load() + total.log());
        (select(dead, 0.0, self.acc.load() / total), lse)
    }
}

/// Uploads numbers as an i32 array.
///
/// # Errors
/// A number does not fit i32; device trouble.
#[track_caller]
pub(crate) fn upload_i32<N>(client: &Client, numbers: &[N], shape: &[usize]) -> Result<Array>
where
    N: Copy + std::fmt::Display + TryInto<i32>,
{
    let mut converted: Vec<i32> = Vec::with_capacity(numbers.len());
    for &n in numbers {
        let Ok(number) = n.try_into() else { return argument_error(format!("{n} is no i32")) };
        converted.push(number);
    }
    client.array(&converted, shape)
}

/// Number of programs that keep a device busy.
pub(crate) fn min_busy_programs(client: &Client) -> usize {
    client.target().budget().programs
}

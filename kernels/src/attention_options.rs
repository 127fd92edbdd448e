//! Options of attention that callers choose, and the kernel operands made from them.
use crate::argument_errors::argument_error;
use crate::attention_scores::{Causal, Rules, flash_attention_delta, segment_spans};
use crate::element::Floating;
use pallas_rt::Target;
use pallas_rt::prelude::*;

/// Options of attention; the default is plain softmax attention. An option that is not set costs nothing.
///
/// The formulas are those of [`crate::attention_scores`]. All options go together, but for [`Options::offsets`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Factor of the scores `q kᵀ`; `None`: `1 / sqrt(head dimension)`.
    pub scale: Option<f32>,
    /// The keys that a query sees by its position.
    pub causal: Causal,
    /// Maximum distance between a query's position and the keys that it sees.
    pub window: Window,
    /// i32 array `[batch]`: number of live keys of each batch element; later keys are never read. `None`: all are live.
    pub lengths: Option<&'a Array>,
    /// i32 array `[2]`: the positions of the first query and of the first key in a longer sequence, of which both are
    /// parts; [`Causal::FromStart`] and windows are by these positions. `None`: both begin at 0.
    ///
    /// The results for all parts of the keys are merged by the log-sum-exp (`Σ exp(lse_n - lse) out_n`), as in ring
    /// attention (Liu et al. 2023); gradients with the merged result and log-sum-exp are summed. Cannot be combined
    /// with [`Causal::FromEnd`] or dropout, which depend on the numbers of all queries and keys. Pass sinks with one
    /// part only; lengths and segments are those of the parts.
    pub offsets: Option<&'a Array>,
    /// i32 arrays `[batch, queries]` and `[batch, keys]` of segment numbers: a query sees keys of its own segment only.
    ///
    /// Numbers below 0 are padding: it sees no keys, and no query sees it. Where the other numbers ascend, blocks of
    /// other segments are skipped; blocks of padding always are.
    pub segments: Option<[&'a Array; 2]>,
    /// Bias added to the scores: `[batch or 1, heads or 1, queries, keys]` of the queries' element type.
    pub bias: Option<&'a Array>,
    /// Bound `cap` of the scores, applied as `cap · tanh(score / cap)` before the bias.
    pub soft_cap: Option<f32>,
    /// `[heads]` of the queries' element type: an extra score per head that takes part in the softmax but has no value.
    pub sinks: Option<&'a Array>,
    /// Dropout of probabilities.
    pub dropout: Option<Dropout<'a>>,
}

#[cfg(feature = "graph")]
impl Options<'_> {
    /// Returns true if no option is set but a scale and a causal mask.
    pub(crate) fn has_only_scale_and_causal(&self) -> bool {
        self.bias.is_none() && self.sinks.is_none() && self.has_only_scale_causal_bias()
    }
    /// Returns true if no option is set but a scale, a causal mask, a bias and sinks.
    pub(crate) fn has_only_scale_causal_bias(&self) -> bool {
        let are_set =
            self.lengths.is_some() || self.offsets.is_some() || self.segments.is_some() || self.dropout.is_some();
        !are_set && self.window == Window::default() && self.soft_cap.is_none()
    }
}

/// Numbers of keys that a query sees on each side of its own position, which it always sees; `None`: no limit.
///
/// Query i has position i, or `i + keys - queries` with [`Causal::FromEnd`]. [`Causal`] other than `No` sets the right
/// side to 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Window {
    /// Number of keys before the query's position.
    pub left: Option<usize>,
    /// Number of keys after the query's position.
    pub right: Option<usize>,
}

/// Dropout of probabilities after the softmax: each becomes 0 with probability `rate`, the others are divided by
/// `1 - rate`.
///
/// The same seed, batch element, head, query and key give the same decision: in the forward and the backward pass, on
/// every device, whatever the blocks.
#[derive(Clone, Copy, Debug)]
pub struct Dropout<'a> {
    /// Probability of dropping an element, in [0, 1).
    pub rate: f32,
    /// Source of the random numbers; use a new one for every step of training.
    pub seed: Seed<'a>,
}

/// The source of the random numbers of [`Dropout`].
///
/// ```
/// use pallas_kernels::flash_attention::{Dropout, Options, flash_attention};
/// use pallas_rt::prelude::*;
/// // In a compiled function the key is an argument: each step then drops others.
/// let step = |q: &Array, key: &Array| {
///     let dropout = Some(Dropout { rate: 0.5, seed: key.into() });
///     flash_attention(q, q, q, &Options { dropout, ..Options::default() })
/// };
/// let q = Array::from_slice(&[1.0f32; 64], &[1, 1, 16, 4])?;
/// let [first, second] = [Array::from_slice(&[0u32, 1], &[2])?, Array::from_slice(&[0u32, 2], &[2])?];
/// assert_ne!(step(&q, &first)?.to_vec::<f32>()?, step(&q, &second)?.to_vec::<f32>()?);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Seed<'a> {
    /// The seed of the dropped elements as a host number. In a function of `jit` it is a constant: every call drops the
    /// same elements.
    Number(u64),
    /// The bits of a key, u32 `[2]`, the higher half first: the data of a key of `pallas_rt::random`, or a counter.
    Key(&'a Array),
}

impl From<u64> for Seed<'_> {
    fn from(number: u64) -> Self {
        Seed::Number(number)
    }
}
impl<'a> From<&'a Array> for Seed<'a> {
    fn from(key: &'a Array) -> Self {
        Seed::Key(key)
    }
}

/// Operands of attention kernels besides queries, keys and values. An absent option has a placeholder that no kernel
/// reads.
#[derive(Clone, Debug)]
pub struct Operands {
    /// i32 `[batch]`: number of live keys of each batch element; see [`Options::lengths`].
    pub lengths: Array,
    /// i32 `[2]`: positions of the first query and of the first key; see [`Options::offsets`].
    pub offsets: Array,
    /// Bias added to the scores; see [`Options::bias`].
    pub bias: Array,
    /// Segment numbers of queries and of keys; see [`Options::segments`].
    pub segments: [Array; 2],
    /// `[heads]`: extra score of each head; see [`Options::sinks`].
    pub sinks: Array,
    /// Factor of the scores `q kᵀ`.
    pub scale: f32,
    /// The seed of dropout, u32 `[2]`, the higher half first.
    pub seed: Array,
    /// The options that are set.
    pub rules: Rules,
}

impl Operands {
    /// Runs [`segment_spans`] on blocks of `block = [queries, keys]` elements: segment ranges `[batch, blocks, 3]` of
    /// each.
    ///
    /// # Errors
    /// A block size of 0; device trouble.
    #[track_caller]
    pub fn spans(&self, block: [usize; 2]) -> Result<[Array; 2]> {
        if block.contains(&0) {
            return argument_error(format!("blocks of {block:?} queries and keys, expected at least one of each"));
        }
        let [own, theirs] = &self.segments;
        Ok([self.segment_spans_of_blocks(own, block[0])?, self.segment_spans_of_blocks(theirs, block[1])?])
    }

    #[track_caller]
    /// Computes segment ranges of blocks of `block` segment numbers; without segments returns a placeholder.
    fn segment_spans_of_blocks(&self, segment_numbers: &Array, block: usize) -> Result<Array> {
        match (self.rules.segments, segment_numbers.shape()) {
            (true, &[_, n]) => segment_spans(segment_numbers, block, n.div_ceil(block)),
            _ => Ok(segment_numbers.reshape(&[segment_numbers.len(), 1, 1])),
        }
    }
}

/// Gradients of the loss by the results of attention.
#[derive(Clone, Copy, Debug)]
pub struct Cotangents<'a> {
    /// Gradient by the attention's output.
    pub out: &'a Array,
    /// Gradient by the log-sum-exp, f32; `None` for zeros.
    pub lse: Option<&'a Array>,
}

impl<'a> From<&'a Array> for Cotangents<'a> {
    fn from(out: &'a Array) -> Self {
        Cotangents { out, lse: None }
    }
}

impl Cotangents<'_> {
    /// Returns for each query the `δ` that kernels subtract from gradients by probabilities, computed in blocks of
    /// `block_rows` queries: see [`flash_attention_delta`].
    #[track_caller]
    pub(crate) fn delta<E: Floating>(self, out: &Array, block_rows: usize) -> Result<Array> {
        let Some(lse) = self.lse else {
            // A placeholder that no program reads.
            let of_rows = out.shape().get(..3).unwrap_or(out.shape());
            let none = out.client().zeros(of_rows, <E::Acc as Elem>::DTYPE)?;
            return flash_attention_delta::<E>(out, self.out, &none, false, block_rows);
        };
        flash_attention_delta::<E>(out, self.out, lse, true, block_rows)
    }
}

/// Window sizes from here on count as unlimited, so that positions plus a window stay within i32.
const MIN_UNLIMITED_WINDOW: usize = 1 << 30;

impl Options<'_> {
    /// Checks the options against these queries and keys, and returns the operands of kernels.
    ///
    /// # Errors
    /// Ranks or heads that do not fit; an option of another shape or element type, or out of its range.
    #[track_caller]
    pub fn operands(&self, q: &Array, k: &Array) -> Result<Operands> {
        let ([batch, heads, queries, d], [_, key_heads, keys, _]) =
            (attention_extents("q", q)?, attention_extents("k", k)?);
        if heads != 0 && (key_heads == 0 || heads % key_heads != 0) {
            return argument_error(format!("{heads} heads of queries are no multiple of {key_heads} heads of keys"));
        }
        let lengths = match self.lengths {
            Some(lengths) => check_option_array("lengths", lengths, DType::I32, &[batch])?,
            None => q.client().array(&vec![i32::try_from(keys).unwrap_or(i32::MAX); batch], &[batch])?,
        };
        let offsets = match self.offsets {
            Some(offsets) => check_option_array("offsets", offsets, DType::I32, &[2])?,
            None => lengths.clone(),
        };
        let segments = match self.segments {
            Some([own, theirs]) => [
                check_option_array("segments of queries", own, DType::I32, &[batch, queries])?,
                check_option_array("segments of keys", theirs, DType::I32, &[batch, keys])?,
            ],
            None => [lengths.reshape(&[batch, 1]), lengths.reshape(&[batch, 1])],
        };
        let bias = match self.bias {
            Some(bias) => {
                let or_one = |axis: usize, n: usize| if bias.shape().get(axis) == Some(&1) { 1 } else { n };
                check_option_array("bias", bias, q.dtype(), &[or_one(0, batch), or_one(1, heads), queries, keys])?
            }
            None => q.clone(),
        };
        let sinks = match self.sinks {
            Some(sinks) => check_option_array("sinks", sinks, q.dtype(), &[heads])?,
            None => q.reshape(&[q.len()]),
        };
        let seed = match self.dropout.map(|dropout| dropout.seed) {
            Some(Seed::Key(key)) => check_option_array("the key of `dropout`", key, DType::U32, &[2])?,
            Some(Seed::Number(seed)) => q.client().array(&[(seed >> 32) as u32, seed as u32], &[2])?,
            None => q.client().zeros(&[2], DType::U32)?,
        };
        Ok(Operands {
            lengths,
            offsets,
            bias,
            segments,
            sinks,
            scale: score_scale(self.scale, d)?,
            seed,
            rules: self.rules(q.client().target())?,
        })
    }

    /// Returns the rules of a call: its options as far as kernels are specialised for them.
    ///
    /// # Errors
    /// A soft-cap that is not positive, a dropout rate outside of [0, 1), offsets together with dropout or with
    /// [`Causal::FromEnd`].
    #[track_caller]
    fn rules(&self, target: &Target) -> Result<Rules> {
        let soft_cap = soft_cap_bits(self.soft_cap)?;
        if let Some(Dropout { rate, .. }) = self.dropout.filter(|dropout| !(0.0..1.0).contains(&dropout.rate)) {
            return argument_error(format!("the rate of `dropout` is {rate}, expected 0 to below 1"));
        }
        if self.offsets.is_some() && (self.causal == Causal::FromEnd || self.dropout.is_some()) {
            return argument_error(
                "`offsets` with `Causal::FromEnd` or `dropout`, which are by all queries and keys".into(),
            );
        }
        let near = |side: Option<usize>| side.filter(|n| *n < MIN_UNLIMITED_WINDOW).map(|n| n as i32);
        Ok(Rules {
            left: near(self.window.left),
            right: if self.causal == Causal::No { near(self.window.right) } else { Some(0) },
            from_end: self.causal == Causal::FromEnd,
            offsets: self.offsets.is_some(),
            segments: self.segments.is_some(),
            bias: self.bias.is_some(),
            sinks: self.sinks.is_some(),
            soft_cap,
            dropout: self.dropout.map(|dropout| (f64::from(dropout.rate) * 2f64.powi(32)) as u32),
            one_way: target.budget().lockstep,
        })
    }
}

/// Returns the factor of the scores, by default `1 / sqrt(d)`.
///
/// # Errors
/// The factor is not finite.
#[track_caller]
pub(crate) fn score_scale(scale: Option<f32>, head_dim: usize) -> Result<f32> {
    match scale.filter(|scale| !scale.is_finite()) {
        Some(scale) => argument_error(format!("`scale` is {scale}, expected a finite number")),
        None => Ok(scale.unwrap_or(1.0 / (head_dim as f32).sqrt())),
    }
}

/// Returns the bits of a soft-cap, which can be part of a kernel's key.
///
/// # Errors
/// It is not positive.
#[track_caller]
pub(crate) fn soft_cap_bits(cap: Option<f32>) -> Result<Option<u32>> {
    match cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
        Some(cap) => argument_error(format!("`soft_cap` is {cap}, expected a positive number")),
        None => Ok(cap.map(f32::to_bits)),
    }
}

/// Returns the extents of an operand that must have rank 4.
///
/// # Errors
/// Another rank.
#[track_caller]
pub(crate) fn attention_extents(name: &str, x: &Array) -> Result<[usize; 4]> {
    match <[usize; 4]>::try_from(x.shape()) {
        Ok(axes) => Ok(axes),
        Err(_) => argument_error(format!(
            "`{name}` has shape {:?}, expected [batch, heads, positions, head dimension]",
            x.shape()
        )),
    }
}

/// Returns the option's array, or an error if its element type or shape is not the expected one.
#[track_caller]
fn check_option_array(name: &str, x: &Array, dtype: DType, shape: &[usize]) -> Result<Array> {
    if x.dtype() != dtype {
        return argument_error(format!("`{name}` holds {}, expected {dtype}", x.dtype()));
    }
    if x.shape() != shape {
        return argument_error(format!("`{name}` has shape {:?}, expected {shape:?}", x.shape()));
    }
    Ok(x.clone())
}

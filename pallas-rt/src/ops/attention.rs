//! Attention as plain operations.
use super::tensordot::{contract, contract_to_accumulator};
use super::{arange, select};
use crate::array::Array;
use crate::jit::apply;
use pallas_device::error::{Error, Result};
use pallas_ir::{At, DType, Diag, Loc};

/// The value of masked scores before the softmax: finite, so that a query without keys has a mean instead of NaN.
const MASKED_SCORE: f64 = -0.7 * f32::MAX as f64;

/// `softmax(q kᵀ / √h) v` for each head; `jax.nn.dot_product_attention`. [`Attention`] has masks and other options.
///
/// Shapes, with a batch or without: `query` `[batch, queries, heads, h]`, `key` and `value` `[batch, keys, key_heads,
/// h]`. The number of heads is a multiple of the number of key heads, and consecutive heads share one. Arrays of one
/// floating-point type; the result has the shape and type of `query`. Scores are computed in f32 for 16-bit floats.
///
/// These are plain operations, which need memory for all scores; `flash_attention` of pallas-kernels does not.
///
/// Other shapes and types give an array that holds an error.
///
/// ```
/// use pallas_rt::{Array, ops::dot_product_attention};
/// let x = Array::from_slice(&[0.0f32, 1.0, 2.0, 3.0], &[2, 1, 2])?;
/// let y = dot_product_attention(&(&x * 100.0), &x, &x);
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 3.0, 2.0, 3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn dot_product_attention(query: &Array, key: &Array, value: &Array) -> Array {
    Attention::new().run(query, key, value)
}

/// Options of [`dot_product_attention`].
///
/// ```
/// use pallas_rt::{Array, ops::Attention};
/// let x = Array::from_slice(&[0.0f32, 1.0, 2.0, 3.0], &[2, 1, 2])?;
/// let y = Attention::new().causal(true).scale(0.0).run(&x, &x, &x);
/// assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 1.0, 2.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Attention {
    bias: Option<Array>,
    mask: Option<Array>,
    scale: Option<f64>,
    is_causal: bool,
    window: Option<(usize, usize)>,
    query_lengths: Option<Array>,
    key_lengths: Option<Array>,
}

impl Attention {
    /// Makes options in which nothing is set.
    pub fn new() -> Attention {
        Attention::default()
    }

    /// Adds numbers to the scores: `[batch, heads, queries, keys]`, or axes that broadcast to these.
    #[must_use]
    pub fn bias(mut self, bias: &Array) -> Attention {
        self.bias = Some(bias.clone());
        self
    }

    /// Sets where a query looks at a key: bool `[batch, heads, queries, keys]`, or axes that broadcast to these.
    #[must_use]
    pub fn mask(mut self, mask: &Array) -> Attention {
        self.mask = Some(mask.clone());
        self
    }

    /// Sets the factor of the scores, instead of `1 / √h`.
    #[must_use]
    pub fn scale(mut self, scale: f64) -> Attention {
        self.scale = Some(scale);
        self
    }

    /// If true, each query looks only at keys up to its own position.
    #[must_use]
    pub fn causal(mut self, is_causal: bool) -> Attention {
        self.is_causal = is_causal;
        self
    }

    /// Lets each query look at `before` keys before and `after` keys after its own position, besides that one;
    /// `local_window_size` of JAX.
    #[must_use]
    pub fn window(mut self, before: usize, after: usize) -> Attention {
        self.window = Some((before, after));
        self
    }

    /// Sets the number of queries of each sequence, i32 `[batch]`; results of later queries are 0.
    #[must_use]
    pub fn query_lengths(mut self, lengths: &Array) -> Attention {
        self.query_lengths = Some(lengths.clone());
        self
    }

    /// Sets the number of keys and values of each sequence, i32 `[batch]`; queries do not look at later ones.
    #[must_use]
    pub fn key_lengths(mut self, lengths: &Array) -> Attention {
        self.key_lengths = Some(lengths.clone());
        self
    }

    /// Computes the attention; see [`dot_product_attention`].
    #[track_caller]
    #[must_use]
    pub fn run(&self, query: &Array, key: &Array, value: &Array) -> Array {
        self.run_with_logsumexp(query, key, value).0
    }

    /// Computes the attention, and `logsumexp` of the scores of each query, `[batch, queries, heads]`, which has no
    /// derivative; `return_residual` of JAX.
    #[track_caller]
    #[must_use]
    pub fn run_with_logsumexp(&self, query: &Array, key: &Array, value: &Array) -> (Array, Array) {
        let at = Loc::caller();
        self.compute([query, key, value], at).unwrap_or_else(|error| {
            let bad = |error| Array::new_poisoned(error, query.client().clone(), query.dtype(), query.shape());
            (bad(error.clone()), bad(error))
        })
    }

    /// Computes the attention of query, key and value, and `logsumexp` of the scores.
    fn compute(&self, query_key_value: [&Array; 3], at: Loc) -> Result<(Array, Array)> {
        let [query, key, value] = query_key_value;
        let form = AttentionExtents::from_operands(query_key_value, at)?;
        let AttentionExtents { batch, queries, keys, heads, shared, width, .. } = form;
        let query_ = query.reshape(&[batch, queries, shared, heads / shared, width]);
        let key_ = key.reshape(&[batch, keys, shared, width]);
        // Scores are `[batch, key heads, queries, heads that share one, keys]`.
        let scores = apply(&[&query_, &key_], at, |graph, v| {
            contract_to_accumulator(graph, v[0], v[1], vec![(0, 0), (2, 2)], vec![(4, 3)])
        });
        let mut scores = scores * self.scale.unwrap_or(1.0 / (width as f64).sqrt());
        let dtype = scores.dtype();
        if let Some(bias) = &self.bias {
            scores = (scores + form.expand_to_scores("bias", bias, at)?).cast(dtype);
        }
        if let Some(seen) = self.combined_mask(&form, at)? {
            scores = select(&seen, scores, MASKED_SCORE);
        }
        let shares = scores.softmax(-1).cast(value.dtype());
        let value_ = value.reshape(&[batch, keys, shared, width]);
        let made =
            apply(&[&shares, &value_], at, |graph, v| contract(graph, v[0], v[1], vec![(0, 0), (1, 2)], vec![(4, 1)]));
        let mut made = made.transpose(&[0, 2, 1, 3, 4]).reshape(query.shape());
        if let Some(lengths) = &self.query_lengths {
            let is_there = length_mask(lengths, queries).reshape(&[batch, queries, 1, 1]);
            let is_there = if query.rank() == 3 { is_there.squeeze(0) } else { is_there };
            made = made * is_there.cast(query.dtype());
        }
        let residual = scores.logsumexp(-1).transpose(&[0, 2, 1, 3]).reshape(&query.shape()[..query.rank() - 1]);
        Ok((made, residual.cast(key.dtype()).stop_gradient()))
    }

    /// Returns an array that is true where a query looks at a key, in the axes of scores; `None` if each looks at all.
    fn combined_mask(&self, extents: &AttentionExtents, at: Loc) -> Result<Option<Array>> {
        let &AttentionExtents { batch, queries, keys, .. } = extents;
        let mut all = vec![];
        if let Some(mask) = &self.mask {
            if mask.dtype() != DType::Bool {
                return Err(attention_error(at, format!("a mask of {}", mask.dtype()), "bool; numbers are a `bias`"));
            }
            all.push(extents.expand_to_scores("mask", mask, at)?);
        }
        let row = arange(0, queries as i32, 1, DType::I32).reshape(&[queries, 1, 1]);
        let column = arange(0, keys as i32, 1, DType::I32);
        if self.is_causal {
            all.push(row.ge(&column));
        }
        if let Some((before, after)) = self.window {
            let most = |n: usize| n.min(queries.max(keys)) as i64;
            all.push(row.le(&column + most(before)) & row.ge(&column - most(after)));
        }
        for (lengths, count, shape) in [
            (&self.query_lengths, queries, [batch, 1, queries, 1, 1]),
            (&self.key_lengths, keys, [batch, 1, 1, 1, keys]),
        ] {
            if let Some(lengths) = lengths {
                if lengths.shape() != [batch] || lengths.dtype() != DType::I32 {
                    let message =
                        format!("lengths of {} {:?} for a batch of {batch}", lengths.dtype(), lengths.shape());
                    return Err(attention_error(at, message, "i32, one for each sequence"));
                }
                all.push(length_mask(lengths, count).reshape(&shape));
            }
        }
        Ok(all.into_iter().reduce(|a, b| a & b))
    }
}

/// Returns an array that is true for positions below each length: `[batch, count]`.
fn length_mask(lengths: &Array, count: usize) -> Array {
    arange(0, count as i32, 1, DType::I32).lt(lengths.expand_dims(1))
}

fn attention_error(at: Loc, message: String, help: &str) -> Error {
    Error::operation(at, Diag::new("attention", At::Op, message, help))
}

/// Extents of the operands of an attention.
struct AttentionExtents {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    /// Number of key heads.
    shared: usize,
    /// Number of elements of a query or key in one head.
    width: usize,
}

impl AttentionExtents {
    /// Returns the extents of query, key and value; refuses shapes and types that do not fit each other.
    fn from_operands([query, key, value]: [&Array; 3], at: Loc) -> Result<AttentionExtents> {
        for x in [query, key, value] {
            x.check()?;
        }
        let text = || {
            let one = |x: &Array| format!("{}{:?}", x.dtype(), x.shape());
            format!("queries {}, keys {} and values {}", one(query), one(key), one(value))
        };
        let dtype = query.dtype();
        if !dtype.is_float() || key.dtype() != dtype || value.dtype() != dtype {
            return Err(attention_error(at, text(), "one floating-point type"));
        }
        let four = |x: &Array| match *x.shape() {
            [a, b, c] => Some([1, a, b, c]),
            [a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        };
        let help = "queries [batch, n, heads, h], keys and values [batch, m, key_heads, h]";
        let (Some([batch, queries, heads, width]), Some([keys_batch, keys, shared, keys_width])) =
            (four(query), four(key))
        else {
            return Err(attention_error(at, text(), help));
        };
        if [batch, width] != [keys_batch, keys_width] || key.shape() != value.shape() || query.rank() != key.rank() {
            return Err(attention_error(at, text(), help));
        }
        if shared == 0 || heads % shared != 0 {
            return Err(attention_error(at, text(), "as many heads as key heads, or a multiple of them"));
        }
        Ok(AttentionExtents { batch, queries, keys, heads, shared, width })
    }

    /// Returns a bias or mask in the axes of scores; `name` is for messages.
    fn expand_to_scores(&self, name: &str, x: &Array, at: Loc) -> Result<Array> {
        x.check()?;
        let full = [self.batch, self.heads, self.queries, self.keys];
        let mut shape = vec![1; 4usize.saturating_sub(x.rank())];
        shape.extend(x.shape());
        if shape.len() != 4 || shape.iter().zip(full).any(|(&own, n)| own != 1 && own != n) {
            let message = format!("a {name} {:?} for scores {full:?}", x.shape());
            return Err(attention_error(at, message, "axes that broadcast to [batch, heads, queries, keys]"));
        }
        let [batch, heads, queries, keys] = shape[..] else { unreachable!("four axes") };
        let [shared, group] = if heads == 1 { [1, 1] } else { [self.shared, self.heads / self.shared] };
        Ok(x.reshape(&[batch, shared, group, queries, keys]).transpose(&[0, 1, 3, 2, 4]))
    }
}

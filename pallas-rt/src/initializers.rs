//! Initial values of weights; `jax.nn.initializers`.
//!
//! A function of this module describes a distribution, with the defaults and numbers of JAX; [`Initializer::init`]
//! makes an array of it from a key. Numbers are equations of a graph ([`random`]): a jitted function that declares the
//! shardings of its results makes each block on its own device.
//!
//! ```
//! use pallas_rt::{initializers, ir::DType, random};
//! let [a, b] = random::split(random::key(0));
//! let weights = initializers::he_normal().init(a, &[784, 128], DType::F32);
//! // Of a convolution's kernel [features out, features in, 3, 3].
//! let kernel = initializers::lecun_normal().in_axis([1]).out_axis([0]).init(b, &[32, 16, 3, 3], DType::F32);
//! assert!((weights.std(..).to_vec::<f32>()?[0] - (2.0f32 / 784.0).sqrt()).abs() < 1e-3);
//! assert!((kernel.std(..).to_vec::<f32>()?[0] - (1.0f32 / 144.0).sqrt()).abs() < 3e-3);
//! # Ok::<(), pallas_rt::Error>(())
//! ```
use crate::array::{Array, canonicalize_axis};
use crate::random::{self, Key};
use pallas_device::error::{Error, Result};
use pallas_ir::{At, DType, Diag, Literal, Loc};
use std::f64::consts::SQRT_2;

/// Standard deviation of standard normal numbers that are between -2 and 2.
const TRUNCATED_NORMAL_DEVIATION: f64 = 0.879_625_661_034_239_8;

/// A distribution of weights; see the [module](self).
#[derive(Clone, Debug)]
pub struct Initializer {
    kind: InitializerKind,
    in_axes: Vec<isize>,
    out_axes: Vec<isize>,
    batch_axes: Vec<isize>,
}

/// A distribution with its parameters.
#[derive(Clone, Debug)]
enum InitializerKind {
    Constant(f64),
    Uniform(f64),
    Normal(f64),
    TruncatedNormal { deviation: f64, lower: f64, upper: f64 },
    VarianceScaling { scale: f64, mode: Fan, distribution: Distribution },
    Orthogonal { scale: f64, column_axis: isize },
    DeltaOrthogonal { scale: f64, column_axis: isize },
}

/// The number by which [`variance_scaling`] divides `scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// The number of inputs of each output.
    In,
    /// The number of outputs of each input.
    Out,
    /// The mean of the numbers of inputs and outputs.
    Average,
    /// The square root of the product of the numbers of inputs and outputs.
    GeometricAverage,
}

/// The distribution of [`variance_scaling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Normal numbers of which none is more than two standard deviations away from 0.
    TruncatedNormal,
    /// Normal numbers.
    Normal,
    /// Uniform numbers around 0.
    Uniform,
}

fn from_kind(kind: InitializerKind) -> Initializer {
    Initializer { kind, in_axes: vec![-2], out_axes: vec![-1], batch_axes: vec![] }
}

fn new_variance_scaling(scale: f64, mode: Fan, distribution: Distribution) -> Initializer {
    from_kind(InitializerKind::VarianceScaling { scale, mode, distribution })
}

/// Weights that are zeros.
#[must_use]
pub fn zeros() -> Initializer {
    constant(0.0)
}

/// Weights that are ones.
#[must_use]
pub fn ones() -> Initializer {
    constant(1.0)
}

/// `value` as every element.
#[must_use]
pub fn constant(value: f64) -> Initializer {
    from_kind(InitializerKind::Constant(value))
}

/// Uniform numbers in [0, `scale`); JAX's default is 0.01.
#[must_use]
pub fn uniform(scale: f64) -> Initializer {
    from_kind(InitializerKind::Uniform(scale))
}

/// Normal numbers with this standard deviation; JAX's default is 0.01.
#[must_use]
pub fn normal(deviation: f64) -> Initializer {
    from_kind(InitializerKind::Normal(deviation))
}

/// Normal numbers between `lower` and `upper`, times `deviation`; JAX's defaults are -2, 2 and 0.01.
#[must_use]
pub fn truncated_normal(deviation: f64, lower: f64, upper: f64) -> Initializer {
    from_kind(InitializerKind::TruncatedNormal { deviation, lower, upper })
}

/// Numbers with a variance of `scale` divided by the number that `mode` names, of this distribution.
///
/// Inputs are the extents of [`in_axis`](Initializer::in_axis), outputs those of [`out_axis`](Initializer::out_axis),
/// both times the extents of all other axes but the batch's.
#[must_use]
pub fn variance_scaling(scale: f64, mode: Fan, distribution: Distribution) -> Initializer {
    new_variance_scaling(scale, mode, distribution)
}

/// Uniform numbers with a variance of 2 / (inputs + outputs); Xavier's initialization.
#[must_use]
pub fn glorot_uniform() -> Initializer {
    new_variance_scaling(1.0, Fan::Average, Distribution::Uniform)
}

/// Truncated normal numbers with a variance of 2 / (inputs + outputs); Xavier's initialization.
#[must_use]
pub fn glorot_normal() -> Initializer {
    new_variance_scaling(1.0, Fan::Average, Distribution::TruncatedNormal)
}

/// Uniform numbers with a variance of 1 / inputs.
#[must_use]
pub fn lecun_uniform() -> Initializer {
    new_variance_scaling(1.0, Fan::In, Distribution::Uniform)
}

/// Truncated normal numbers with a variance of 1 / inputs.
#[must_use]
pub fn lecun_normal() -> Initializer {
    new_variance_scaling(1.0, Fan::In, Distribution::TruncatedNormal)
}

/// Uniform numbers with a variance of 2 / inputs; Kaiming's initialization.
#[must_use]
pub fn he_uniform() -> Initializer {
    new_variance_scaling(2.0, Fan::In, Distribution::Uniform)
}

/// Truncated normal numbers with a variance of 2 / inputs; Kaiming's initialization.
#[must_use]
pub fn he_normal() -> Initializer {
    new_variance_scaling(2.0, Fan::In, Distribution::TruncatedNormal)
}

/// Orthogonal matrices times `scale`, f32 or f64: the axis `column_axis` has their columns, all other axes together
/// their rows; JAX's defaults are 1 and -1.
#[must_use]
pub fn orthogonal(scale: f64, column_axis: isize) -> Initializer {
    from_kind(InitializerKind::Orthogonal { scale, column_axis })
}

/// Kernels of convolutions, `[one to three axes, inputs, outputs]`: an orthogonal matrix in the middle of those axes,
/// and zeros elsewhere. There are at least as many outputs as inputs.
#[must_use]
pub fn delta_orthogonal(scale: f64, column_axis: isize) -> Initializer {
    from_kind(InitializerKind::DeltaOrthogonal { scale, column_axis })
}

impl Initializer {
    /// Sets the axes of inputs, instead of the last but one.
    #[must_use]
    pub fn in_axis(mut self, axes: impl Into<Vec<isize>>) -> Initializer {
        self.in_axes = axes.into();
        self
    }

    /// Sets the axes of outputs, instead of the last one.
    #[must_use]
    pub fn out_axis(mut self, axes: impl Into<Vec<isize>>) -> Initializer {
        self.out_axes = axes.into();
        self
    }

    /// Sets the axes of a batch of weights, which count neither as inputs nor as outputs.
    #[must_use]
    pub fn batch_axis(mut self, axes: impl Into<Vec<isize>>) -> Initializer {
        self.batch_axes = axes.into();
        self
    }

    /// Makes an array of a shape and a floating-point type, from a key.
    ///
    /// A shape without the axes, and a type that the distribution does not have, give an array that holds an error.
    #[track_caller]
    #[must_use]
    pub fn init(&self, key: Key, shape: &[usize], dtype: DType) -> Array {
        let (at, client) = (Loc::caller(), key.data().client().clone());
        self.try_init(key, shape, dtype, at).unwrap_or_else(|error| Array::new_poisoned(error, client, dtype, shape))
    }

    /// Makes the array of [`init`](Initializer::init), or returns an error at the line `at` for a shape or element type
    /// that the distribution does not have.
    fn try_init(&self, key: Key, shape: &[usize], dtype: DType, at: Loc) -> Result<Array> {
        let rounded = |x: f64| Literal::new(dtype, x).as_f64();
        let normal = |key: Key, deviation: f64| {
            let factor = rounded(rounded(SQRT_2) * deviation);
            let low = -1.0 + random::machine_epsilon(dtype) / 2.0;
            random::uniform_between(key, shape, dtype, low, 1.0).erf_inv() * factor
        };
        Ok(match self.kind {
            InitializerKind::Constant(value) => {
                random::broadcast_parameter("constant", &key, &value.into(), shape, dtype, at)
            }
            InitializerKind::Uniform(scale) => random::uniform(key, shape, dtype) * scale,
            InitializerKind::Normal(deviation) => normal(key, rounded(deviation)),
            InitializerKind::TruncatedNormal { deviation, lower, upper } => {
                random::truncated_normal(key, lower, upper, shape, dtype) * deviation
            }
            InitializerKind::VarianceScaling { scale, mode, distribution } => {
                let variance = rounded(scale / self.variance_divisor(shape, mode, at)?);
                match distribution {
                    Distribution::TruncatedNormal => {
                        let deviation = rounded(rounded(variance.sqrt()) / rounded(TRUNCATED_NORMAL_DEVIATION));
                        random::truncated_normal(key, -2, 2, shape, dtype) * deviation
                    }
                    Distribution::Normal => normal(key, rounded(variance.sqrt())),
                    Distribution::Uniform => {
                        let most = rounded(rounded(3.0 * variance).sqrt());
                        random::uniform_between(key, shape, dtype, -1, 1) * most
                    }
                }
            }
            InitializerKind::Orthogonal { scale, column_axis } => {
                make_orthogonal(key, shape, dtype, column_axis, at)? * scale
            }
            InitializerKind::DeltaOrthogonal { scale, column_axis } => {
                let rank = shape.len();
                if !(3..=5).contains(&rank) || shape[rank - 1] < shape[rank - 2] {
                    let help = "one to three axes, then inputs, then outputs, which are no fewer";
                    return Err(initializer_error(at, format!("`delta_orthogonal` of shape {shape:?}"), help));
                }
                let (places, matrix) = shape.split_at(rank - 2);
                let middle = make_orthogonal(key, matrix, dtype, column_axis, at)? * scale;
                // An even number of places has its middle before the half.
                let around = |&n: &usize| (n.saturating_sub(1) / 2, n / 2);
                let widths: Vec<(usize, usize)> = places.iter().map(around).chain([(0, 0); 2]).collect();
                let ones = vec![1; places.len()];
                middle.reshape(&[&ones[..], matrix].concat()).pad(&widths, 0)
            }
        })
    }

    /// Returns the number by which the variance of weights of this shape is divided: by `mode` their number of inputs,
    /// of outputs, or a mean of both.
    fn variance_divisor(&self, shape: &[usize], mode: Fan, at: Loc) -> Result<f64> {
        let product = |axes: &[isize]| -> Result<f64> {
            let mut all = 1.0;
            for &axis in axes {
                let Ok(axis) = canonicalize_axis(axis, shape.len()) else {
                    let message = format!("axis {axis} of weights of shape {shape:?}");
                    return Err(initializer_error(
                        at,
                        message,
                        "two axes or more; others are named by `in_axis` and `out_axis`",
                    ));
                };
                all *= shape[axis] as f64;
            }
            Ok(all)
        };
        let (inputs, outputs) = (product(&self.in_axes)?, product(&self.out_axes)?);
        let own = inputs * outputs * product(&self.batch_axes)?;
        let all: f64 = shape.iter().map(|&n| n as f64).product();
        let field = if own == 0.0 { 0.0 } else { all / own };
        let (inputs, outputs) = (inputs * field, outputs * field);
        let divisor = match mode {
            Fan::In => inputs,
            Fan::Out => outputs,
            Fan::Average => (inputs + outputs) / 2.0,
            Fan::GeometricAverage => (inputs * outputs).sqrt(),
        };
        // Weights without elements have any variance.
        Ok(if divisor == 0.0 { f64::INFINITY } else { divisor })
    }
}

/// Makes an orthogonal matrix whose columns are along an axis; the other axes together are its rows.
fn make_orthogonal(key: Key, shape: &[usize], dtype: DType, column_axis: isize, at: Loc) -> Result<Array> {
    let Some(axis) = canonicalize_axis(column_axis, shape.len()).ok().filter(|_| shape.len() >= 2) else {
        let message = format!("`orthogonal` of shape {shape:?} with columns along axis {column_axis}");
        return Err(initializer_error(at, message, "two axes or more, of which one has the columns"));
    };
    if shape.contains(&0) {
        return Ok(random::broadcast_parameter("orthogonal", &key, &0.into(), shape, dtype, at));
    }
    let columns = shape[axis];
    let others = [&shape[..axis], &shape[axis + 1..]].concat();
    let matrix = random::orthogonal(key, others.iter().product(), columns, &[], dtype);
    Ok(matrix.reshape(&[&others[..], &[columns]].concat()).moveaxis(-1, axis as isize))
}

fn initializer_error(at: Loc, message: String, help: &str) -> Error {
    Error::operation(at, Diag::new("initializer", At::Op, message, help))
}

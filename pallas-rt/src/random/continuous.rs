//! Other distributions, from uniform numbers by the inverse of their distribution function; and `categorical`.
use super::lanes::{ElementwiseBuilder, VarResult};
use super::normal::{machine_epsilon, next_above_minus_one};
use super::uniform::{uniform_in_range, unit_uniform};
use super::{Key, check_float, draw_array};
use crate::array::Array;
use pallas_graph::Var;
use pallas_ir::structural::ArgReduce;
use pallas_ir::{At, DType, Diag, Loc, ScalarOp, StructuralOp};
use std::f64::consts::PI;

macro_rules! distributions {
    ($($(#[$doc:meta])+ $name:ident |$lanes:ident, $key:ident, $dtype:ident| $equations:expr;)*) => {$(
        $(#[$doc])+
        #[track_caller]
        #[must_use]
        pub fn $name(key: Key, shape: &[usize], dtype: DType) -> Array {
            draw_array(key, &[], shape, Loc::caller(), |$lanes, $key, _| {
                let $dtype = dtype;
                check_float(stringify!($name), $dtype)?;
                $equations
            })
        }
    )*};
}
distributions! {
    /// Numbers of the exponential distribution with mean 1, of a floating-point type; `jax.random.exponential`.
    exponential |lanes, key, dtype| {
        let u = unit_uniform(lanes, key, dtype)?;
        let log = log_one_minus(lanes, u)?;
        lanes.push_op(ScalarOp::Neg, &[log])
    };
    /// Numbers of the standard Gumbel distribution, of a floating-point type; `jax.random.gumbel` in its mode `low`.
    gumbel |lanes, key, dtype| standard_gumbel(lanes, key, dtype);
    /// Numbers of the Laplace distribution with mean 0 and scale 1, of a floating-point type; `jax.random.laplace`.
    laplace |lanes, key, dtype| {
        let (low, high) = (next_above_minus_one(lanes, dtype), lanes.splat_number(dtype, 1.0));
        let u = uniform_in_range(lanes, key, dtype, low, high)?;
        let (sign, size) = (lanes.push_op(ScalarOp::Sign, &[u])?, lanes.push_op(ScalarOp::Abs, &[u])?);
        let log = log_one_minus(lanes, size)?;
        lanes.push_op(ScalarOp::Mul, &[sign, log])
    };
    /// Numbers of the logistic distribution with mean 0 and scale 1, of a floating-point type; `jax.random.logistic`.
    logistic |lanes, key, dtype| {
        let u = positive_uniform(lanes, key, dtype)?;
        let log = lanes.push_op(ScalarOp::Log, &[u])?;
        let rest = log_one_minus(lanes, u)?;
        lanes.push_op(ScalarOp::Sub, &[log, rest])
    };
    /// Numbers of the Cauchy distribution around 0 with scale 1, of a floating-point type; `jax.random.cauchy`.
    cauchy |lanes, key, dtype| {
        let (low, high) = (lanes.splat_number(dtype, machine_epsilon(dtype)), lanes.splat_number(dtype, 1.0));
        let u = uniform_in_range(lanes, key, dtype, low, high)?;
        let (half, pi) = (lanes.splat_number(dtype, 0.5), lanes.splat_number(dtype, PI));
        let centred = lanes.push_op(ScalarOp::Sub, &[u, half])?;
        let angle = lanes.push_op(ScalarOp::Mul, &[pi, centred])?;
        lanes.push_op(ScalarOp::Tan, &[angle])
    };
}

/// Positions along an axis, i32, drawn with probabilities proportional to `exp(logits)`; the axis is dropped;
/// `jax.random.categorical`. Logits have a floating-point type.
///
/// For several draws from the same logits, stretch these: `logits.broadcast_to(&[draws, classes])`.
///
/// ```
/// use pallas_rt::{Array, random};
/// let logits = Array::from_slice(&[0.0f32, 9.0, 0.0, 9.0, 0.0, 0.0], &[2, 3])?;
/// let classes = random::categorical(random::key(2), &logits, -1);
/// assert_eq!(classes.to_vec::<i32>()?, [1, 0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn categorical(key: Key, logits: &Array, axis: isize) -> Array {
    draw_array(key, &[logits], logits.shape(), Loc::caller(), |lanes, key, vars| {
        let ty = lanes.graph.ty(vars[0]).clone();
        check_float("categorical", ty.dtype)?;
        let rank = ty.shape.len();
        let from_front = if axis < 0 { axis + rank as isize } else { axis };
        let Some(axis) = usize::try_from(from_front).ok().filter(|&axis| axis < rank) else {
            let message = format!("`categorical` along axis {axis} of {ty}");
            return Err(Diag::new("axis", At::Op, message, "axes count from 0, or from the end as -1, -2 .."));
        };
        let noise = standard_gumbel(lanes, key, ty.dtype)?;
        let scores = lanes.push_op(ScalarOp::Add, &[noise, vars[0]])?;
        lanes.graph.push(StructuralOp::from(ArgReduce { max: true, axis, keep: false }), &[scores])
    })
}

/// Appends `ln(1 - x)`.
fn log_one_minus(lanes: &mut ElementwiseBuilder<'_>, x: Var) -> VarResult {
    let minus = lanes.push_op(ScalarOp::Neg, &[x])?;
    lanes.push_op(ScalarOp::Log1p, &[minus])
}

/// Appends uniform numbers in (0, 1): at least the smallest normal number.
fn positive_uniform(lanes: &mut ElementwiseBuilder<'_>, key: [Var; 2], dtype: DType) -> VarResult {
    let smallest = match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => 2f64.powi(-14),
        _ => f64::from(f32::MIN_POSITIVE),
    };
    let (low, high) = (lanes.splat_number(dtype, smallest), lanes.splat_number(dtype, 1.0));
    uniform_in_range(lanes, key, dtype, low, high)
}

/// Appends numbers of the standard Gumbel distribution, `-ln(-ln(u))` of uniform numbers `u`.
fn standard_gumbel(lanes: &mut ElementwiseBuilder<'_>, key: [Var; 2], dtype: DType) -> VarResult {
    let mut x = positive_uniform(lanes, key, dtype)?;
    for _ in 0..2 {
        let log = lanes.push_op(ScalarOp::Log, &[x])?;
        x = lanes.push_op(ScalarOp::Neg, &[log])?;
    }
    Ok(x)
}

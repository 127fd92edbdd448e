//! Normally distributed numbers, by the inverse of the error function.
use super::lanes::{ElementwiseBuilder, VarResult};
use super::uniform::{array_operands, uniform_in_range};
use super::{Key, check_float, draw_array};
use crate::array::Array;
use crate::ops::{Operand, erf_inv};
use pallas_graph::Var;
use pallas_ir::{DType, Loc, ScalarOp};
use std::f64::consts::SQRT_2;

/// Numbers of the normal distribution with mean 0 and variance 1, of a floating-point type; `jax.random.normal`.
///
/// ```
/// use pallas_rt::{ir::DType, random};
/// let x = random::normal(random::key(0), &[10_000], DType::F32);
/// let [mean, variance] = [x.mean(..), x.var(..)].map(|x| x.to_vec::<f32>());
/// assert!(mean?[0].abs() < 0.05 && (variance?[0] - 1.0).abs() < 0.05);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn normal(key: Key, shape: &[usize], dtype: DType) -> Array {
    draw_array(key, &[], shape, Loc::caller(), |lanes, key, _| {
        check_float("normal", dtype)?;
        let low = next_above_minus_one(lanes, dtype);
        let high = lanes.splat_number(dtype, 1.0);
        let u = uniform_in_range(lanes, key, dtype, low, high)?;
        scaled_erf_inv(lanes, u, dtype)
    })
}

/// Numbers of the normal distribution with mean 0 and variance 1, given that they are between two bounds, of a
/// floating-point type; bounds are numbers, or arrays that stretch to the shape; `jax.random.truncated_normal`.
#[track_caller]
#[must_use]
pub fn truncated_normal(
    key: Key,
    lower: impl Into<Operand>,
    upper: impl Into<Operand>,
    shape: &[usize],
    dtype: DType,
) -> Array {
    let (lower, upper) = (lower.into(), upper.into());
    draw_array(key, &array_operands(&[&lower, &upper]), shape, Loc::caller(), |lanes, key, vars| {
        check_float("truncated_normal", dtype)?;
        let vars = &mut vars.iter();
        let bounds = [lanes.float_operand(&lower, vars, dtype)?, lanes.float_operand(&upper, vars, dtype)?];
        // XLA multiplies by the reciprocal of a constant instead of dividing.
        let single = f64::from(1.0 / SQRT_2 as f32);
        let reciprocal = lanes.splat_number(dtype, if dtype == DType::F64 { 1.0 / SQRT_2 } else { single });
        let mut share = |bound| {
            let x = lanes.push_op(ScalarOp::Mul, &[bound, reciprocal])?;
            erf(lanes, x, dtype)
        };
        let (a, b) = (share(bounds[0])?, share(bounds[1])?);
        let u = uniform_in_range(lanes, key, dtype, a, b)?;
        let x = scaled_erf_inv(lanes, u, dtype)?;
        // Strictly inside.
        let least = adjacent_float(lanes, bounds[0], dtype, 1)?;
        let most = adjacent_float(lanes, bounds[1], dtype, -1)?;
        let x = lanes.push_op(ScalarOp::Maximum, &[x, least])?;
        lanes.push_op(ScalarOp::Minimum, &[x, most])
    })
}

/// Appends the number next to -1 towards 0, at every element.
pub(super) fn next_above_minus_one(lanes: &mut ElementwiseBuilder<'_>, dtype: DType) -> Var {
    lanes.splat_number(dtype, -1.0 + machine_epsilon(dtype) / 2.0)
}

/// The distance from 1 to the next larger number of a floating-point type.
pub(crate) fn machine_epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => 2f64.powi(-10),
        DType::Bf16 => 2f64.powi(-7),
        _ => f64::from(f32::EPSILON),
    }
}

/// Appends the next number above (`ulps` = 1) or below (`ulps` = -1) each element: its bits as an integer, moved by
/// one. Derivatives take it for a constant.
fn adjacent_float(lanes: &mut ElementwiseBuilder<'_>, x: Var, dtype: DType, ulps: i64) -> VarResult {
    let integer = match dtype {
        DType::F64 => DType::I64,
        DType::F16 | DType::Bf16 => DType::I16,
        _ => DType::I32,
    };
    let x = lanes.stop_gradient(x)?;
    let zero = lanes.splat_number(dtype, 0.0);
    let bits = lanes.bitcast(x, integer)?;
    // Of negative numbers those with larger bits are smaller. The neighbours of zero are the smallest numbers.
    let (up, down) = (lanes.splat_integer(integer, ulps), lanes.splat_integer(integer, -ulps));
    let is_negative = lanes.push_op(ScalarOp::Lt, &[x, zero])?;
    let step = lanes.push_op(ScalarOp::Select, &[is_negative, down, up])?;
    let moved = lanes.push_op(ScalarOp::Add, &[bits, step])?;
    let moved = lanes.bitcast(moved, dtype)?;
    let smallest = match dtype {
        DType::F64 => 5e-324,
        DType::F16 => 2f64.powi(-24),
        DType::Bf16 => 2f64.powi(-133),
        _ => 2f64.powi(-149),
    };
    let (is_zero, next) = (lanes.push_op(ScalarOp::Eq, &[x, zero])?, lanes.splat_number(dtype, smallest * ulps as f64));
    let moved = lanes.push_op(ScalarOp::Select, &[is_zero, next, moved])?;
    // There is nothing above infinity.
    let (limit, end) = (lanes.splat_number(dtype, f64::INFINITY * ulps as f64), ScalarOp::Eq);
    let is_limit = lanes.push_op(end, &[x, limit])?;
    lanes.push_op(ScalarOp::Select, &[is_limit, limit, moved])
}

/// Appends `√2·erf⁻¹(x)`.
fn scaled_erf_inv(lanes: &mut ElementwiseBuilder<'_>, x: Var, dtype: DType) -> VarResult {
    let wide = if dtype == DType::F64 { x } else { lanes.cast(x, DType::F32)? };
    let y = erf_inv(lanes.graph, wide)?;
    let y = lanes.cast(y, dtype)?;
    let root = lanes.splat_number(dtype, SQRT_2);
    lanes.push_rounded_op(ScalarOp::Mul, &[root, y], dtype)
}

/// Appends the error function, of f32 and smaller floats bit for bit as XLA computes it: an error here would be many
/// units in the last place of normal numbers close to 0.
fn erf(lanes: &mut ElementwiseBuilder<'_>, x: Var, dtype: DType) -> VarResult {
    if dtype == DType::F64 {
        return lanes.push_op(ScalarOp::Erf, &[x]);
    }
    let x = lanes.cast(x, DType::F32)?;
    let limits = [-ERF_SATURATION_INPUT, ERF_SATURATION_INPUT].map(|limit| lanes.splat_number(DType::F32, limit));
    let x = lanes.push_op(ScalarOp::Clamp, &[x, limits[0], limits[1]])?;
    let square = lanes.push_op(ScalarOp::Mul, &[x, x])?;
    let above = polynomial(lanes, square, DType::F32, &ERF_NUMERATOR)?;
    let above = lanes.push_op(ScalarOp::Mul, &[x, above])?;
    let below = polynomial(lanes, square, DType::F32, &ERF_DENOMINATOR)?;
    let y = lanes.push_op(ScalarOp::Div, &[above, below])?;
    lanes.cast(y, dtype)
}

/// Appends a polynomial of `x`, whose coefficients begin with that of the highest power.
fn polynomial(lanes: &mut ElementwiseBuilder<'_>, x: Var, dtype: DType, coefficients: &[f64]) -> VarResult {
    let mut p = lanes.splat_number(dtype, coefficients[0]);
    for &c in &coefficients[1..] {
        let c = lanes.splat_number(dtype, c);
        p = lanes.push_op(ScalarOp::Fma, &[p, x, c])?;
    }
    Ok(p)
}

/// The number beyond which the error function is 1 in f32.
const ERF_SATURATION_INPUT: f64 = 3.832506856900711;
/// Numerator of a rational approximation of `erf(x) / x`: coefficients of powers of x², the highest first.
const ERF_NUMERATOR: [f64; 5] =
    [0.00022905065861350646, 0.0034082910107109507, 0.05095569506238086, 0.18520832239976145, 1.128379143519084];
/// Denominator of a rational approximation of `erf(x) / x`: coefficients of powers of x², the highest first.
const ERF_DENOMINATOR: [f64; 7] = [
    -1.1791602954361697e-07,
    2.3547966471313183e-05,
    0.0010179625278914884,
    0.014070470171167667,
    0.11098505178285362,
    0.49746925110067536,
    1.0,
];

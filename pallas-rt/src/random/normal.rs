//! Normally distributed numbers, by the inverse of the error function.
use super::lanes::{Lanes, Made};
use super::uniform::{arrays, between};
use super::{Key, check_float, draw};
use crate::array::Array;
use crate::ops::Operand;
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
    draw(key, &[], shape, Loc::caller(), |lanes, key, _| {
        check_float("normal", dtype)?;
        let low = above_minus_one(lanes, dtype);
        let high = lanes.number(dtype, 1.0);
        let u = between(lanes, key, dtype, low, high)?;
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
    draw(key, &arrays(&[&lower, &upper]), shape, Loc::caller(), |lanes, key, vars| {
        check_float("truncated_normal", dtype)?;
        let vars = &mut vars.iter();
        let bounds = [lanes.float(&lower, vars, dtype)?, lanes.float(&upper, vars, dtype)?];
        // XLA multiplies by the reciprocal of a constant instead of dividing.
        let single = f64::from(1.0 / SQRT_2 as f32);
        let reciprocal = lanes.number(dtype, if dtype == DType::F64 { 1.0 / SQRT_2 } else { single });
        let mut share = |bound| {
            let x = lanes.op(ScalarOp::Mul, &[bound, reciprocal])?;
            erf(lanes, x, dtype)
        };
        let (a, b) = (share(bounds[0])?, share(bounds[1])?);
        let u = between(lanes, key, dtype, a, b)?;
        let x = scaled_erf_inv(lanes, u, dtype)?;
        // Strictly inside.
        let least = neighbour(lanes, bounds[0], dtype, 1)?;
        let most = neighbour(lanes, bounds[1], dtype, -1)?;
        let x = lanes.op(ScalarOp::Maximum, &[x, least])?;
        lanes.op(ScalarOp::Minimum, &[x, most])
    })
}

/// The number next to -1 towards 0.
pub(super) fn above_minus_one(lanes: &mut Lanes<'_>, dtype: DType) -> Var {
    lanes.number(dtype, -1.0 + fraction_unit(dtype) / 2.0)
}

/// The distance from 1 to the next larger number.
pub(super) fn fraction_unit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => 2f64.powi(-10),
        DType::Bf16 => 2f64.powi(-7),
        _ => f64::from(f32::EPSILON),
    }
}

/// The next number above (`by` 1) or below (`by` -1): the integer that its bits are, moved by one. Derivatives take it for
/// a constant.
fn neighbour(lanes: &mut Lanes<'_>, x: Var, dtype: DType, by: i64) -> Made {
    let integer = match dtype {
        DType::F64 => DType::I64,
        DType::F16 | DType::Bf16 => DType::I16,
        _ => DType::I32,
    };
    let x = lanes.constant_for_derivatives(x)?;
    let zero = lanes.number(dtype, 0.0);
    let bits = lanes.bitcast(x, integer)?;
    // Of negative numbers those with larger bits are smaller. The neighbours of zero are the smallest numbers.
    let (up, down) = (lanes.integer(integer, by), lanes.integer(integer, -by));
    let is_negative = lanes.op(ScalarOp::Lt, &[x, zero])?;
    let step = lanes.op(ScalarOp::Select, &[is_negative, down, up])?;
    let moved = lanes.op(ScalarOp::Add, &[bits, step])?;
    let moved = lanes.bitcast(moved, dtype)?;
    let smallest = match dtype {
        DType::F64 => 5e-324,
        DType::F16 => 2f64.powi(-24),
        DType::Bf16 => 2f64.powi(-133),
        _ => 2f64.powi(-149),
    };
    let (is_zero, next) = (lanes.op(ScalarOp::Eq, &[x, zero])?, lanes.number(dtype, smallest * by as f64));
    let moved = lanes.op(ScalarOp::Select, &[is_zero, next, moved])?;
    // There is nothing above infinity.
    let (limit, end) = (lanes.number(dtype, f64::INFINITY * by as f64), ScalarOp::Eq);
    let is_limit = lanes.op(end, &[x, limit])?;
    lanes.op(ScalarOp::Select, &[is_limit, limit, moved])
}

/// Appends `√2·erf⁻¹(x)`.
fn scaled_erf_inv(lanes: &mut Lanes<'_>, x: Var, dtype: DType) -> Made {
    let y = if dtype == DType::F64 {
        erf_inv(lanes, x, dtype, &DOUBLE)?
    } else {
        let x = lanes.cast(x, DType::F32)?;
        let y = erf_inv(lanes, x, DType::F32, &SINGLE)?;
        lanes.cast(y, dtype)?
    };
    let root = lanes.number(dtype, SQRT_2);
    lanes.rounded(ScalarOp::Mul, &[root, y], dtype)
}

/// Appends the error function of f32 and smaller floats as XLA computes it, to the bit: an error in a bound's share is
/// many units of the numbers close to 0.
fn erf(lanes: &mut Lanes<'_>, x: Var, dtype: DType) -> Made {
    if dtype == DType::F64 {
        return lanes.op(ScalarOp::Erf, &[x]);
    }
    let x = lanes.cast(x, DType::F32)?;
    let limits = [-ERF_LIMIT, ERF_LIMIT].map(|limit| lanes.number(DType::F32, limit));
    let x = lanes.op(ScalarOp::Clamp, &[x, limits[0], limits[1]])?;
    let square = lanes.op(ScalarOp::Mul, &[x, x])?;
    let above = polynomial(lanes, square, DType::F32, &ERF_ABOVE)?;
    let above = lanes.op(ScalarOp::Mul, &[x, above])?;
    let below = polynomial(lanes, square, DType::F32, &ERF_BELOW)?;
    let y = lanes.op(ScalarOp::Div, &[above, below])?;
    lanes.cast(y, dtype)
}

/// Appends a polynomial, whose coefficients begin with that of the highest power.
fn polynomial(lanes: &mut Lanes<'_>, x: Var, dtype: DType, coefficients: &[f64]) -> Made {
    let mut p = lanes.number(dtype, coefficients[0]);
    for &c in &coefficients[1..] {
        let c = lanes.number(dtype, c);
        p = lanes.op(ScalarOp::Fma, &[p, x, c])?;
    }
    Ok(p)
}

/// Beyond it the error function is 1 in f32.
const ERF_LIMIT: f64 = 3.832506856900711;
/// The numerator of the error function over x, by powers of x².
const ERF_ABOVE: [f64; 5] =
    [0.00022905065861350646, 0.0034082910107109507, 0.05095569506238086, 0.18520832239976145, 1.128379143519084];
/// Its denominator.
const ERF_BELOW: [f64; 7] = [
    -1.1791602954361697e-07,
    2.3547966471313183e-05,
    0.0010179625278914884,
    0.014070470171167667,
    0.11098505178285362,
    0.49746925110067536,
    1.0,
];

/// A polynomial for `w` below `end`: coefficients from the highest power, of `w - middle` in the first piece, of
/// `√w - middle` in the others.
struct Piece {
    end: f64,
    middle: f64,
    coefficients: &'static [f64],
}

/// `erf⁻¹(x) = x·p(w)` with `w = -ln(1 - x²)`, by polynomials for pieces of `w` (M. Giles: Approximating the erfinv
/// function, GPU Computing Gems 2, 2011), as XLA does.
fn erf_inv(lanes: &mut Lanes<'_>, x: Var, dtype: DType, pieces: &[Piece]) -> Made {
    let minus_x = lanes.op(ScalarOp::Neg, &[x])?;
    let minus_square = lanes.op(ScalarOp::Mul, &[x, minus_x])?;
    let log = lanes.op(ScalarOp::Log1p, &[minus_square])?;
    let w = lanes.op(ScalarOp::Neg, &[log])?;
    let root = lanes.op(ScalarOp::Sqrt, &[w])?;
    // From the last piece to the first, each where w is below its end.
    let mut y = None;
    for (i, piece) in pieces.iter().enumerate().rev() {
        let middle = lanes.number(dtype, piece.middle);
        let t = lanes.op(ScalarOp::Sub, &[if i == 0 { w } else { root }, middle])?;
        let p = polynomial(lanes, t, dtype, piece.coefficients)?;
        y = Some(match y {
            None => p,
            Some(beyond) => {
                let end = lanes.number(dtype, piece.end);
                let is_here = lanes.op(ScalarOp::Lt, &[w, end])?;
                lanes.op(ScalarOp::Select, &[is_here, p, beyond])?
            }
        });
    }
    let y = lanes.op(ScalarOp::Mul, &[y.expect("there are pieces"), x])?;
    let (size, one) = (lanes.op(ScalarOp::Abs, &[x])?, lanes.number(dtype, 1.0));
    let is_one = lanes.op(ScalarOp::Eq, &[size, one])?;
    let infinity = lanes.number(dtype, f64::INFINITY);
    let infinite = lanes.op(ScalarOp::Mul, &[x, infinity])?;
    lanes.op(ScalarOp::Select, &[is_one, infinite, y])
}

const SINGLE: [Piece; 2] = [
    Piece {
        end: 5.0,
        middle: 2.5,
        coefficients: &[
            2.81022636e-08,
            3.43273939e-07,
            -3.5233877e-06,
            -4.39150654e-06,
            0.00021858087,
            -0.00125372503,
            -0.00417768164,
            0.246640727,
            1.50140941,
        ],
    },
    Piece {
        end: f64::INFINITY,
        middle: 3.0,
        coefficients: &[
            -0.000200214257,
            0.000100950558,
            0.00134934322,
            -0.00367342844,
            0.00573950773,
            -0.0076224613,
            0.00943887047,
            1.00167406,
            2.83297682,
        ],
    },
];

const DOUBLE: [Piece; 3] = [
    Piece {
        end: 6.25,
        middle: 3.125,
        coefficients: &[
            -3.64441206401782e-21,
            -1.6850591381820166e-19,
            1.28584807152564e-18,
            1.1157877678025181e-17,
            -1.333171662854621e-16,
            2.0972767875968562e-17,
            6.637638134358324e-15,
            -4.054566272975207e-14,
            -8.151934197605472e-14,
            2.6335093153082323e-12,
            -1.2975133253453532e-11,
            -5.415412054294628e-11,
            1.0512122733215323e-09,
            -4.112633980346984e-09,
            -2.9070369957882005e-08,
            4.2347877827932404e-07,
            -1.3654692000834679e-06,
            -1.3882523362786469e-05,
            0.00018673420803405714,
            -0.000740702534166267,
            -0.006033670871430149,
            0.24015818242558962,
            1.6536545626831027,
        ],
    },
    Piece {
        end: 16.0,
        middle: 3.25,
        coefficients: &[
            2.2137376921775787e-09,
            9.075656193888539e-08,
            -2.7517406297064545e-07,
            1.8239629214389228e-08,
            1.5027403968909828e-06,
            -4.013867526981546e-06,
            2.9234449089955446e-06,
            1.2475304481671779e-05,
            -4.7318229009055734e-05,
            6.828485145957318e-05,
            2.4031110387097894e-05,
            -0.0003550375203628475,
            0.0009532893797373805,
            -0.0016882755560235047,
            0.002491442096107851,
            -0.003751208507569241,
            0.005370914553590064,
            1.0052589676941592,
            3.0838856104922208,
        ],
    },
    Piece {
        end: f64::INFINITY,
        middle: 5.0,
        coefficients: &[
            -2.7109920616438573e-11,
            -2.555641816996525e-10,
            1.5076572693500548e-09,
            -3.789465440126737e-09,
            7.61570120807834e-09,
            -1.496002662714924e-08,
            2.914795345090108e-08,
            -6.771199775845234e-08,
            2.2900482228026655e-07,
            -9.9298272942317e-07,
            4.526062597223154e-06,
            -1.968177810553167e-05,
            7.599527703001776e-05,
            -0.00021503011930044477,
            -0.00013871931833623122,
            1.0103004648645344,
            4.849906401408584,
        ],
    },
];

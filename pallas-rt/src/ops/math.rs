//! Elementwise functions of `jax.numpy` that are not operations of the scalar table.
use super::elementwise_broadcast::Operand;
use super::formula::formulas;
use crate::array::Array;
use pallas_ir::structural::Bitcast;
use pallas_ir::{DType, E, Loc};
use std::f64::consts;

formulas! {
    /// `x * x`.
    Number square(x) => x * x;
    /// The array itself, truth values as i32.
    Number positive(x) => x;
    /// `1 / x`, for integers as f32.
    Float reciprocal(x) => x.recip();
    /// Nearest whole number, ties to even, for integers as f32.
    Float rint(x) => x.round();
    /// Absolute value, for integers as f32.
    Float fabs(x) => x.abs();
    /// Natural logarithm: `log` by its name in Rust's standard library; NaN below zero.
    Float ln(x) => x.log();
    /// Logarithm to base 10; NaN below zero.
    Float log10(x) => x.log() * consts::LOG10_E;
    /// Cube root.
    Float cbrt(x) => copy_sign(x, x.abs().pow(x.like(1.0 / 3.0)));
    /// Inverse hyperbolic sine.
    Float asinh(x) => {
        let is_small = (x * x).is_finite();
        let (a, one) = (is_small.select(x.abs(), x.like(1.0)), x.like(1.0));
        let near = (a + a * (a / (one + (a * a + 1.0).sqrt()))).log1p();
        copy_sign(x, is_small.select(near, is_small.select(one, x.abs()).log() + consts::LN_2))
    };
    /// Inverse hyperbolic cosine; NaN below 1.
    Float acosh(x) => {
        let is_small = (x * x).is_finite();
        let a = is_small.select(x, x.like(2.0));
        let near = (a - 1.0 + ((a - 1.0) * (a + 1.0)).sqrt()).log1p();
        is_small.select(near, is_small.select(x.like(1.0), x).log() + consts::LN_2)
    };
    /// Inverse hyperbolic tangent; NaN outside of [-1, 1].
    Float atanh(x) => (x.log1p() - (-x).log1p()) * 0.5;
    /// Degrees to radians.
    Float radians(x) => x * (consts::PI / 180.0);
    /// Radians to degrees.
    Float degrees(x) => x * (180.0 / consts::PI);
    /// `sin(πx) / (πx)`, and 1 at 0.
    Float sinc(x) as dtype => sinc(x, dtype);
    /// `sqrt(x² + y²)` without overflow of the squares.
    Float hypot(x, other) as dtype => hypot(x, other, dtype);
    /// `ln(eˣ + eʸ)` without overflow.
    Float logaddexp(x, other) => max_plus_correction(x, other, |below| below.exp().log1p());
    /// `log2(2ˣ + 2ʸ)` without overflow.
    Float logaddexp2(x, other) => max_plus_correction(x, other, |below| below.exp2().log1p() * consts::LOG2_E);
    /// `x` to a power, both as floats.
    Float float_power(x, exponent) => x.pow(exponent);
    /// The magnitude of `x` with the sign bit of another array, also of its zeros and NaNs.
    Float copysign(x, sign) as dtype => sign_bit(sign, dtype).select(-x.abs(), x.abs());
    /// 0 below zero, 1 above, and `middle` at 0.
    Float heaviside(x, middle) => {
        let above = x.gt(x.zero()).select(x.like(1.0), x.is_nan().select(x, x.zero()));
        x.eq(x.zero()).select(middle, above)
    };
    /// Quotient rounded down; that of integers is an integer. An integer divided by 0 gives -2, and 0 divided by 0
    /// gives -1; of an unsigned type both give the highest number.
    Number floor_divide(x, divisor) as dtype => {
        let rest = x % divisor;
        let wraps = has_other_sign(rest, divisor);
        if dtype.is_float() {
            // By zero: an infinity or NaN, as the quotient, where the remainder is NaN.
            let whole = divisor.eq(divisor.zero()).select(x, x - rest) / divisor;
            wraps.select(whole - 1.0, whole).round()
        } else {
            let whole = x / divisor;
            if !dtype.is_signed() {
                return whole;
            }
            let by_zero = rest.ne(rest.zero()) & divisor.eq(divisor.zero());
            (wraps | by_zero).select(whole - whole.like(1.0), whole)
        }
    };
    /// Remainder with the sign of the divisor; the operator `%` has Rust's meaning, the sign of the dividend. The
    /// remainder by an integer 0 is 0.
    Number remainder(x, divisor) as dtype => {
        let rest = x % replace_zero_divisor(divisor, dtype);
        has_other_sign(rest, divisor).select(rest + divisor, rest)
    };
    /// Remainder with the sign of the dividend, as of the operator `%`. The remainder by an integer 0 is 0.
    Number fmod(x, divisor) as dtype => x % replace_zero_divisor(divisor, dtype);
    /// The larger of two numbers, or the other one if one is NaN; the second if they are equal.
    Number fmax(x, other) as dtype => {
        let larger = x.gt(other).select(x, other);
        if dtype.is_float() { other.is_nan().select(x, larger) } else { larger }
    };
    /// The smaller of two numbers, or the other one if one is NaN; the second if they are equal.
    Number fmin(x, other) as dtype => {
        let smaller = x.lt(other).select(x, other);
        if dtype.is_float() { other.is_nan().select(x, smaller) } else { smaller }
    };
    /// `min(max(x, low), high)`, broadcast; where `x` equals a bound, both have half of the slope.
    Number clip(x, low, high) => x.maximum(low).minimum(high);
    /// NaN replaced by 0, infinities by the largest and the lowest finite number.
    Number nan_to_num(x) as dtype => {
        let Some(most) = largest_finite(dtype) else { return x };
        let (low, high) = (x.like(-most), x.like(most));
        let finite = x.gt(high).select(high, x.lt(low).select(low, x));
        x.is_nan().select(x.zero(), finite)
    };
}

impl Array {
    /// The results of `floor_divide` and `remainder`.
    #[track_caller]
    #[must_use]
    pub fn divmod(&self, divisor: impl Into<Operand>) -> (Array, Array) {
        let divisor = divisor.into();
        (self.floor_divide(divisor.clone()), self.remainder(divisor))
    }

    /// Fractional and whole part, both with the sign of the number.
    #[track_caller]
    #[must_use]
    pub fn modf(&self) -> (Array, Array) {
        let whole = self.round_toward_zero();
        (self - &whole, whole)
    }

    #[track_caller]
    fn round_toward_zero(&self) -> Array {
        super::formula::apply_formula(super::formula::FormulaDtype::Float, [self.into()], Loc::caller(), |[x], _| {
            x.trunc()
        })
    }

    /// True where the sign bit is set: below zero, and for -0.
    #[track_caller]
    #[must_use]
    pub fn signbit(&self) -> Array {
        super::formula::apply_formula(
            super::formula::FormulaDtype::Number,
            [self.into()],
            Loc::caller(),
            |[x], dtype| sign_bit(x, dtype),
        )
    }
}

/// Returns `magnitude` with the sign of `x`; the derivative at 0 is that from above.
fn copy_sign<'g>(x: E<'g>, magnitude: E<'g>) -> E<'g> {
    x.lt(x.zero()).select(-magnitude, magnitude)
}

/// Returns the terms of the series of `sin(πr) / (πr)` in `r²` after the first: `(-π²)ᵏ / (2k + 1)!`. Half of a period
/// needs 6 in f32 and 11 in f64, also for the first two derivatives.
fn sinc_series_coefficients(dtype: DType) -> Vec<f64> {
    let term = |last: &mut f64, k: u32| {
        *last *= -consts::PI.powi(2) / f64::from(2 * k * (2 * k + 1));
        Some(*last)
    };
    (1..=if dtype == DType::F64 { 11 } else { 6 }).scan(1.0, term).collect()
}

/// Returns `sin(πx) / (πx)`, as JAX computes it: by the distance `r` to the next whole number `n`, which is exact, as
/// `(-1)ⁿ sin(πr) / (πx)`. A quotient of sines would lose the digits of its derivative near 0.
fn sinc<'g>(x: E<'g>, dtype: DType) -> E<'g> {
    let n = x.round();
    let is_infinite = x.abs().eq(x.like(f64::INFINITY));
    let r = is_infinite.select(x.zero(), x - n);
    let t = r * r;
    let series = sinc_series_coefficients(dtype).into_iter().rev().fold(x.zero(), |sum, term| sum * t + term) * t;
    let (is_odd, is_near) = (((n * 0.5).round() * 2.0).ne(n), n.eq(n.zero()));
    let divisor = is_odd.select(-x, is_near.select(x.like(1.0), x));
    is_near.select(series + 1.0, (r + r * series) / divisor)
}

/// Returns `max(x, y)` plus `correction` of the difference of the smaller and the larger one. Infinities of one sign
/// have no difference: each has half of the slope. Where an operand is NaN, so are the slopes.
fn max_plus_correction<'g>(x: E<'g>, y: E<'g>, correction: impl FnOnce(E<'g>) -> E<'g>) -> E<'g> {
    let more = x.maximum(y);
    let has_rest = (x - y).eq(x - y);
    let below = has_rest.select(x.minimum(y) - more, x.zero());
    propagate_nan(x, y, has_rest.select(more + correction(below), more))
}

/// Returns `value`, or NaN whose derivatives are NaN too where `x` or `y` is NaN; a maximum or minimum alone would have
/// finite derivatives there.
fn propagate_nan<'g>(x: E<'g>, y: E<'g>, value: E<'g>) -> E<'g> {
    let is_nan = x.is_nan() | y.is_nan();
    // Other operands are left out of the product, which may overflow.
    let (x, y) = (is_nan.select(x, x.zero()), is_nan.select(y, y.zero()));
    is_nan.select((x + y) * (x * y), value)
}

/// Returns `sqrt(x² + y²)`, computed of operands times a power of two, so that squares neither overflow nor underflow;
/// slopes are `x` and `y` divided by the root. An infinity beside NaN gives infinity.
fn hypot<'g>(x: E<'g>, y: E<'g>, dtype: DType) -> E<'g> {
    // Squares of numbers below 2^high are finite, and so is the square of the least number times 2^by.
    let (by, high) = match dtype {
        DType::F64 => (537, 511),
        DType::F16 => (12, 7),
        DType::Bf16 => (67, 63),
        _ => (75, 63),
    };
    let power = |n: i32| x.like(2f64.powi(n));
    let more = x.abs().maximum(y.abs());
    let (is_high, is_low) = (more.ge(power(high)), more.le(power(high - by)));
    let scale = is_high.select(power(-by), is_low.select(power(by), power(0)));
    let back = is_high.select(power(by), is_low.select(power(-by), power(0)));
    let (a, b) = (x * scale, y * scale);
    let infinity = x.like(f64::INFINITY);
    let is_infinite = x.abs().eq(infinity) | y.abs().eq(infinity);
    is_infinite.select(infinity, (a * a + b * b).sqrt() * back)
}

/// Returns the divisor with integers 0 replaced by 1, by which every integer has the remainder 0.
fn replace_zero_divisor<'g>(divisor: E<'g>, dtype: DType) -> E<'g> {
    if dtype.is_float() { divisor } else { divisor.eq(divisor.zero()).select(divisor.like(1.0), divisor) }
}

/// Returns true where a remainder is not 0 and its sign is not the divisor's.
fn has_other_sign<'g>(remainder: E<'g>, divisor: E<'g>) -> E<'g> {
    remainder.ne(remainder.zero()) & (remainder.lt(remainder.zero()) ^ divisor.lt(divisor.zero()))
}

/// Returns true where the sign bit of a float is set, or an integer is below zero.
fn sign_bit(x: E<'_>, dtype: DType) -> E<'_> {
    let to = match dtype {
        DType::F64 => DType::I64,
        DType::F32 => DType::I32,
        DType::F16 | DType::Bf16 => DType::I16,
        _ => return x.lt(x.zero()),
    };
    let bits = x.apply(Bitcast { to }, &[x]);
    bits.lt(bits.zero())
}

/// Returns the largest finite number of a float type; `None` for other types.
fn largest_finite(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F64 => Some(f64::MAX),
        DType::F32 => Some(f64::from(f32::MAX)),
        DType::F16 => Some(half::f16::MAX.to_f64()),
        DType::Bf16 => Some(half::bf16::MAX.to_f64()),
        _ => None,
    }
}

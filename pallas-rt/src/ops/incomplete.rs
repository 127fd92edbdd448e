//! Incomplete gamma and beta functions.
//!
//! Sums of series and continued fractions, as in XLA and Cephes: each element goes on until it has converged, and keeps
//! its sum from there on, so no element depends on another.
use super::dtype_promotion::promote_types;
use super::special::CompiledBinary;
use super::{broadcast_arrays, select};
use crate::array::Array;
use crate::jit::while_loop;
use crate::{custom_jvp, jit};
use pallas_device::error::Result;
use pallas_ir::DType;
use std::sync::LazyLock;

/// A compiled function of three arrays.
type CompiledTernary = Box<dyn Fn(&Array, &Array, &Array) -> Result<Array> + Send + Sync>;

/// Maximum number of terms of a continued fraction of the gamma function.
const MAX_FRACTION_TERMS: f64 = 2000.0;

impl Array {
    /// Regularized lower incomplete gamma function of the array's order at x; `jax.scipy.special.gammainc(self, x)`.
    ///
    /// Floating-point arrays that broadcast; integers are taken as f32. NaN where one of both is negative. Derivatives
    /// by both are those of JAX.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let (a, x) = (Array::from_slice(&[1.0f32], &[1])?, Array::from_slice(&[0.5f32], &[1])?);
    /// assert!((a.gammainc(&x).to_vec::<f32>()?[0] - (1.0 - (-0.5f32).exp())).abs() < 1e-6);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn gammainc(&self, x: &Array) -> Array {
        call_with_pair(&LOWER_GAMMA, self, x)
    }

    /// One minus [`gammainc`](Array::gammainc), precise where that is close to 1; `jax.scipy.special.gammaincc(self,
    /// x)`.
    #[track_caller]
    #[must_use]
    pub fn gammaincc(&self, x: &Array) -> Array {
        call_with_pair(&UPPER_GAMMA, self, x)
    }

    /// Regularized incomplete beta function of the parameters `self` and `b` at x; `jax.scipy.special.betainc(self, b,
    /// x)`.
    ///
    /// Floating-point arrays that broadcast; integers are taken as f32. NaN for negative parameters, and for x outside
    /// of [0, 1]. As in JAX it has a derivative by x alone; one by a parameter is an error.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let number = |x: f32| Array::from_slice(&[x], &[]);
    /// let y = number(2.0)?.betainc(&number(1.0)?, &number(0.5)?).to_vec::<f32>()?;
    /// assert!((y[0] - 0.25).abs() < 1e-6);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn betainc(&self, b: &Array, x: &Array) -> Array {
        let [a, b, x] = &promote_and_broadcast([self, b, x])[..] else { unreachable!("three arrays") };
        cast_or_poisoned(INCOMPLETE_BETA(&widen_floats(a), &widen_floats(b), &widen_floats(x)), x)
    }
}

/// The derivative of a number of the gamma distribution by the distribution's parameter, where the number's quantile
/// stays the same; `jax.lax.random_gamma_grad`.
pub(crate) fn random_gamma_grad(a: &Array, sample: &Array) -> Array {
    call_with_pair(&GAMMA_SAMPLE_DERIVATIVE, a, sample)
}

/// Returns the arrays in one shape and floating-point type.
fn promote_and_broadcast<const N: usize>(all: [&Array; N]) -> Vec<Array> {
    let dtype = all.iter().map(|x| x.dtype()).reduce(promote_types).unwrap_or(DType::F32);
    let dtype = if dtype.is_float() { dtype } else { DType::F32 };
    broadcast_arrays(&all).iter().map(|x| x.cast(dtype)).collect()
}

/// Casts 16-bit floats to f32.
fn widen_floats(x: &Array) -> Array {
    x.cast(x.dtype().accumulator())
}

/// Returns the result in the type of `like`, or an array that holds the error.
fn cast_or_poisoned(made: Result<Array>, like: &Array) -> Array {
    let bad = |error| Array::new_poisoned(error, like.client().clone(), like.dtype(), like.shape());
    made.map_or_else(bad, |x| x.cast(like.dtype()))
}

/// Calls a compiled function of two arrays, which get one shape and type first.
fn call_with_pair(f: &CompiledBinary, a: &Array, x: &Array) -> Array {
    let [a, x] = &promote_and_broadcast([a, x])[..] else { unreachable!("two arrays") };
    cast_or_poisoned(f(&widen_floats(a), &widen_floats(x)), x)
}

/// The density at `x` of the gamma distribution with the parameter `a`.
fn gamma_density(a: &Array, x: &Array) -> Array {
    ((a - 1.0) * x.log() - x - a.lgamma()).exp()
}

/// Computes [`Array::gammainc`].
static LOWER_GAMMA: LazyLock<CompiledBinary> = LazyLock::new(|| {
    jit(custom_jvp(lower_gamma, |(a, x): &(Array, Array), (da, dx): &(Array, Array)| {
        Ok::<_, crate::Error>((a.gammainc(x), GAMMA_ORDER_DERIVATIVE(a, x)? * da + gamma_density(a, x) * dx))
    }))
    .into_fn()
});
/// Computes [`Array::gammaincc`].
static UPPER_GAMMA: LazyLock<CompiledBinary> = LazyLock::new(|| {
    jit(custom_jvp(upper_gamma, |(a, x): &(Array, Array), (da, dx): &(Array, Array)| {
        Ok::<_, crate::Error>((a.gammaincc(x), -(GAMMA_ORDER_DERIVATIVE(a, x)? * da + gamma_density(a, x) * dx)))
    }))
    .into_fn()
});
/// Computes the derivative of [`Array::gammainc`] by its order.
static GAMMA_ORDER_DERIVATIVE: LazyLock<CompiledBinary> =
    LazyLock::new(|| jit(|a: &Array, x: &Array| gamma_derivative(a, x, GammaSumKind::Derivative)).into_fn());
/// Computes [`random_gamma_grad`].
static GAMMA_SAMPLE_DERIVATIVE: LazyLock<CompiledBinary> =
    LazyLock::new(|| jit(|a: &Array, x: &Array| gamma_derivative(a, x, GammaSumKind::SampleDerivative)).into_fn());
/// Computes [`Array::betainc`].
static INCOMPLETE_BETA: LazyLock<CompiledTernary> = LazyLock::new(|| {
    jit(|a: &Array, b: &Array, x: &Array| {
        // The rule captures the parameters, so a derivative by them is refused.
        let (a, b) = (a.clone(), b.clone());
        let (a_, b_) = (a.clone(), b.clone());
        custom_jvp(
            move |x: &Array| incomplete_beta(&a, &b, x),
            move |(x,): &(Array,), (dx,): &(Array,)| {
                let slope = (&b_ - 1.0) * (-x).log1p() + (&a_ - 1.0) * x.log() - a_.betaln(&b_);
                (a_.betainc(&b_, x), slope.exp() * dx)
            },
        )(x)
    })
    .into_fn()
});

/// Quantity that a series or a continued fraction of the incomplete gamma function computes: the function itself, or a
/// derivative.
#[derive(Clone, Copy, PartialEq)]
enum GammaSumKind {
    Value,
    /// The derivative by the order.
    Derivative,
    /// The derivative of a sample by the order; see [`random_gamma_grad`].
    SampleDerivative,
}

/// Returns the distance from 1 to the next larger number, the smallest normal number, and the largest number of a type.
fn epsilon_and_normal_range(dtype: DType) -> [f64; 3] {
    match dtype {
        DType::F64 => [f64::EPSILON, f64::MIN_POSITIVE, f64::MAX],
        _ => [f32::EPSILON.into(), f32::MIN_POSITIVE.into(), f32::MAX.into()],
    }
}

fn not(x: &Array) -> Array {
    x.logical_not()
}

/// Returns the arrays `next` where the condition holds, and `before` elsewhere.
fn select_each(condition: &Array, next: &[Array], before: &[Array]) -> Vec<Array> {
    next.iter().zip(before).map(|(x, y)| select(condition, x, y)).collect()
}

/// Returns `x^a e^-x / Γ(a)`, and true where it underflows.
fn gamma_prefactor(a: &Array, x: &Array) -> (Array, Array) {
    let log = a * x.log() - x - a.lgamma();
    (log.exp(), log.lt(-epsilon_and_normal_range(x.dtype())[2].ln()))
}

/// Computes the regularized lower incomplete gamma function of order `a` at `x`: by its series where that converges
/// fast, else as 1 minus the continued fraction of the upper function.
fn lower_gamma(a: &Array, x: &Array) -> Result<Array> {
    let infinity = f64::INFINITY;
    let by_fraction = x.ge(1.0) & x.gt(a);
    let (ax, underflows) = gamma_prefactor(a, x);
    let wrong = is_outside_domain(a, x);
    let enabled = not(&(x.eq(0.0) | &wrong | underflows | x.eq(infinity) | a.eq(infinity)));
    let rest = upper_gamma_fraction(&ax, x, a, &(&enabled & &by_fraction), GammaSumKind::Value)?;
    let sum = lower_gamma_series(&ax, x, a, &(&enabled & not(&by_fraction)), GammaSumKind::Value)?;
    let mut y = select(&by_fraction, 1.0 - rest, sum);
    for (is, value) in [(a.eq(infinity), 0.0), (x.eq(0.0), 0.0), (x.eq(infinity), 1.0), (wrong, f64::NAN)] {
        y = select(&is, value, y);
    }
    Ok(y)
}

/// Computes the regularized upper incomplete gamma function of order `a` at `x`: by its continued fraction where that
/// converges fast, else as 1 minus the series of the lower function.
fn upper_gamma(a: &Array, x: &Array) -> Result<Array> {
    let infinity = f64::INFINITY;
    let by_series = x.lt(1.0) | x.lt(a);
    let (ax, underflows) = gamma_prefactor(a, x);
    let wrong = is_outside_domain(a, x);
    let enabled = not(&(&wrong | underflows | x.eq(infinity) | a.eq(0.0) | a.eq(infinity)));
    let sum = lower_gamma_series(&ax, x, a, &(&enabled & &by_series), GammaSumKind::Value)?;
    let rest = upper_gamma_fraction(&ax, x, a, &(&enabled & not(&by_series)), GammaSumKind::Value)?;
    let mut y = select(&by_series, 1.0 - sum, rest);
    for (is, value) in [(a.eq(infinity), 1.0), (x.eq(infinity) | a.eq(0.0), 0.0), (wrong, f64::NAN)] {
        y = select(&is, value, y);
    }
    Ok(y)
}

/// Returns true where the incomplete gamma functions of order `a` at `x` are NaN: for negative or NaN operands, and
/// where both are 0 or both are infinite.
fn is_outside_domain(a: &Array, x: &Array) -> Array {
    let infinity = f64::INFINITY;
    let corners = a.eq(0.0) & x.eq(0.0) | a.eq(infinity) & x.eq(infinity);
    x.lt(0.0) | a.lt(0.0) | corners | a.is_nan() | x.is_nan()
}

/// Computes a derivative by the order `a` for the regularized lower incomplete gamma function at `x`: its own, or that
/// of a gamma sample `x` whose quantile stays the same, as `kind` says.
fn gamma_derivative(a: &Array, x: &Array, kind: GammaSumKind) -> Result<Array> {
    let by_fraction = x.gt(1.0) & x.gt(a);
    let (ax, underflows) = gamma_prefactor(a, x);
    let wrong = x.lt(0.0) | a.le(0.0) | a.is_nan() | x.is_nan();
    let enabled = not(&(x.eq(0.0) | &wrong | underflows));
    let rest = upper_gamma_fraction(&ax, x, a, &(&enabled & &by_fraction), kind)?;
    let sum = lower_gamma_series(&ax, x, a, &(&enabled & not(&by_fraction)), kind)?;
    let y = select(&x.eq(0.0), 0.0, select(&by_fraction, -rest, sum));
    Ok(select(&wrong, f64::NAN, y))
}

/// Sums the power series of the regularized lower incomplete gamma function of order `a` at `x`, or of the derivative
/// that `kind` asks for, where `enabled` is true; `prefactor` is that of [`gamma_prefactor`].
fn lower_gamma_series(prefactor: &Array, x: &Array, a: &Array, enabled: &Array, kind: GammaSumKind) -> Result<Array> {
    let [epsilon, ..] = epsilon_and_normal_range(x.dtype());
    let (zero, one) = (a.zeros_like(), a.ones_like());
    let first = vec![enabled.clone(), a.clone(), one.clone(), one, zero.clone(), zero];
    let all = while_loop(
        &first,
        |state: &Vec<Array>| state[0].any(..),
        |state: &Vec<Array>| {
            let [enabled, r, c, sum, dc, dsum] = &state[..] else { unreachable!("six arrays") };
            let r = r + 1.0;
            let dc = dc * (x / &r) - (c * x) / (&r * &r);
            let dsum = dsum + &dc;
            let c = c * (x / &r);
            let sum = sum + &c;
            let change = if kind == GammaSumKind::Value { &c / &sum } else { (&dc / &dsum).abs() };
            let goes_on = enabled & change.gt(epsilon);
            [vec![goes_on], select_each(enabled, &[r, c, sum, dc, dsum], &state[1..])].concat()
        },
    )?;
    let (sum, dsum) = (&all[3], &all[5]);
    let slope = || x.log() - (a + 1.0).digamma();
    Ok(match kind {
        GammaSumKind::Value => sum * prefactor / a,
        GammaSumKind::Derivative => prefactor * (sum * slope() + dsum) / a,
        GammaSumKind::SampleDerivative => -(dsum + sum * slope()) * x / a,
    })
}

/// Computes the continued fraction of the regularized upper incomplete gamma function of order `a` at `x`, or the
/// derivative that `kind` asks for, where `enabled` is true; `prefactor` is that of [`gamma_prefactor`].
fn upper_gamma_fraction(prefactor: &Array, x: &Array, a: &Array, enabled: &Array, kind: GammaSumKind) -> Result<Array> {
    let [epsilon, ..] = epsilon_and_normal_range(x.dtype());
    let (zero, one) = (x.zeros_like(), x.ones_like());
    let y = 1.0 - a;
    let z = x + &y + 1.0;
    let (p, q) = (x + 1.0, &z * x);
    let sum = &p / &q;
    let slope = (&zero + &sum * x) / &q;
    let first = vec![
        enabled.clone(),
        crate::ops::zeros(&[], x.dtype()),
        sum,
        y,
        z,
        p,
        q,
        one,
        x.clone(),
        zero.clone(),
        zero.clone(),
        zero,
        -x,
        slope,
    ];
    let all = while_loop(
        &first,
        |state: &Vec<Array>| state[1].lt(MAX_FRACTION_TERMS) & state[0].any(..),
        |state: &Vec<Array>| {
            let [enabled, n, sum, y, z, p1, q1, p2, q2, dp2, dq2, dp1, dq1, slope] = &state[..] else {
                unreachable!("fourteen arrays")
            };
            let (n, y, z) = (n + 1.0, y + 1.0, z + 2.0);
            let yn = &y * &n;
            let (p, q) = (p1 * &z - p2 * &yn, q1 * &z - q2 * &yn);
            let is_some = q.ne(0.0);
            let ratio = &p / &q;
            let nearer = select(&is_some, ((sum - &ratio) / &ratio).abs(), 1.0);
            let sum = select(&is_some, &ratio, sum);
            let dp = dp1 * &z - p1 - dp2 * &yn + p2 * &n;
            let dq = dq1 * &z - q1 - dq2 * &yn + q2 * &n;
            let next_slope = select(&is_some, (&dp - &sum * &dq) / &q, slope);
            let turn = select(&is_some, (&next_slope - slope).abs(), 1.0);
            // Large terms are made smaller together, which changes no ratio.
            let is_large = p.abs().gt(1.0 / epsilon);
            let scaled = |x: &Array| select(&is_large, x * epsilon, x);
            let still = if kind == GammaSumKind::Value { nearer.gt(epsilon) } else { turn.gt(epsilon) };
            let next =
                [vec![sum, y, z], [&p, &q, p1, q1, dp1, dq1, &dp, &dq].map(scaled).to_vec(), vec![next_slope]].concat();
            [vec![enabled & still, n], select_each(enabled, &next, &state[2..])].concat()
        },
    )?;
    let (sum, dsum) = (&all[2], &all[13]);
    let slope = || x.log() - a.digamma();
    Ok(match kind {
        GammaSumKind::Value => sum * prefactor,
        GammaSumKind::Derivative => prefactor * (sum * slope() + dsum),
        GammaSumKind::SampleDerivative => -((dsum + sum * slope()) * x),
    })
}

/// Computes the incomplete beta function by its continued fraction (DLMF 8.17.22), on the side where that converges
/// fast.
fn incomplete_beta(a: &Array, b: &Array, x: &Array) -> Result<Array> {
    let infinity = f64::INFINITY;
    let a_is_zero = a.eq(0.0) | b.eq(infinity);
    let b_is_zero = b.eq(0.0) | a.eq(infinity);
    let is_zero = &b_is_zero & x.ne(1.0) | &a_is_zero & x.eq(0.0);
    let is_one = &a_is_zero & x.ne(0.0) | &b_is_zero & x.eq(1.0);
    let is_nan = a.is_nan() | b.is_nan() | x.is_nan();
    let wrong = a.lt(0.0) | b.lt(0.0) | x.lt(0.0) | x.gt(1.0) | (a_is_zero & b_is_zero) | is_nan;

    let fast = x.lt((a + 1.0) / (a + b + 2.0));
    let (a, b) = (select(&fast, a, b), select(&fast, b, a));
    let x = select(&fast, x, 1.0 - x);
    let sum = beta_fraction(&a, &b, &x)?;
    // a Γ(a) is 1 for the smallest a, where Γ(a) is infinite.
    let [_, smallest, _] = epsilon_and_normal_range(x.dtype());
    let rest = b.lgamma() - (&a + &b).lgamma();
    let small = ((-&x).log1p() * &b - &rest).exp();
    let large = (x.log() * &a + (-&x).log1p() * &b - (a.lgamma() + &rest)).exp() / &a;
    let y = sum * select(&a.lt(2.0 * smallest), small, large);
    let mut y = select(&fast, &y, 1.0 - &y);
    for (is, value) in [(is_zero, 0.0), (is_one, 1.0), (wrong, f64::NAN)] {
        y = select(&is, value, y);
    }
    Ok(y)
}

/// Computes the continued fraction of [`incomplete_beta`] by the algorithm of Lentz, Thompson and Barnett.
fn beta_fraction(a: &Array, b: &Array, x: &Array) -> Result<Array> {
    let half = epsilon_and_normal_range(x.dtype())[0] / 2.0;
    let most = if x.dtype() == DType::F64 { 600 } else { 200 };
    let not_small = |x: Array| select(&x.abs().lt(half), half, &x);
    let first = not_small(x.zeros_like());
    let start = vec![
        crate::ops::full(&[], 1, DType::I32),
        x.ones_like().cast(DType::Bool),
        first.clone(),
        x.zeros_like(),
        first,
    ];
    let all = while_loop(
        &start,
        |state: &Vec<Array>| state[0].lt(most) & state[1].any(..),
        |state: &Vec<Array>| {
            let [n, open, c, d, h] = &state[..] else { unreachable!("five arrays") };
            let half_n = (n - 1).floor_divide(2);
            let m = half_n.cast(x.dtype());
            let twice = &m * 2.0;
            let first_even = -(a + b) * x / (a + 1.0);
            let even = -(a + &m) * (a + b + &m) * x / ((a + &twice) * (a + &twice + 1.0));
            let even = select(&half_n.eq(0), first_even, even);
            let odd = &m * (b - &m) * x / ((a + &twice - 1.0) * (a + &twice));
            let above = select(&n.remainder(2).eq(0), even, odd);
            let above = select(&n.eq(1), 1.0, above);
            let next_c = not_small(1.0 + &above / c);
            let next_d = not_small(1.0 + above * d).recip();
            let delta = &next_c * &next_d;
            let next_h = h * &delta;
            let far = (delta - 1.0).abs().ge(half);
            [vec![n + 1, open & far], select_each(open, &[next_c, next_d, next_h], &state[2..])].concat()
        },
    )?;
    Ok(all[4].clone())
}

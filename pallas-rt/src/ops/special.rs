//! Functions of `jax.scipy.special` with stated derivatives.
use super::elementwise_broadcast::Operand;
use super::erf_inv::erf_inv;
use super::formula::{FormulaDtype, apply_formula};
use super::select;
use crate::array::Array;
use crate::jit::apply;
use crate::{custom_jvp, jit};
use pallas_device::error::Result;
use pallas_ir::{DType, E, Loc};
use std::f64::consts::PI;
use std::sync::LazyLock;

/// A compiled function of one array.
type CompiledUnary = Box<dyn Fn(&Array) -> Result<Array> + Send + Sync>;
/// A compiled function of two arrays that broadcast.
pub(super) type CompiledBinary = Box<dyn Fn(&Array, &Array) -> Result<Array> + Send + Sync>;

/// Returns the array as floating-point numbers: integers and truth values as f32.
fn to_float(x: &Array) -> Array {
    if x.dtype().is_float() { x.clone() } else { x.cast(DType::F32) }
}

/// Makes an array by a formula of one array of floats.
fn apply_float_formula(x: &Array, f: impl for<'g> Fn(E<'g>) -> E<'g>) -> Array {
    apply_formula(FormulaDtype::Float, [x.into()], Loc::caller(), |[x], _| f(x))
}

/// Calls a compiled function; an error becomes an array that holds it.
fn call_or_poisoned(f: &CompiledUnary, x: &Array) -> Array {
    let x = to_float(x);
    f(&x).unwrap_or_else(|error| Array::new_poisoned(error, x.client().clone(), x.dtype(), x.shape()))
}

/// Calls a compiled function of two arrays, which get one shape and type first; an error becomes an array that holds
/// it.
fn call_binary_or_poisoned(f: &CompiledBinary, x: &Array, y: impl Into<Operand>) -> Array {
    let zero = apply_formula(FormulaDtype::Float, [x.into(), y.into()], Loc::caller(), |[_, y], _| y);
    let x = apply_formula(FormulaDtype::Float, [x.into(), (&zero).into()], Loc::caller(), |[x, _], _| x);
    f(&x, &zero).unwrap_or_else(|error| Array::new_poisoned(error, x.client().clone(), x.dtype(), x.shape()))
}

impl Array {
    /// Logarithm of the magnitude of the gamma function; `jax.scipy.special.gammaln`, `lax.lgamma`. Integers are taken
    /// as f32. Infinite at 0 and at the negative whole numbers.
    ///
    /// By Lanczos' approximation of 1964, with its sum for g = 7.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let y = Array::from_slice(&[1.0f32, 5.0], &[2])?.lgamma().to_vec::<f32>()?;
    /// assert!(y[0].abs() < 1e-6 && (y[1] - 24f32.ln()).abs() < 1e-5);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn lgamma(&self) -> Array {
        call_or_poisoned(&LGAMMA, self)
    }

    /// Derivative of [`lgamma`](Array::lgamma); `jax.scipy.special.digamma`. `-inf` at 0, NaN at the
    /// negative whole numbers.
    #[track_caller]
    #[must_use]
    pub fn digamma(&self) -> Array {
        call_or_poisoned(&DIGAMMA, self)
    }

    /// The inverse of the error function; `jax.scipy.special.erfinv`. NaN outside of [-1, 1].
    ///
    /// By the polynomials of M. Giles, "Approximating the erfinv function" (2011).
    #[track_caller]
    #[must_use]
    pub fn erf_inv(&self) -> Array {
        call_or_poisoned(&ERF_INV, self)
    }

    /// Distribution function of the standard normal distribution; `jax.scipy.special.ndtr`.
    #[track_caller]
    #[must_use]
    pub fn ndtr(&self) -> Array {
        apply_float_formula(self, |x| (x * -std::f64::consts::FRAC_1_SQRT_2).erfc() * 0.5)
    }

    /// Logarithm of `x / (1 - x)`; `jax.scipy.special.logit`.
    #[track_caller]
    #[must_use]
    pub fn logit(&self) -> Array {
        apply_float_formula(self, |x| x.log() - (-x).log1p())
    }

    /// `x * ln(y)`, and 0 where x is 0 and y is not NaN; `jax.scipy.special.xlogy`.
    #[track_caller]
    #[must_use]
    pub fn xlogy(&self, y: impl Into<Operand>) -> Array {
        call_binary_or_poisoned(&XLOGY, self, y)
    }

    /// `x * ln(1 + y)`, and 0 where x is 0 and y is not NaN; `jax.scipy.special.xlog1py`.
    #[track_caller]
    #[must_use]
    pub fn xlog1py(&self, y: impl Into<Operand>) -> Array {
        call_binary_or_poisoned(&XLOG1PY, self, y)
    }

    /// `-x ln(x)`: 0 at 0, `-inf` below; `jax.scipy.special.entr`.
    #[track_caller]
    #[must_use]
    pub fn entr(&self) -> Array {
        let x = to_float(self);
        select(&x.lt(0.0), f64::NEG_INFINITY, -x.xlogy(&x))
    }

    /// Logarithm of the beta function; `jax.scipy.special.betaln`.
    #[track_caller]
    #[must_use]
    pub fn betaln(&self, other: &Array) -> Array {
        self.lgamma() + other.lgamma() - (self + other).lgamma()
    }

    /// Factorial `x!` as the gamma function of `x + 1`; `jax.scipy.special.factorial`. 0 below zero.
    #[track_caller]
    #[must_use]
    pub fn factorial(&self) -> Array {
        let x = to_float(self);
        select(&x.lt(0.0), 0.0, (&x + 1.0).lgamma().exp())
    }
}

static LGAMMA: LazyLock<CompiledUnary> = LazyLock::new(|| {
    jit(custom_jvp(
        |x: &Array| apply_in_f32(x, lgamma),
        |(x,): &(Array,), (dx,): &(Array,)| (x.lgamma(), x.digamma() * dx),
    ))
    .into_fn()
});
static DIGAMMA: LazyLock<CompiledUnary> = LazyLock::new(|| {
    jit(custom_jvp(
        |x: &Array| apply_in_f32(x, digamma),
        |(x,): &(Array,), (dx,): &(Array,)| (x.digamma(), apply_in_f32(x, trigamma) * dx),
    ))
    .into_fn()
});
static ERF_INV: LazyLock<CompiledUnary> = LazyLock::new(|| {
    jit(custom_jvp(
        |x: &Array| {
            let wide = if x.dtype() == DType::F64 { x.clone() } else { x.cast(DType::F32) };
            apply(&[&wide], Loc::caller(), |graph, v| erf_inv(graph, v[0])).cast(x.dtype())
        },
        |(x,): &(Array,), (dx,): &(Array,)| {
            let y = x.erf_inv();
            let slope = y.square().exp() * (PI.sqrt() / 2.0);
            (y, slope * dx)
        },
    ))
    .into_fn()
});
static XLOGY: LazyLock<CompiledBinary> = LazyLock::new(|| {
    jit(custom_jvp(
        |x: &Array, y: &Array| zero_safe_product(x, y, &(x * y.log())),
        |(x, y): &(Array, Array), (dx, dy): &(Array, Array)| (x.xlogy(y), y.log() * dx + x / y * dy),
    ))
    .into_fn()
});
static XLOG1PY: LazyLock<CompiledBinary> = LazyLock::new(|| {
    jit(custom_jvp(
        |x: &Array, y: &Array| zero_safe_product(x, y, &(x * y.log1p())),
        |(x, y): &(Array, Array), (dx, dy): &(Array, Array)| (x.xlog1py(y), y.log1p() * dx + x / (y + 1.0) * dy),
    ))
    .into_fn()
});

/// Returns 0 where `x` is 0 and `y` is not NaN, else the product.
fn zero_safe_product(x: &Array, y: &Array, product: &Array) -> Array {
    select(&x.eq(0.0).logical_and(y.is_nan().logical_not()), 0.0, product)
}

/// Makes an array by a formula that is computed in f32 for 16-bit floats.
fn apply_in_f32(x: &Array, f: impl for<'g> Fn(E<'g>) -> E<'g>) -> Array {
    let is_short = matches!(x.dtype(), DType::F16 | DType::Bf16);
    if is_short { apply_float_formula(&x.cast(DType::F32), f).cast(x.dtype()) } else { apply_float_formula(x, f) }
}

/// The parameter g of Lanczos' approximation.
const LANCZOS_G: f64 = 7.0;
/// The coefficients of Lanczos' sum.
const LANCZOS_COEFFICIENTS: [f64; 9] = [
    0.999_999_999_999_809_9,
    676.520_368_121_885_1,
    -1_259.139_216_722_402_8,
    771.323_428_777_653_1,
    -176.615_029_162_140_6,
    12.507_343_278_686_905,
    -0.138_571_095_265_720_12,
    9.984_369_578_019_572e-6,
    1.505_632_735_149_311_6e-7,
];

/// Returns the argument of Lanczos' sum, `x - 1`, or `-x` where `x` is below 1/2 and the gamma functions are computed
/// by reflection; and true where that is so.
fn reflect_argument<'g>(x: E<'g>) -> (E<'g>, E<'g>) {
    let is_low = x.lt(x.like(0.5));
    (is_low.select(-x, x - 1.0), is_low)
}

/// Returns `ln(z + g + 1/2)` for the parameter g of Lanczos' approximation ([`LANCZOS_G`]), precise for small `z`.
fn log_shifted_argument(z: E<'_>) -> E<'_> {
    let g = LANCZOS_G + 0.5;
    (z * (1.0 / g)).log1p() + g.ln()
}

/// Returns the logarithm of the gamma function's magnitude by Lanczos' approximation, reflected below 1/2.
fn lgamma(x: E<'_>) -> E<'_> {
    let (z, is_low) = reflect_argument(x);
    let mut sum = z.like(LANCZOS_COEFFICIENTS[0]);
    for (i, c) in LANCZOS_COEFFICIENTS.iter().enumerate().skip(1) {
        sum = sum + z.like(*c) / (z + i as f64);
    }
    let (t, log_t) = (z + (LANCZOS_G + 0.5), log_shifted_argument(z));
    let above = (z + 0.5 - t / log_t) * log_t + (0.5 * (2.0 * PI).ln()) + sum.log();
    // Γ(x) Γ(1 - x) = π / sin(πx), by the distance to the nearest whole number.
    let part = x.abs() - x.abs().floor();
    let near = part.gt(part.like(0.5)).select(x.like(1.0) - part, part);
    let sine = (near * PI).sin().log();
    let below = sine.is_finite().select(sine.like(PI.ln()) - sine - above, -sine);
    let infinite = x.abs().eq(x.like(f64::INFINITY));
    infinite.select(x.like(f64::INFINITY), is_low.select(below, above))
}

/// Returns the derivative of [`lgamma`], by that of Lanczos' approximation, reflected below 1/2.
fn digamma(x: E<'_>) -> E<'_> {
    let (z, is_low) = reflect_argument(x);
    let (mut above, mut below) = (z.like(0.0), z.like(LANCZOS_COEFFICIENTS[0]));
    for (i, c) in LANCZOS_COEFFICIENTS.iter().enumerate().skip(1) {
        let distance = z + i as f64;
        above = above - z.like(*c) / (distance * distance);
        below = below + z.like(*c) / distance;
    }
    let t = z + (LANCZOS_G + 0.5);
    let y = log_shifted_argument(z) + above / below - z.like(LANCZOS_G) / t;
    let part = x + (x + 0.5).floor().abs();
    let angle = part * PI;
    let reflection = y - angle.cos() * PI / angle.sin();
    let is_pole = x.le(x.zero()) & x.eq(x.floor());
    let pole = x.eq(x.zero()).select(x.like(f64::NEG_INFINITY), x.like(f64::NAN));
    is_pole.select(pole, is_low.select(reflection, y))
}

/// Returns the derivative of the digamma function: eight steps of its recurrence, then its asymptotic series
/// (Abramowitz and Stegun 6.4.6 and 6.4.12).
fn trigamma(x: E<'_>) -> E<'_> {
    let is_low = x.lt(x.like(0.5));
    let start = is_low.select(x.like(1.0) - x, x);
    let (mut z, mut sum) = (start, start.like(0.0));
    for _ in 0..8 {
        sum = sum + (z * z).recip();
        z = z + 1.0;
    }
    let (inverse, square) = (z.recip(), (z * z).recip());
    // Bernoulli numbers.
    let series =
        square * (square * (square * (square * (5.0 / 66.0) - 1.0 / 30.0) + 1.0 / 42.0) - 1.0 / 30.0) + 1.0 / 6.0;
    let above = sum + inverse + square * 0.5 + inverse * square * series;
    let sine = (x * PI).sin();
    is_low.select(x.like(PI * PI) / (sine * sine) - above, above)
}

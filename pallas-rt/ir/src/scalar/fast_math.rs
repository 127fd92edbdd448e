//! Scalar functions of the CPU in `f32`: branch-free and `#[inline(always)]`, so that a loop over a strip vectorises.
//!
//! Each has the accuracy that its row in the table promises; tests compare all of `f32` with the `f64` reference.
//! Coefficients: `exp` from Cephes, `tanh` from Eigen, `erf` from XLA, inverse circular functions from SLEEF, the rest
//! after N. Juffa's fits. Sine, cosine and tangent have none: libm's reduction of any argument to a quarter turn has no
//! short branch-free form.

/// Evaluates a polynomial by Horner's rule; coefficients from the highest power down.
#[inline(always)]
fn evaluate_polynomial<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[0];
    for k in &c[1..] {
        y = y.mul_add(x, *k);
    }
    y
}

/// Constant whose addition rounds to nearest even and leaves the integer in the low bits. (`as i32` is 4 times slower.)
const ROUNDING_MAGIC: f32 = 12_582_912.0;

/// The integer in a sum with [`ROUNDING_MAGIC`]. Wraps, since a NaN may have any bits.
#[inline(always)]
fn extract_integer(shifted: f32) -> i32 {
    (shifted.to_bits() as i32).wrapping_sub(ROUNDING_MAGIC.to_bits() as i32)
}

/// [`ROUNDING_MAGIC`] plus 126, one less than the bias of exponents: the low bits of its sum with `n`, shifted up, are
/// those of 2ⁿ⁻¹ for -126 < n <= 128, and of 0 for n = -126.
const BIASED_ROUNDING_MAGIC: f32 = ROUNDING_MAGIC + 126.0;

/// Returns `(1 + y)·2ⁿ` from `y` and `shifted`, the sum of `n` and [`BIASED_ROUNDING_MAGIC`]. Multiplies by half of the
/// factor twice, since 2¹²⁸ is no f32.
#[inline(always)]
fn ldexp_one_plus(y: f32, shifted: f32) -> f32 {
    let half = f32::from_bits(shifted.to_bits() << 23);
    let half = y.mul_add(half, half);
    half + half
}

/// Returns 2ⁿ for -126 <= n <= 127.
#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Clamps a number; NaN stays.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let c = if x > high { high } else { x };
    if c < low { low } else { c }
}

/// Splits `x = n·ln 2 + r` with `|r| <= ln 2 / 2`; returns the sum of `n` and [`ROUNDING_MAGIC`], and `r`.
#[inline(always)]
fn split_by_ln2(x: f32) -> (f32, f32) {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUNDING_MAGIC);
    (shifted, subtract_multiple_of_ln2(x, shifted - ROUNDING_MAGIC))
}

/// Returns `x - n·ln 2`, with ln 2 as the sum of two constants for accuracy.
#[inline(always)]
fn subtract_multiple_of_ln2(x: f32, n: f32) -> f32 {
    n.mul_add(2.121_944_4e-4, n.mul_add(-0.693_359_4, x))
}

/// Returns `eʳ - 1` for `|r| <= ln 2 / 2`.
#[inline(always)]
fn expm1_near_zero(r: f32) -> f32 {
    // Powers in pairs, whose steps do not depend on each other.
    let square = r * r;
    let high = r.mul_add(1.987_569_1e-4, 1.398_199_9e-3);
    let middle = r.mul_add(8.333_452e-3, 4.166_579_6e-2);
    let low = r.mul_add(0.166_666_65, 0.5);
    high.mul_add(square, middle).mul_add(square, low).mul_add(square, r)
}

/// Returns `x·2ⁿ`, multiplying by two factors so that 2¹²⁸ does not overflow before the product does.
#[inline(always)]
fn ldexp(x: f32, n: i32) -> f32 {
    let half = n >> 1;
    x * pow2(half) * pow2(n.wrapping_sub(half))
}

/// Returns eˣ; flushes to 0 or infinity near the ends of the normal range.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // At the lower end n is -126 and the factor 0, at the upper one the product overflows.
    let x = clamp(x, -87.3, 88.8);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, BIASED_ROUNDING_MAGIC);
    let r = subtract_multiple_of_ln2(x, shifted - BIASED_ROUNDING_MAGIC);
    ldexp_one_plus(expm1_near_zero(r), shifted)
}

/// Returns 2ˣ; flushes to 0 or infinity near the ends of the normal range.
#[inline(always)]
pub(super) fn exp2(x: f32) -> f32 {
    let x = clamp(x, -126.0, 128.0);
    let shifted = x + BIASED_ROUNDING_MAGIC;
    let r = (x - (shifted - BIASED_ROUNDING_MAGIC)) * std::f32::consts::LN_2;
    ldexp_one_plus(expm1_near_zero(r), shifted)
}

/// Returns `eˣ - 1` without cancellation near 0.
#[inline(always)]
pub(super) fn expm1(x: f32) -> f32 {
    // Below -20 the result is -1.
    let (shifted, r) = split_by_ln2(clamp(x, -20.0, 88.8));
    // Half of 2ⁿ, as 2¹²⁸ is no f32; the sum is exact for n = 0.
    let half = pow2(extract_integer(shifted).wrapping_sub(1));
    let y = 2.0 * expm1_near_zero(r).mul_add(half, half - 0.5);
    if x > 88.8 { f32::INFINITY } else { y }
}

/// Splits `x = m·2ⁿ` with m in [2/3, 4/3]; returns m - 1, and n as a float.
#[inline(always)]
fn split_mantissa_exponent(x: f32) -> (f32, f32) {
    // Subnormals have no leading one: scale them up.
    let tiny = x < f32::MIN_POSITIVE;
    let bits = (if tiny { x * 8_388_608.0 } else { x }).to_bits();
    let n = bits.wrapping_sub(0x3f2a_aaab) & 0xff80_0000;
    let m = f32::from_bits(bits.wrapping_sub(n)) - 1.0;
    let n = n as i32 as f32 * (1.0 / 8_388_608.0);
    (m, if tiny { n - 23.0 } else { n })
}

/// Returns half of eˣ for x >= 0, which is finite wherever hyperbolic functions are.
#[inline(always)]
fn half_of_exp(x: f32) -> f32 {
    let (shifted, r) = split_by_ln2(clamp(x, 0.0, 89.5));
    ldexp(expm1_near_zero(r) + 1.0, extract_integer(shifted).wrapping_sub(1))
}

/// Hyperbolic cosine.
#[inline(always)]
pub(super) fn cosh(x: f32) -> f32 {
    let h = half_of_exp(x.abs());
    h + 0.25 / h
}

/// Hyperbolic sine, by `expm1` where the exponentials would cancel.
#[inline(always)]
pub(super) fn sinh(x: f32) -> f32 {
    let a = x.abs();
    let h = half_of_exp(a);
    let u = expm1(clamp(a, 0.0, 1.0));
    let y = if a < 1.0 { 0.5 * (u + u / (u + 1.0)) } else { h - 0.25 / h };
    y.copysign(x)
}

/// Natural logarithm of a finite positive number.
#[inline(always)]
fn log_positive(x: f32) -> f32 {
    let (m, n) = split_mantissa_exponent(x);
    let s = m * m;
    // Even and odd powers apart: two short chains instead of a long one.
    let even = evaluate_polynomial(s, [-0.130_310_06, -0.121_483_51, -0.166_846_13, -0.249_996_2]);
    let odd = evaluate_polynomial(s, [0.140_869_14, 0.139_814_85, 0.200_120_35]);
    let p = evaluate_polynomial(m, [odd, even, 0.333_331_97, -0.5]);
    n.mul_add(std::f32::consts::LN_2, p.mul_add(s, m))
}

/// Natural logarithm: -inf at 0, NaN below.
#[inline(always)]
pub(super) fn log(x: f32) -> f32 {
    let y = log_positive(x);
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    let y = if x < 0.0 { f32::NAN } else { y };
    // The logarithm of +inf or NaN is the operand.
    if x < f32::INFINITY { y } else { x }
}

/// `ln(1 + x)` without cancellation near 0: -inf at -1, NaN below.
#[inline(always)]
pub(super) fn log1p(x: f32) -> f32 {
    let u = 1.0 + x;
    // The rounding error of the sum, as a correction of its logarithm; there is none at infinity.
    let lost = if x > 1.0 { 1.0 - (u - x) } else { x - (u - 1.0) };
    let correction = if u > 0.0 && u < f32::INFINITY { lost / u } else { 0.0 };
    log(u) + correction
}

/// Logistic function `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub(super) fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Softplus `ln(1 + eˣ)`.
#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    // `log1p` of a number in [0, 1] has no edges; NaN passes through `lost`.
    let small = exp(-x.abs());
    let u = 1.0 + small;
    let lost = small - (u - 1.0);
    positive + (log_positive(u) + lost / u)
}

/// Coefficients of the rational function for `tanh`: numerator and denominator, highest powers first.
pub const TANH_COEFFICIENTS: ([f32; 7], [f32; 4]) = (
    [-2.760_768_5e-16, 2.000_188e-13, -8.604_672e-11, 5.122_297e-8, 1.485_722_4e-5, 6.372_619e-4, 4.893_525e-3],
    [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3],
);

/// Bound from which `tanh` is 1 in f32: the rational function with fused steps is exactly 1 here, so `1 - tanh²` is 0
/// where `tanh` rounds to 1. GELU's slope multiplies that by `x³`.
pub const TANH_SATURATION_BOUND: f32 = 7.908_863;

/// Hyperbolic tangent as a rational function of degrees 13 and 6.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let c = clamp(x, -TANH_SATURATION_BOUND, TANH_SATURATION_BOUND);
    let s = c * c;
    let (p, q) = (evaluate_polynomial(s, TANH_COEFFICIENTS.0), evaluate_polynomial(s, TANH_COEFFICIENTS.1));
    // The quotient first: `c * p` would lose bits of a subnormal.
    c * (p / q)
}

/// Coefficients of the rational function for `erf`: numerator and denominator, highest powers first.
pub const ERF_COEFFICIENTS: ([f32; 7], [f32; 5]) = (
    [-2.726_142_3e-10, 2.770_681_4e-8, -2.101_024e-6, -5.692_506_4e-5, -7.349_906_3e-4, -2.954_6e-3, -1.609_603_3e-2],
    [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329_2e-3, -1.426_473_9e-2],
);

/// Error function as a rational function on [-4, 4].
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let c = clamp(x, -4.0, 4.0);
    let s = c * c;
    let (p, q) = (evaluate_polynomial(s, ERF_COEFFICIENTS.0), evaluate_polynomial(s, ERF_COEFFICIENTS.1));
    // The quotient first: `c * p` would lose bits of a subnormal.
    c * (p / q)
}

/// Coefficients of the polynomial for `erfc`, highest powers first.
pub const ERFC_COEFFICIENTS: [f32; 10] = [
    -4.011_392_6e-4,
    -1.230_752_1e-3,
    1.313_553_4e-3,
    8.632_274e-3,
    -8.059_92e-3,
    -5.420_466e-2,
    0.164_055_39,
    -0.166_031_36,
    -9.276_398e-2,
    0.276_978_4,
];

/// Complementary error function with small relative error in its tail: `exp(-a²)` times a function of
/// `(a - 2) / (a + 2)`.
#[inline(always)]
pub(super) fn erfc(x: f32) -> f32 {
    let a = clamp(x.abs(), 0.0, 11.0);
    let q = (a - 2.0) / (a + 2.0);
    let p = evaluate_polynomial(q, ERFC_COEFFICIENTS);
    let scaled = (p + 1.0) / a.mul_add(2.0, 1.0);
    // The rounding error of the square changes the exponential by a factor near 1.
    let square = a * a;
    let lost = (-a).mul_add(a, square);
    let y = scaled * exp(-square);
    let y = y.mul_add(lost, y);
    if x < 0.0 { 2.0 - y } else { y }
}

/// GELU `x·Φ(x)`, by erfc, as `1 + erf` cancels for negative `x`.
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    0.5 * x * erfc(-x * std::f32::consts::FRAC_1_SQRT_2)
}

/// Arctangent of a number in [0, 1].
#[inline(always)]
fn atan_unit_interval(x: f32) -> f32 {
    let s = x * x;
    let p = evaluate_polynomial(
        s,
        [
            2.823_639e-3,
            -1.595_690_3e-2,
            4.250_499e-2,
            -7.489_009e-2,
            0.106_347_93,
            -0.142_027_36,
            0.199_926_96,
            -0.333_331_02,
        ],
    );
    (p * s).mul_add(x, x)
}

/// Arctangent of a number.
#[inline(always)]
pub(super) fn atan(x: f32) -> f32 {
    let a = x.abs();
    let steep = a > 1.0;
    let y = atan_unit_interval(if steep { 1.0 / a } else { a });
    let y = if steep { std::f32::consts::FRAC_PI_2 - y } else { y };
    y.copysign(x)
}

/// Angle of the point (x, y), arctangent of `y / x` in the right quadrant.
#[inline(always)]
pub(super) fn atan2(y: f32, x: f32) -> f32 {
    let (a, b) = (y.abs(), x.abs());
    let steep = a > b;
    let (low, high) = if steep { (b, a) } else { (a, b) };
    // 0/0 and inf/inf are NaN, but the angle is defined.
    let ratio = if low == high { 1.0 } else { low / high };
    let ratio = if high == 0.0 { 0.0 } else { ratio };
    let angle = atan_unit_interval(ratio);
    let angle = if steep { std::f32::consts::FRAC_PI_2 - angle } else { angle };
    let angle = if x.is_sign_negative() { std::f32::consts::PI - angle } else { angle };
    if x.is_nan() | y.is_nan() { f32::NAN } else { angle.copysign(y) }
}

/// Returns whether |x| < 0.5, and the arcsine of |x| if so, else that of `sqrt((1 - |x|) / 2)` (the half-angle
/// formula).
#[inline(always)]
fn asin_by_half_angle(x: f32) -> (bool, f32) {
    let a = x.abs();
    let small = a < 0.5;
    let square = if small { a * a } else { 0.5 * (1.0 - a) };
    let root = if small { a } else { square.sqrt() };
    let p = evaluate_polynomial(square, [4.197_455e-2, 2.424_046e-2, 4.547_424e-2, 7.495_03e-2, 0.166_667_73]);
    (small, p.mul_add(square * root, root))
}

/// Arcsine; NaN outside of [-1, 1].
#[inline(always)]
pub(super) fn asin(x: f32) -> f32 {
    let (small, y) = asin_by_half_angle(x);
    let y = if small { y } else { (-2.0f32).mul_add(y, std::f32::consts::FRAC_PI_2) };
    y.copysign(x)
}

/// Arccosine; NaN outside of [-1, 1].
#[inline(always)]
pub(super) fn acos(x: f32) -> f32 {
    let (small, y) = asin_by_half_angle(x);
    let near_zero = std::f32::consts::FRAC_PI_2 - y.copysign(x);
    let beyond = if x < 0.0 { (-2.0f32).mul_add(y, std::f32::consts::PI) } else { 2.0 * y };
    if small { near_zero } else { beyond }
}

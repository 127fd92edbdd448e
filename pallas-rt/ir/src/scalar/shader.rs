//! WGSL functions that rows of the table call, for operations that the language lacks. Literals stay finite: WGSL
//! rejects infinities and NaN.

/// Division of integers. WGSL compilers reject `/` by a constant zero, and the result of `i32::MIN / -1` depends on the
/// driver.
pub(super) const DIV: &str = "fn div_i32(a: i32, b: i32) -> i32 {
    let whole = a / select(b, 1, b == 0 || b == -1);
    return select(select(whole, -a, b == -1), -1, b == 0);
}
fn div_u32(a: u32, b: u32) -> u32 {
    return select(a / max(b, 1u), ~0u, b == 0u);
}";

/// Remainder of integers, for the reasons stated at [`DIV`]; and GLSL leaves `%` of negative numbers undefined, which
/// drivers treat as unsigned.
pub(super) const REM: &str = "fn rem_i32(a: i32, b: i32) -> i32 {
    let d = select(b, 1, b == 0 || b == -1);
    return select(a - a / d * d, a, b == 0);
}
fn rem_u32(a: u32, b: u32) -> u32 {
    return select(a % max(b, 1u), a, b == 0u);
}";

/// Power. WGSL does not define it for a negative base; `sqrt` of that makes the NaN of a fractional power.
pub(super) const POW: &str = "fn pow_f32(a: f32, b: f32) -> f32 {
    let whole = b == trunc(b);
    let odd = fract(abs(b) * 0.5) == 0.5;
    let y = pow(abs(a), b);
    let negative = select(sqrt(a), select(y, -y, odd), whole);
    return select(select(y, negative, a < 0.0), 1.0, b == 0.0);
}";

/// `ln(1 + x)`. Near zero, where drivers' logarithms of nearly 1 lose digits, it uses the series of the inverse tanh.
pub(super) const LOG1P: &str = "fn log1p_f32(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let q = s * s;
    let p = 2.0 * s * (1.0 + q * (0.33333334 + q * (0.2 + q * (0.14285715 + q * 0.11111111))));
    return select(log(1.0 + x), p, x > -0.3 && x < 0.5);
}";

/// Arcsine. Near zero, where drivers subtract from a right angle and lose precision, it uses a Taylor polynomial.
pub(super) const ASIN: &str = "fn asin_f32(x: f32) -> f32 {
    let q = x * x;
    let p = x * (1.0 + q * (0.16666667 + q * (0.075 + q * (0.044642857 + q * 0.030381944))));
    return select(asin(x), p, abs(x) < 0.3);
}";

/// Hyperbolic tangent: a Taylor polynomial near zero, where drivers subtract exponentials, and 1 or -1 beyond 9.02,
/// where it rounds to that.
pub(super) const TANH: &str = "fn tanh_f32(x: f32) -> f32 {
    let q = x * x;
    let p = x * (1.0 + q * (-0.33333334 + q * (0.13333334 + q * (-0.053968254 + q * 0.021869488))));
    let far = select(tanh(clamp(x, -9.0, 9.0)), sign(x), abs(x) > 9.02);
    return select(far, p, abs(x) < 0.3);
}";

/// Hyperbolic sine. Near zero, where drivers subtract exponentials, it uses a Taylor polynomial.
pub(super) const SINH: &str = "fn sinh_f32(x: f32) -> f32 {
    let q = x * x;
    let p = x * (1.0 + q * (0.16666667 + q * (0.008333334 + q * 0.0001984127)));
    return select(sinh(x), p, abs(x) < 0.5);
}";

/// `eˣ - 1`. Where the difference would cancel, it uses a Taylor polynomial.
pub(super) const EXPM1: &str = "fn expm1_f32(x: f32) -> f32 {
    let p = x * (1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666668 + x * (0.008333334 + x * (0.0013888889 + x * 0.0001984127))))));
    return select(exp(x) - 1.0, p, abs(x) < 0.6);
}";

/// Complementary error function, by Chebyshev approximation (Numerical Recipes).
pub(super) const ERFC: &str = "fn erfc_f32(x: f32) -> f32 {
    let z = abs(x);
    let t = 1.0 / (1.0 + 0.5 * z);
    let p = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806 + t * (0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277))))))));
    let y = t * exp(p - z * z);
    return select(y, 2.0 - y, x < 0.0);
}";

/// Error function, as a rational function on [-4, 4].
pub(super) const ERF: &str = "fn erf_f32(x: f32) -> f32 {
    let c = clamp(x, -4.0, 4.0);
    let s = c * c;
    let p = ((((((-2.7261423e-10 * s + 2.7706814e-8) * s - 2.101024e-6) * s - 5.6925064e-5) * s - 7.3499063e-4) * s - 2.9546e-3) * s - 1.6096033e-2);
    let q = ((((-1.4566072e-5 * s - 2.1337406e-4) * s - 1.682827e-3) * s - 7.3733292e-3) * s - 1.4264739e-2);
    return c * p / q;
}";

//! Reference functions in f64 that std lacks.

/// Error function, by a series of positive terms below 3 and the continued fraction of erfc above.
pub(super) fn erf(x: f64) -> f64 {
    let (a, two_over_sqrt_pi) = (x.abs(), 2.0 / std::f64::consts::PI.sqrt());
    let y = if a < 3.0 {
        let (mut term, mut sum, mut n) = (a, a, 1.0);
        while term > 1e-17 * sum {
            term *= 2.0 * a * a / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        two_over_sqrt_pi * (-a * a).exp() * sum
    } else {
        let mut f = 0.0;
        for k in (1..60).rev() {
            f = k as f64 / 2.0 / (a + f);
        }
        1.0 - (-a * a).exp() / (std::f64::consts::PI.sqrt() * (a + f))
    };
    if x.is_nan() { x } else { y.copysign(x) }
}

/// Complementary error function, without cancellation for large `x`.
pub(super) fn erfc(x: f64) -> f64 {
    if x < 3.0 {
        return 1.0 - erf(x);
    }
    let mut f = 0.0;
    for k in (1..60).rev() {
        f = f64::from(k) / 2.0 / (x + f);
    }
    (-x * x).exp() / (std::f64::consts::PI.sqrt() * (x + f))
}

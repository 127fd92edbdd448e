//! Distributions with parameters, from numbers of simpler ones.
use super::gamma::{gamma, loggamma};
use super::{Key, broadcast_parameter, exponential, normal, rademacher, split, uniform};
use crate::array::Array;
use crate::linalg;
use crate::ops::{Operand, einsum, select};
use pallas_device::error::Error;
use pallas_ir::{At, DType, Diag, Loc};

/// Declares functions of a key, parameters, a shape and a floating-point type; parameters are positive numbers, or
/// arrays that stretch to the shape.
macro_rules! distributions {
    ($($(#[$doc:meta])+ $name:ident($($param:ident),*) |$key:ident, $shape:ident, $dtype:ident| $numbers:expr;)*) => {$(
        $(#[$doc])+
        #[track_caller]
        #[must_use]
        pub fn $name(key: Key, $($param: impl Into<Operand>,)* shape: &[usize], dtype: DType) -> Array {
            let at = Loc::caller();
            let $key = key.consume(at);
            $(let $param = broadcast_parameter(stringify!($name), &$key, &$param.into(), shape, dtype, at);)*
            let ($shape, $dtype) = (shape, dtype);
            $numbers
        }
    )*};
}
distributions! {
    /// Numbers of the beta distribution with these parameters; `jax.random.beta`. They have derivatives by both, as
    /// those of [`gamma`].
    beta(a, b) |key, shape, dtype| {
        let [for_a, for_b] = split(key);
        let (a, b) = (loggamma(for_a, a, shape, dtype), loggamma(for_b, b, shape, dtype));
        let most = a.maximum(&b);
        let (a, b) = ((a - &most).exp(), (b - most).exp());
        &a / (&a + b)
    };
    /// Numbers of the chi-square distribution with these degrees of freedom; `jax.random.chisquare`.
    chisquare(df) |key, shape, dtype| loggamma(key, df / 2.0, shape, dtype).exp() * 2.0;
    /// Numbers of the F distribution with degrees of freedom of the numerator and the denominator; `jax.random.f`.
    f(numerator, denominator) |key, shape, dtype| {
        let [for_denominator, for_numerator] = split(key);
        let above = chisquare(for_numerator, &numerator, shape, dtype) / numerator;
        let below = chisquare(for_denominator, &denominator, shape, dtype) / denominator;
        above / below
    };
    /// Numbers of Student's t distribution with these degrees of freedom; `jax.random.t`.
    t(df) |key, shape, dtype| {
        let [for_normal, for_gamma] = split(key);
        let half = df / 2.0;
        normal(for_normal, shape, dtype) * (&half / gamma(for_gamma, &half, shape, dtype)).sqrt()
    };
    /// Numbers whose logarithms are normal with mean 0 and this standard deviation; `jax.random.lognormal`.
    lognormal(sigma) |key, shape, dtype| (normal(key, shape, dtype) * sigma).exp();
    /// Numbers of the Pareto distribution with this parameter, from 1 on; `jax.random.pareto`.
    pareto(b) |key, shape, dtype| (exponential(key, shape, dtype) / b).exp();
    /// Numbers of the Rayleigh distribution with this scale; `jax.random.rayleigh`.
    rayleigh(scale) |key, shape, dtype| scale * (uniform(key, shape, dtype).log() * -2.0).sqrt();
    /// Numbers of the Weibull distribution with a scale and a concentration; `jax.random.weibull_min`.
    weibull_min(scale, concentration) |key, shape, dtype| {
        (-(-uniform(key, shape, dtype)).log1p()).pow(1.0 / concentration) * scale
    };
    /// Numbers of the triangular distribution from `left` to `right` that are most frequent at `mode`;
    /// `jax.random.triangular`.
    triangular(left, mode, right) |key, shape, dtype| {
        let (u, span) = (uniform(key, shape, dtype), &right - &left);
        let below = &left + (&u * &span * (&mode - &left)).sqrt();
        let rest: Array = 1.0 - &u;
        let above = &right - (rest * &span * (&right - &mode)).sqrt();
        select(&u.lt((mode - left) / span), below, above)
    };
    /// Numbers of the Wald (inverse Gaussian) distribution with this mean and the parameter 1; `jax.random.wald`.
    wald(mean) |key, shape, dtype| {
        let [for_normal, for_uniform] = split(key);
        let (y, z) = (normal(for_normal, shape, dtype).square(), uniform(for_uniform, shape, dtype));
        let squared = mean.square();
        let root = (&mean * 4.0 * &y + &squared * y.square()).sqrt();
        let x = &mean + &squared * &y / 2.0 - &mean / 2.0 * root;
        select(&z.le(&mean / (&mean + &x)), &x, squared / &x)
    };
    /// Numbers with a density proportional to `exp(-|x|^p)`; `jax.random.generalized_normal`.
    generalized_normal(p) |key, shape, dtype| {
        let [for_size, for_sign] = split(key);
        let inverse = 1.0 / p;
        let size = gamma(for_size, &inverse, shape, dtype);
        rademacher(for_sign, shape, dtype) * size.pow(inverse)
    };
    /// Numbers of the Maxwell distribution: lengths of normal vectors of three numbers; `jax.random.maxwell`.
    maxwell() |key, shape, dtype| normal(key, &[shape, &[3]].concat(), dtype).norm(-1);
    /// Numbers of the Maxwell distribution with a random sign, times a scale, beside a centre;
    /// `jax.random.double_sided_maxwell` of numbers.
    double_sided_maxwell(centre, scale) |key, shape, dtype| {
        let [for_size, for_sign] = split(key);
        rademacher(for_sign, shape, dtype) * maxwell(for_size, shape, dtype) * scale + centre
    };
}

/// Vectors of the Dirichlet distribution whose parameters are along the last axis of `alpha`. The result has the axes
/// `shape`, to which the other axes of `alpha` stretch, then that last axis; `jax.random.dirichlet`. Each vector's sum
/// is 1.
///
/// ```
/// use pallas_rt::{Array, ir::DType, random};
/// let alpha = Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])?;
/// let x = random::dirichlet(random::key(0), &alpha, &[5], DType::F32);
/// assert!(x.shape() == [5, 3] && x.sum(-1).to_vec::<f32>()?.iter().all(|sum| (sum - 1.0).abs() < 1e-5));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn dirichlet(key: Key, alpha: &Array, shape: &[usize], dtype: DType) -> Array {
    let at = Loc::caller();
    let key = key.consume(at);
    let Some(n) = alpha.shape().last() else {
        return poisoned_draw(&key, "a Dirichlet distribution of one number".into(), "parameters along an axis", at);
    };
    let full = [shape, &[*n]].concat();
    let alpha = broadcast_parameter("dirichlet", &key, &alpha.into(), &full, dtype, at);
    loggamma(key, alpha, &full, dtype).softmax(-1)
}

/// Normally distributed vectors whose means are along the last axis of `mean`, and whose covariances are the last two
/// axes of `cov`. The result has the axes `shape`, to which the other axes of both stretch, then the last axis of
/// `mean`; `jax.random.multivariate_normal` by Cholesky factors.
///
/// f32 or f64. Covariances that are not positive definite give NaN.
///
/// ```
/// use pallas_rt::{Array, ir::DType, random};
/// let mean = Array::from_slice(&[10.0f32, -10.0], &[2])?;
/// let cov = Array::from_slice(&[1.0f32, 0.5, 0.5, 1.0], &[2, 2])?;
/// let x = random::multivariate_normal(random::key(0), &mean, &cov, &[1000], DType::F32);
/// assert!((x.t().cov() - cov).abs().max(..).to_vec::<f32>()?[0] < 0.1);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn multivariate_normal(key: Key, mean: &Array, cov: &Array, shape: &[usize], dtype: DType) -> Array {
    let at = Loc::caller();
    let key = key.consume(at);
    let n = mean.shape().last().copied().unwrap_or(0);
    if mean.rank() == 0 || cov.shape().len() < 2 || cov.shape()[cov.rank() - 2..] != [n, n] {
        let message = format!("means {:?} and covariances {:?}", mean.shape(), cov.shape());
        return poisoned_draw(&key, message, "means of n elements, and covariances of n rows and columns", at);
    }
    let full = [shape, &[n]].concat();
    let mean = broadcast_parameter("multivariate_normal", &key, &mean.into(), &full, dtype, at);
    let cov = broadcast_parameter("multivariate_normal", &key, &cov.into(), &[&full[..], &[n]].concat(), dtype, at);
    let factor = linalg::cholesky(&cov);
    mean + einsum("...ij,...j->...i", &[factor, normal(key, &full, dtype)])
}

/// Random orthogonal matrices, each as likely as any other: axes `shape`, then `rows` and `columns`, of f32 or f64;
/// `jax.random.orthogonal`. The rows, or the columns if these are fewer, are orthogonal to each other and of length 1.
#[track_caller]
#[must_use]
pub fn orthogonal(key: Key, rows: usize, columns: usize, shape: &[usize], dtype: DType) -> Array {
    let key = key.consume(Loc::caller());
    let tall = [shape, &[rows.max(columns), rows.min(columns)]].concat();
    let (q, r) = linalg::qr(&normal(key, &tall, dtype));
    let signs = r.diagonal(0, -2, -1).sign().expand_dims(-2);
    let q = q * signs;
    if rows < columns { q.t() } else { q }
}

/// Points of the unit ball of `d` dimensions in the norm with the exponent `p`, each as likely as any other: axes
/// `shape`, then `d`; `jax.random.ball`.
#[track_caller]
#[must_use]
pub fn ball(key: Key, d: usize, p: f64, shape: &[usize], dtype: DType) -> Array {
    let [for_points, for_radius] = split(key.consume(Loc::caller()));
    let g = generalized_normal(for_points, p, &[shape, &[d]].concat(), dtype);
    let e = exponential(for_radius, shape, dtype);
    let length = (g.abs().pow(p).sum(-1) + e).pow(1.0 / p);
    g / length.expand_dims(-1)
}

/// Returns an array that holds an error at the line `at`.
pub(super) fn poisoned_draw(key: &Key, message: String, help: &str, at: Loc) -> Array {
    let error = Error::operation(at, Diag::new("random", At::Op, message, help));
    Array::new_poisoned(error, key.data().client().clone(), DType::F32, &[])
}

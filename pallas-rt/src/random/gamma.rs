//! Numbers of the gamma distribution, whose derivative by its parameter is implicit.
use super::{Key, broadcast_parameter, exponential, normal, split, split_batch, uniform};
use crate::array::Array;
use crate::ops::{Operand, random_gamma_grad, select};
use crate::{custom_jvp, jit, vmap, while_loop};
use pallas_device::error::Result;
use pallas_ir::{DType, Loc};
use std::sync::LazyLock;

/// A compiled function that draws a number for each parameter along one axis, from a key.
type Sampler = Box<dyn Fn(&Key, &Array) -> Result<Array> + Send + Sync>;

/// Numbers of the gamma distribution with this parameter and scale 1, of a floating-point type; `jax.random.gamma`.
///
/// The parameter is a positive number or an array that stretches to the shape. The derivative by it is that of a number
/// whose quantile in the distribution stays the same (Figurnov and others, "Implicit reparameterization gradients",
/// 2018), as in JAX.
///
/// By rejection: G. Marsaglia and W. Tsang, "A simple method for generating gamma variables" (2000).
///
/// ```
/// use pallas_rt::{Array, grad, ir::DType, random};
/// let mean = |a: &Array| random::gamma(random::key(0), a, &[5000], DType::F32).mean(..);
/// let a = Array::from_slice(&[3.0f32], &[])?;
/// assert!((mean(&a).to_vec::<f32>()?[0] - 3.0).abs() < 0.1);
/// assert!((grad(mean)(&a)?.to_vec::<f32>()?[0] - 1.0).abs() < 0.1);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn gamma(key: Key, a: impl Into<Operand>, shape: &[usize], dtype: DType) -> Array {
    draw_gamma("gamma", key, &a.into(), shape, dtype, &GAMMA, Loc::caller())
}

/// Logarithms of the numbers that [`gamma`] gives, precise for small parameters; `jax.random.loggamma`.
#[track_caller]
#[must_use]
pub fn loggamma(key: Key, a: impl Into<Operand>, shape: &[usize], dtype: DType) -> Array {
    draw_gamma("loggamma", key, &a.into(), shape, dtype, &LOGGAMMA, Loc::caller())
}

/// Draws numbers by `sampler`, one for each element of `shape`, to which the gamma parameter `a` stretches; an error
/// becomes an array that holds it. `name` names the distribution in messages.
fn draw_gamma(name: &str, key: Key, a: &Operand, shape: &[usize], dtype: DType, sampler: &Sampler, at: Loc) -> Array {
    let key = key.consume(at);
    let a = broadcast_parameter(name, &key, a, shape, dtype, at);
    let made = || {
        a.check()?;
        if shape.contains(&0) {
            return Ok(a.clone());
        }
        Ok(sampler(&key, &a.ravel())?.reshape(shape))
    };
    made().unwrap_or_else(|error| Array::new_poisoned(error, a.client().clone(), dtype, shape))
}

static GAMMA: LazyLock<Sampler> = LazyLock::new(|| {
    jit(custom_jvp(
        |key: &Key, a: &Array| sample_each_parameter(key, a, false),
        |(key, a): &(Key, Array), (_, da): &(Key, Array)| {
            let y = sample_each_parameter(key, a, false)?;
            let slope = random_gamma_grad(a, &y);
            Ok::<_, crate::Error>((y, slope * da))
        },
    ))
    .into_fn()
});
static LOGGAMMA: LazyLock<Sampler> = LazyLock::new(|| {
    jit(custom_jvp(
        |key: &Key, a: &Array| sample_each_parameter(key, a, true),
        |(key, a): &(Key, Array), (_, da): &(Key, Array)| {
            let y = sample_each_parameter(key, a, true)?;
            // What underflows is taken as the smallest normal number.
            let x = y.exp();
            let x = select(&x.eq(0.0), smallest_normal(a.dtype()), &x);
            let slope = random_gamma_grad(a, &x) / x;
            Ok::<_, crate::Error>((y, slope * da))
        },
    ))
    .into_fn()
});

/// The smallest positive normal number of a floating-point type.
pub(super) fn smallest_normal(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => 2f64.powi(-14),
        _ => f64::from(f32::MIN_POSITIVE),
    }
}

/// Draws a number for each parameter along one axis, each with a key of its own; returns the numbers' logarithms if
/// `is_log` is true.
fn sample_each_parameter(key: &Key, a: &Array, is_log: bool) -> Result<Array> {
    let keys = split_batch(key.clone(), a.shape());
    vmap(move |key: &Key, a: &Array| sample_gamma(key, a, is_log))(&keys, a)
}

/// Draws a number of the gamma distribution with the parameter `a`; returns its logarithm if `is_log` is true.
///
/// For a parameter below 1 it draws with the parameter `a + 1`, and multiplies by a power of a uniform number.
fn sample_gamma(key: &Key, a: &Array, is_log: bool) -> Result<Array> {
    let dtype = a.dtype();
    let is_large = a.ge(1.0);
    let larger = select(&is_large, a, a + 1.0);
    let d = larger - 1.0 / 3.0;
    let c = (1.0 / 3.0) / d.sqrt();

    let [key, for_boost] = split(key.clone());
    let first = (key, a.zeros_like(), a.ones_like(), a.full_like(2.0));
    let (_, _, v, _) = while_loop(
        &first,
        |(_, x, v, u): &(Key, Array, Array, Array)| {
            u.ge(1.0 - x * x * 0.0331) & u.log().ge(x * 0.5 + &d * ((1.0 - v) + v.log()))
        },
        |(key, ..): &(Key, Array, Array, Array)| {
            let [key, for_x, for_u] = split(key.clone());
            let first = (for_x, a.zeros_like(), a.full_like(-1.0));
            let (_, x, v) = while_loop(
                &first,
                |(_, _, v): &(Key, Array, Array)| v.le(0.0),
                |(key, ..): &(Key, Array, Array)| {
                    let [key, own] = split(key.clone());
                    let x = normal(own, &[], dtype);
                    let v = &x * &c + 1.0;
                    (key, x, v)
                },
            )?;
            Ok::<_, crate::Error>((key, &x * &x, &v * &v * v, uniform(for_u, &[], dtype)))
        },
    )?;
    if is_log {
        let logs = -exponential(for_boost, &[], dtype);
        let boost = select(&(is_large | logs.eq(0.0)), 0.0, logs * (1.0 / a));
        return Ok(d.log() + v.log() + boost);
    }
    let rest: Array = 1.0 - uniform(for_boost, &[], dtype);
    let boost = select(&is_large, 1.0, rest.pow(1.0 / a));
    Ok(d * v * boost)
}

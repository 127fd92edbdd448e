//! Distributions of counts: Poisson, geometric, binomial and multinomial.
use super::parameters::poisoned_draw;
use super::{Key, broadcast_parameter, split, split_batch, uniform};
use crate::array::Array;
use crate::ops::{Operand, reverse, select};
use crate::{jit, scan, while_loop};
use pallas_device::error::Result;
use pallas_ir::{DType, Loc};
use std::sync::LazyLock;

/// A compiled function of a key and of one parameter for each number that is drawn.
type Sampler = Box<dyn Fn(&Key, &Array) -> Result<Array> + Send + Sync>;
/// A compiled function of a key and of two parameters for each number that is drawn.
type TwoParameterSampler = Box<dyn Fn(&Key, &Array, &Array) -> Result<Array> + Send + Sync>;

/// Numbers of the Poisson distribution with this mean, of an integer type; `jax.random.poisson`.
///
/// The mean is a number that is not negative, or an array of them that stretches to the shape. By D. Knuth's product of
/// uniform numbers below a mean of 10, else by W. Hörmann's transformed rejection (1993).
///
/// ```
/// use pallas_rt::{ir::DType, random};
/// let calls = random::poisson(random::key(0), 4, &[10_000], DType::I32);
/// let mean = calls.mean(..).to_vec::<f32>()?;
/// assert!((mean[0] - 4.0).abs() < 0.1);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn poisson(key: Key, mean: impl Into<Operand>, shape: &[usize], dtype: DType) -> Array {
    let at = Loc::caller();
    let key = key.consume(at);
    let mean = broadcast_parameter("poisson", &key, &mean.into(), shape, DType::F32, at);
    if let Some(bad) = poisoned_unless_integer("poisson", &key, dtype, at) {
        return bad;
    }
    cast_or_poisoned(POISSON(&key, &mean), &mean, dtype)
}

/// Numbers of trials up to and including the first success, if each trial succeeds with the probability `p`, of an
/// integer type; `jax.random.geometric`. `p` is a number in (0, 1], or an array that stretches to the shape.
#[track_caller]
#[must_use]
pub fn geometric(key: Key, p: impl Into<Operand>, shape: &[usize], dtype: DType) -> Array {
    let at = Loc::caller();
    let key = key.consume(at);
    let p = broadcast_parameter("geometric", &key, &p.into(), shape, DType::F32, at);
    if let Some(bad) = poisoned_unless_integer("geometric", &key, dtype, at) {
        return bad;
    }
    let u = uniform(key, shape, DType::F32);
    let u = select(&u.eq(0.0), 1.0, &u);
    ((u.log() / (-p).log1p()).floor() + 1.0).cast(dtype)
}

/// Numbers of successes among `trials` trials with the probability `p` each, of a floating-point type;
/// `jax.random.binomial`.
///
/// `trials` and `p` are numbers, or arrays that stretch to the shape. A negative number of trials, a negative
/// probability and NaN give NaN. By sums of geometric numbers where up to 10 successes (or failures) are expected, else
/// by W. Hörmann's BTRS (1993).
///
/// ```
/// use pallas_rt::{ir::DType, random};
/// let heads = random::binomial(random::key(0), 100, 0.5, &[1000], DType::F32);
/// assert!((heads.mean(..).to_vec::<f32>()?[0] - 50.0).abs() < 1.0);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn binomial(key: Key, trials: impl Into<Operand>, p: impl Into<Operand>, shape: &[usize], dtype: DType) -> Array {
    let at = Loc::caller();
    let key = key.consume(at);
    let of = |x: Operand| broadcast_parameter("binomial", &key, &x, shape, dtype.accumulator(), at);
    let (trials, p) = (of(trials.into()), of(p.into()));
    cast_or_poisoned(BINOMIAL(&key, &trials, &p), &trials, dtype)
}

/// Numbers of outcomes of each kind among `trials` trials, of a floating-point type; `p` has the probabilities of the
/// kinds along its last axis. The result has the axes `shape`, to which `trials` and the other axes of `p` stretch,
/// then an axis of the kinds; `jax.random.multinomial`.
#[track_caller]
#[must_use]
pub fn multinomial(key: Key, trials: impl Into<Operand>, p: &Array, shape: &[usize], dtype: DType) -> Array {
    let at = Loc::caller();
    let key = key.consume(at);
    let Some(kinds) = p.shape().last().copied() else {
        return poisoned_draw(
            &key,
            "a multinomial distribution of one number".into(),
            "probabilities along an axis",
            at,
        );
    };
    let work = dtype.accumulator();
    let trials = broadcast_parameter("multinomial", &key, &trials.into(), shape, work, at);
    let full = [shape, &[kinds]].concat();
    let p = broadcast_parameter("multinomial", &key, &p.into(), &full, work, at).moveaxis(-1, 0);
    let made = || {
        // The share of a kind among it and those after it.
        let rest = p.cumsum(reverse(0));
        let shares = &p / select(&rest.eq(0.0), 1.0, &rest);
        let keys = split_batch(key.clone(), &[kinds]);
        let (_, counts) = scan(&trials, &(shares, keys), |rest: &Array, (share, key): &(Array, Key)| {
            let count = binomial(key.clone(), rest, share.clip(0.0, 1.0), shape, work);
            (rest - &count, count)
        })?;
        Ok(counts.moveaxis(0, -1))
    };
    cast_or_poisoned(made(), &p, dtype)
}

/// Returns an array that holds an error unless `dtype` is an integer type; `None` for an integer type.
fn poisoned_unless_integer(name: &str, key: &Key, dtype: DType, at: Loc) -> Option<Array> {
    let is_wrong = dtype.is_float() || dtype == DType::Bool;
    is_wrong.then(|| poisoned_draw(key, format!("`{name}` of {dtype}"), "an integer type", at))
}

/// Casts drawn numbers to their type; an error becomes an array of the shape of `like` that holds it.
fn cast_or_poisoned(made: Result<Array>, like: &Array, dtype: DType) -> Array {
    let bad = |error| Array::new_poisoned(error, like.client().clone(), dtype, like.shape());
    made.map_or_else(bad, |x| x.cast(dtype))
}

static POISSON: LazyLock<Sampler> = LazyLock::new(|| {
    jit(|key: &Key, mean: &Array| {
        // Each element is drawn in both ways, with a mean that ends the other way's loop soon.
        let is_small = mean.is_nan() | mean.lt(10.0);
        let small = poisson_by_product(key, &select(&is_small, mean, 0.0))?;
        let large = poisson_by_rejection(key, &select(&is_small, 1e5, mean))?;
        Ok::<_, crate::Error>(select(&mean.eq(0.0), 0.0, select(&is_small, small, large)))
    })
    .into_fn()
});

/// Draws Poisson numbers of small means: the number of uniform numbers whose product stays above `exp(-mean)`.
fn poisson_by_product(key: &Key, mean: &Array) -> Result<Array> {
    let first = (key.clone(), mean.zeros_like(), mean.zeros_like());
    let all = while_loop(
        &first,
        |(_, _, log): &(Key, Array, Array)| log.gt(-mean).any(..),
        |(key, count, log): &(Key, Array, Array)| {
            let [key, own] = split(key.clone());
            let count = select(&log.gt(-mean), count + 1.0, count);
            (key, count, log + uniform(own, mean.shape(), DType::F32).log())
        },
    )?;
    Ok(all.1 - 1.0)
}

/// Draws Poisson numbers of large means, by W. Hörmann's transformed rejection.
fn poisson_by_rejection(key: &Key, mean: &Array) -> Result<Array> {
    let log_mean = mean.log();
    let b: Array = 0.931 + 2.53 * mean.sqrt();
    let a: Array = -0.059 + 0.02483 * &b;
    let inverse = 1.1239 + 1.1328 / (&b - 3.4);
    let enough = 0.9277 - 3.6224 / (&b - 2.0);
    let first = (key.clone(), mean.full_like(-1.0), mean.zeros_like().cast(DType::Bool));
    let all = while_loop(
        &first,
        |(_, _, accepted): &(Key, Array, Array)| accepted.logical_not().any(..),
        |(key, count, accepted): &(Key, Array, Array)| {
            let [key, for_u, for_v] = split(key.clone());
            let u = uniform(for_u, mean.shape(), DType::F32) - 0.5;
            let v = uniform(for_v, mean.shape(), DType::F32);
            let inner: Array = 0.5 - u.abs();
            let k = ((&a * 2.0 / &inner + &b) * &u + mean + 0.43).floor();
            let s = (&v * &inverse / (&a / (&inner * &inner) + &b)).log();
            let t = -mean + &k * &log_mean - (&k + 1.0).lgamma();
            let at_once = inner.ge(0.07) & v.le(&enough);
            let refused = k.lt(0.0) | (inner.lt(0.013) & v.gt(&inner));
            let accept = at_once | (refused.logical_not() & s.le(t));
            (key, select(&accept, k, count), accepted | &accept)
        },
    )?;
    Ok(all.1)
}

static BINOMIAL: LazyLock<TwoParameterSampler> = LazyLock::new(|| {
    jit(|key: &Key, trials: &Array, p: &Array| {
        let is_low = p.lt(0.5);
        let q = select(&is_low, p, 1.0 - p);
        let (wrong_trials, infinite) = (trials.is_nan() | trials.lt(0.0), trials.is_inf());
        let (is_nan, is_negative) = (q.is_nan(), q.lt(0.0));
        let q = select(&(&is_nan | &is_negative), 0.01, q);
        let is_small = &wrong_trials | (trials * &q).le(10.0);
        let trials = trials.floor();
        let small = binomial_by_inversion(key, &select(&is_small, &trials, 0.0), &q)?;
        let large = binomial_by_rejection(key, &select(&is_small, 1e4, &trials), &select(&is_small, 0.5, &q))?;
        let count = select(&is_small, small, large);
        let invalid = is_negative | &is_nan | &wrong_trials;
        let count = select(&invalid, f64::NAN, count);
        let count = select(&(&infinite & invalid.logical_not()), f64::INFINITY, count);
        Ok::<_, crate::Error>(select(&(is_low | wrong_trials | is_nan | infinite), &count, trials - &count))
    })
    .into_fn()
});

/// Draws binomial numbers of which few are expected: the number of distances between successes that fit into the
/// trials.
fn binomial_by_inversion(key: &Key, trials: &Array, p: &Array) -> Result<Array> {
    let log_of_failure = (-p).log1p();
    let first = (key.clone(), p.zeros_like(), p.zeros_like());
    let all = while_loop(
        &first,
        |(_, _, sum): &(Key, Array, Array)| sum.le(trials).any(..),
        |(key, count, sum): &(Key, Array, Array)| {
            let [own, key] = split(key.clone());
            let count = select(&sum.le(trials), count + 1.0, count);
            // Without chance of a success the next one is infinitely far.
            let distance = (uniform(own, p.shape(), p.dtype()).log() / &log_of_failure).ceil();
            let distance = select(&p.eq(0.0), f64::INFINITY, distance);
            (key, count, sum + distance)
        },
    )?;
    Ok(all.1 - 1.0)
}

/// Draws binomial numbers of which many are expected, by W. Hörmann's BTRS.
fn binomial_by_rejection(key: &Key, n: &Array, p: &Array) -> Result<Array> {
    let deviation = (n * p * (1.0 - p)).sqrt();
    let b: Array = 1.15 + 2.53 * &deviation;
    let a: Array = -0.0873 + 0.0248 * &b + 0.01 * p;
    let c = n * p + 0.5;
    let enough = 0.92 - 4.2 / &b;
    let odds = p / (1.0 - p);
    let alpha = (2.83 + 5.1 / &b) * deviation;
    let m = ((n + 1.0) * p).floor();
    let first = (key.clone(), p.full_like(-1.0), p.zeros_like().cast(DType::Bool));
    let all = while_loop(
        &first,
        |(_, _, accepted): &(Key, Array, Array)| accepted.logical_not().any(..),
        |(key, count, accepted): &(Key, Array, Array)| {
            let [key, for_u, for_v] = split(key.clone());
            let u = uniform(for_u, p.shape(), p.dtype()) - 0.5;
            let v = uniform(for_v, p.shape(), p.dtype());
            let inner: Array = 0.5 - u.abs();
            let at_once = inner.ge(0.07) & v.le(&enough);
            let k = ((&a * 2.0 / &inner + &b) * u + &c).floor();
            let refused = k.lt(0.0) | k.gt(n);
            let v = (v * &alpha / (&a / (&inner * &inner) + &b)).log();
            let (rest, rest_of_m) = (n - &k + 1.0, n - &m + 1.0);
            let bound = (&m + 0.5) * ((&m + 1.0) / (&odds * &rest_of_m)).log()
                + (n + 1.0) * (&rest_of_m / &rest).log()
                + (&k + 0.5) * (&odds * &rest / (&k + 1.0)).log()
                + stirling_remainder(&m)
                + stirling_remainder(&(n - &m))
                - stirling_remainder(&k)
                - stirling_remainder(&(n - &k));
            let accept = at_once | (refused.logical_not() & v.le(bound));
            (key, select(&accept, k, count), accepted | &accept)
        },
    )?;
    Ok(all.1)
}

/// The remainder of Stirling's formula for `ln(k!)`. All `k` above 9 get the remainder of 9, as in JAX, whose numbers
/// these are: the remainders of neighbours nearly cancel.
fn stirling_remainder(k: &Array) -> Array {
    const STIRLING_REMAINDERS: [f64; 10] = [
        0.081_061_466_795_327_2,
        0.041_340_695_955_409_2,
        0.027_677_925_684_998_3,
        0.020_790_672_103_765_09,
        0.016_644_691_189_821_1,
        0.013_876_128_823_070_7,
        0.011_896_709_945_891_7,
        0.010_411_265_261_972,
        0.009_255_462_182_712_73,
        0.008_330_563_433_362_87,
    ];
    const STIRLING_REMAINDER_ABOVE_TABLE: f64 = (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / 1260.0 / 100.0) / 100.0) / 10.0;
    let near = |rest: Array, (i, value): (usize, &f64)| select(&k.lt(i as f64 + 1.0), *value, rest);
    STIRLING_REMAINDERS.iter().enumerate().rev().fold(k.full_like(STIRLING_REMAINDER_ABOVE_TABLE), near)
}

//! Distributions with parameters against their distribution functions, moments and derivatives.
use super::{floats, key};
use crate::prelude::*;
use crate::random::{self, Key};
use crate::{grad, ops};

const COUNT: usize = 20_000;

fn array(x: &[f32]) -> Array {
    Client::cpu().array(x, &[x.len()]).expect("it fits")
}

/// Parameters, and the share of the distribution below each of some numbers.
type Case = (&'static str, fn(Key) -> Array, fn(&Array) -> Array);

fn number(x: f64) -> Array {
    Client::cpu().full(&[], x as f32).expect("it fits")
}

/// Continuous distributions.
const CONTINUOUS: &[Case] = &[
    ("gamma 0.3", |key| random::gamma(key, 0.3, &[COUNT], DType::F32), |x| number(0.3).gammainc(x)),
    ("gamma 1", |key| random::gamma(key, 1.0, &[COUNT], DType::F32), |x| number(1.0).gammainc(x)),
    ("gamma 9.5", |key| random::gamma(key, 9.5, &[COUNT], DType::F32), |x| number(9.5).gammainc(x)),
    ("loggamma 0.1", |key| random::loggamma(key, 0.1, &[COUNT], DType::F32), |x| number(0.1).gammainc(&x.exp())),
    ("beta 0.5 2", |key| random::beta(key, 0.5, 2.0, &[COUNT], DType::F32), |x| number(0.5).betainc(&number(2.0), x)),
    ("beta 5 3", |key| random::beta(key, 5.0, 3.0, &[COUNT], DType::F32), |x| number(5.0).betainc(&number(3.0), x)),
    ("chisquare 3", |key| random::chisquare(key, 3.0, &[COUNT], DType::F32), |x| number(1.5).gammainc(&(x / 2.0))),
    (
        "f 4 7",
        |key| random::f(key, 4.0, 7.0, &[COUNT], DType::F32),
        |x| number(2.0).betainc(&number(3.5), &(x * 4.0 / (x * 4.0 + 7.0))),
    ),
    (
        "t 2.5",
        |key| random::t(key, 2.5, &[COUNT], DType::F32),
        |x| {
            let tail = number(1.25).betainc(&number(0.5), &(2.5 / (x * x + 2.5))) / 2.0;
            crate::ops::select(&x.gt(0.0), 1.0 - &tail, &tail)
        },
    ),
    ("lognormal 0.7", |key| random::lognormal(key, 0.7, &[COUNT], DType::F32), |x| (x.log() / 0.7).ndtr()),
    ("pareto 1.5", |key| random::pareto(key, 1.5, &[COUNT], DType::F32), |x| 1.0 - x.pow(-1.5)),
    ("rayleigh 2", |key| random::rayleigh(key, 2.0, &[COUNT], DType::F32), |x| 1.0 - (-(x * x) / 8.0).exp()),
    (
        "weibull 1.5 0.75",
        |key| random::weibull_min(key, 1.5, 0.75, &[COUNT], DType::F32),
        |x| 1.0 - (-(x / 1.5).pow(0.75)).exp(),
    ),
    (
        "triangular",
        |key| random::triangular(key, -1.0, 0.5, 2.0, &[COUNT], DType::F32),
        |x| crate::ops::select(&x.lt(0.5), (x + 1.0).square() / 4.5, 1.0 - (x - 2.0).square() / 4.5),
    ),
    (
        "wald 1.75",
        |key| random::wald(key, 1.75, &[COUNT], DType::F32),
        |x| {
            let root = x.rsqrt();
            (&root * (x / 1.75 - 1.0)).ndtr() + (-root * (x / 1.75 + 1.0)).ndtr() * (2.0f64 / 1.75).exp()
        },
    ),
    (
        "generalized normal 1.5",
        |key| random::generalized_normal(key, 1.5, &[COUNT], DType::F32),
        |x| 0.5 + x.sign() * number(1.0 / 1.5).gammainc(&x.abs().pow(1.5)) / 2.0,
    ),
    ("maxwell", |key| random::maxwell(key, &[COUNT], DType::F32), |x| number(1.5).gammainc(&(x * x / 2.0))),
    (
        "double-sided maxwell",
        |key| random::double_sided_maxwell(key, 1.0, 2.0, &[COUNT], DType::F32),
        |x| {
            let x = (x - 1.0) / 2.0;
            0.5 + x.sign() * number(1.5).gammainc(&(&x * &x / 2.0)) / 2.0
        },
    ),
    (
        "dirichlet",
        |key| random::dirichlet(key, &array(&[0.5, 1.0, 2.5]), &[COUNT], DType::F32).index((.., 1)),
        |x| number(1.0).betainc(&number(3.0), x),
    ),
    ("ball", |key| random::ball(key, 3, 2.0, &[COUNT], DType::F32).norm(-1), |x| x.pow(3)),
];

/// The largest distance of the shares below numbers from those that they should be, times the root of their count, is
/// below
/// 1.95 in all but one of 1000 draws (Kolmogorov).
#[test]
fn numbers_have_their_distribution() {
    for (name, draw, below) in CONTINUOUS {
        let x = draw(key(11)).sort(0);
        let shares = floats(&below(&x));
        let share = |i: usize| (i as f32 + 0.5) / COUNT as f32;
        let most = shares.iter().enumerate().map(|(i, x)| (x - share(i)).abs()).fold(0.0f32, f32::max);
        let most = most * (COUNT as f32).sqrt();
        assert!(most < 1.95, "{name}: {most}");
        assert!(shares.iter().all(|x| (0.0..=1.0001).contains(x)), "{name}");
    }
}

/// Shares of counts, by their logarithms.
#[test]
fn counts_have_their_distribution() {
    type Counts = (&'static str, Array, fn(&Array) -> Array);
    let poisson = |mean: f64| random::poisson(key(5), mean, &[COUNT], DType::I32).cast(DType::F32);
    let binomial = |n: f64, p: f64| random::binomial(key(6), n, p, &[COUNT], DType::F32);
    fn of_poisson(k: &Array, mean: f64) -> Array {
        (k * mean.ln() - mean - (k + 1.0).lgamma()).exp()
    }
    fn of_binomial(k: &Array, n: f64, p: f64) -> Array {
        let ways = number(n + 1.0).lgamma() - (k + 1.0).lgamma() - (n - k + 1.0).lgamma();
        (ways + k * p.ln() + (n - k) * (1.0 - p).ln()).exp()
    }
    let cases: [Counts; 8] = [
        ("poisson 0.5", poisson(0.5), |k| of_poisson(k, 0.5)),
        ("poisson 7", poisson(7.0), |k| of_poisson(k, 7.0)),
        ("poisson 30", poisson(30.0), |k| of_poisson(k, 30.0)),
        ("binomial 9 0.2", binomial(9.0, 0.2), |k| of_binomial(k, 9.0, 0.2)),
        ("binomial 9 0.9", binomial(9.0, 0.9), |k| of_binomial(k, 9.0, 0.9)),
        ("binomial 80 0.4", binomial(80.0, 0.4), |k| of_binomial(k, 80.0, 0.4)),
        ("binomial 80 0.7", binomial(80.0, 0.7), |k| of_binomial(k, 80.0, 0.7)),
        ("geometric 0.3", random::geometric(key(7), 0.3, &[COUNT], DType::I32).cast(DType::F32), |k| {
            number(0.7).pow(k - 1.0) * 0.3 * k.ge(1.0).cast(DType::F32)
        }),
    ];
    for (name, x, shares) in cases {
        let most = 81;
        let kinds = ops::arange(0, most, 1, DType::F32);
        let want = floats(&shares(&kinds));
        let mut found = vec![0.0f32; most as usize];
        for x in floats(&x) {
            assert!(x >= 0.0 && x.fract() == 0.0, "{name}: {x}");
            if let Some(count) = found.get_mut(x as usize) {
                *count += 1.0;
            }
        }
        let (mut statistic, mut kinds) = (0.0f32, 0.0f32);
        for (found, share) in found.iter().zip(want) {
            let expected = share * COUNT as f32;
            // Rare kinds are no more than they should be by chance.
            if expected >= 8.0 {
                statistic += (found - expected) * (found - expected) / expected;
                kinds += 1.0;
            } else {
                assert!(*found < 40.0, "{name}: {found} of {expected}");
            }
        }
        // The chi-square distribution has about this mean and this deviation.
        assert!(kinds > 2.0 && statistic < kinds + 4.0 * (2.0 * kinds).sqrt(), "{name}: {statistic} for {kinds}");
    }
}

#[test]
fn edges_of_parameters_are_those_of_jax() {
    let counts = |mean: f32| random::poisson(key(1), mean, &[3], DType::I32).to_vec::<i32>().expect("counts");
    assert_eq!((counts(0.0), counts(f32::NAN)), (vec![0; 3], vec![-1; 3]));
    let trials = array(&[-1.0, 0.0, f32::INFINITY, f32::NAN, 7.0, 7.0, 7.0]);
    let p = array(&[0.5, 0.5, 0.5, 0.5, f32::NAN, 0.0, 1.0]);
    let found = floats(&random::binomial(key(1), &trials, &p, &[7], DType::F32));
    assert!(found[0].is_nan() && found[3].is_nan() && found[4].is_nan(), "{found:?}");
    assert_eq!((found[1], found[2], found[5], found[6]), (0.0, f32::INFINITY, 0.0, 7.0));
    for dtype in [DType::U8, DType::I16, DType::I64] {
        assert_eq!(random::poisson(key(1), 3.0, &[4], dtype).dtype(), dtype);
    }
    for dtype in [DType::Bf16, DType::F16, DType::F64] {
        let x = random::gamma(key(1), 2.0, &[500], dtype);
        let mean = floats(&x.cast(DType::F32).mean(..))[0];
        assert!(x.dtype() == dtype && (mean - 2.0).abs() < 0.3, "{dtype}: {mean}");
    }
    assert_eq!(random::gamma(key(1), 2.0, &[0, 3], DType::F32).shape(), [0, 3]);
    // So small that its numbers are 0, but their logarithms are not.
    let x = floats(&random::loggamma(key(1), 1e-3, &[50], DType::F32));
    assert!(x.iter().all(|x| x.is_finite()) && x.iter().any(|x| *x < -200.0), "{x:?}");
}

#[test]
fn vectors_have_their_moments() {
    let cov = Client::cpu().array(&[2.0f32, 0.5, 0.5, 1.0], &[2, 2]).expect("it fits");
    let x = random::multivariate_normal(key(2), &array(&[1.0, -3.0]), &cov, &[COUNT], DType::F32);
    let mean = floats(&x.mean(0));
    assert!((mean[0] - 1.0).abs() < 0.05 && (mean[1] + 3.0).abs() < 0.05, "{mean:?}");
    assert!(floats(&(x.t().cov() - cov).abs().max(..))[0] < 0.08);
    let counts = random::multinomial(key(3), 12.0, &array(&[0.2, 0.5, 0.3]), &[COUNT], DType::F32);
    assert!(floats(&counts.sum(-1)).iter().all(|&sum| sum == 12.0));
    let mean = floats(&counts.mean(0));
    assert!(mean.iter().zip([2.4, 6.0, 3.6]).all(|(x, y)| (x - y).abs() < 0.05), "{mean:?}");
    let q = random::orthogonal(key(4), 5, 3, &[7], DType::F32);
    let error = q.t().matmul(&q) - ops::identity(3, DType::F32);
    assert!(q.shape() == [7, 5, 3] && floats(&error.abs().max(..))[0] < 1e-5);
    assert_eq!(random::orthogonal(key(4), 2, 3, &[], DType::F32).shape(), [2, 3]);
    let x = random::ball(key(4), 2, 1.0, &[500], DType::F32);
    assert!(floats(&x.abs().sum(-1).max(..))[0] <= 1.0);
}

/// A number's derivative keeps its share: `d share(a, x(a)) / da = 0`.
#[test]
fn derivatives_by_parameters_keep_shares() {
    for a in [0.2f32, 0.9, 1.0, 3.0, 20.0] {
        let draw = move |a: &Array| random::gamma(random::key(8), a, &[64], DType::F32);
        let a = Client::cpu().full(&[64], a).expect("it fits");
        let x = draw(&a);
        let slope = grad(move |a: &Array| draw(a).sum(..))(&a).expect("it has a gradient");
        let own = x.clone();
        let by_a = grad(move |a: &Array| a.gammainc(&own).sum(..))(&a).expect("it has a gradient");
        let own = a.clone();
        let by_x = grad(move |x: &Array| own.gammainc(x).sum(..))(&x).expect("it has a gradient");
        let rest = floats(&((by_a + &by_x * &slope).abs() / (1.0 + by_x)).max(..))[0];
        assert!(rest < 1e-4, "{rest}");
        // The logarithm's derivative is that of the number divided by it.
        let logs = move |a: &Array| random::loggamma(random::key(8), a, &[64], DType::F32).sum(..);
        let of_log = grad(logs)(&a).expect("it has a gradient");
        let error = floats(&((&of_log * &x - &slope).abs() / (slope.abs() + 1e-3)).max(..))[0];
        assert!(error < 1e-2, "{error}");
    }
    // Means of distributions that are made of it: of a beta distribution a / (a + b).
    let mean = |a: &Array| random::beta(random::key(3), a, 2.0, &[COUNT], DType::F32).mean(..);
    let slope = floats(&grad(mean)(&number(3.0)).expect("it has a gradient"))[0];
    assert!((slope - 2.0 / 25.0).abs() < 4e-3, "{slope}");
    let weights = array(&[1.0, 0.0, 0.0]);
    let mean = move |alpha: &Array| {
        (random::dirichlet(random::key(3), alpha, &[COUNT], DType::F32).mean(0) * &weights).sum(..)
    };
    let slopes = floats(&grad(mean)(&array(&[1.0, 2.0, 3.0])).expect("it has a gradient"));
    assert!(slopes.iter().zip([5.0 / 36.0, -1.0 / 36.0, -1.0 / 36.0]).all(|(x, y)| (x - y).abs() < 5e-3), "{slopes:?}");
}

#[test]
fn mistakes_of_parameters_are_named() {
    let wide = Client::cpu().full(&[2, 3], 1.0f32).expect("it fits");
    let wrong: [(Array, &str); 2] = [
        (random::gamma(key(0), 1.0, &[2], DType::I32), "`gamma` of i32"),
        (random::gamma(key(0), &wide, &[4], DType::F32), "a broadcast of f32[2,3] to [4]"),
    ];
    for (x, words) in wrong {
        let message = x.check().err().unwrap_or_else(|| panic!("expected: {words}")).to_string();
        assert!(message.contains(words), "expected {words}, found {message}");
    }
}

//! Gradients against central differences, in f64.
use crate::ops::{self, Item::Rest, by, keep, select};
use crate::prelude::*;
use crate::{grad, jit};

type F = fn(&Array) -> Array;

/// Elements without ties and away from zero and from whole numbers, where functions have kinks.
fn elements() -> Vec<f64> {
    (0..12).map(|i| f64::from(i * 37 % 23 - 11) / 9.0 + 0.03).collect()
}

/// A weight for each element, so that errors of positions show.
fn weighted(x: &Array) -> Array {
    let x = x.ravel();
    let weights = (x.ones_like().cumsum(0) * 0.7).sin() + 1.25;
    (x * weights).sum(..)
}

fn differences(f: F, x: &[f64]) -> Vec<f64> {
    let at = |i: usize, h: f64| {
        let mut x = x.to_vec();
        x[i] += h;
        let y = weighted(&f(&Client::cpu().array(&x, &[3, 4]).expect("it fits")));
        y.to_vec::<f64>().unwrap_or_else(|e| panic!("{e}"))[0]
    };
    let h = 1e-6;
    (0..x.len()).map(|i| (at(i, h) - at(i, -h)) / (2.0 * h)).collect()
}

#[track_caller]
fn check(cases: &[(&str, F)]) {
    let x = elements();
    let array = Client::cpu().array(&x, &[3, 4]).expect("it fits");
    for &(name, f) in cases {
        let want = differences(f, &x);
        assert!(want.iter().any(|d| d.abs() > 1e-3), "{name}: no element counts");
        let gradient = grad(move |x: &Array| weighted(&f(x)));
        let at_once = gradient(&array).unwrap_or_else(|e| panic!("{name}: {e}"));
        let compiled = jit(gradient)(&array).unwrap_or_else(|e| panic!("{name}: {e}"));
        for found in [at_once, compiled] {
            let found = found.to_vec::<f64>().unwrap_or_else(|e| panic!("{name}: {e}"));
            let is_close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * (1.0 + b.abs());
            assert!(found.iter().zip(&want).all(is_close), "{name}:\n{found:?}\n{want:?}");
        }
    }
}

#[test]
fn gradients_of_movement_are_differences() {
    check(&[
        ("part", |x| x.index((1.., ..-1))),
        ("position", |x| x.index((Rest, -2))),
        ("steps", |x| x.index((by(.., 2), by(.., -3)))),
        ("nothing and all", |x| ops::concatenate(&[x.index(3..), x.clone()], 0)),
        ("concatenate", |x| ops::concatenate(&[x.clone(), x * 2.0, x.index(1..)], 0)),
        ("stack", |x| ops::stack(&[x.clone(), x.sin()], 1)),
        ("split", |x| ops::concatenate(&[x.split(2, 1)[1].clone(), x.split([1], 1)[0].clone()], -1)),
        ("insert", |x| x.insert(1, &x.index((.., 0)), 1).delete(0, 0)),
        ("pad", |x| x.pad(&[(1, 2), (0, 3)], 1.5)),
        ("tile", |x| x.tile(&[2, 3])),
        ("repeat", |x| x.repeat(3, 0)),
        ("roll", |x| x.roll(-1, 1).roll(2, 0)),
        ("flip", |x| x.flip(..)),
        ("rotate", |x| x.rot90(3, [0, 1])),
        ("move", |x| ops::stack(&[x, x], 0).moveaxis(0, -1).swapaxes(0, 1)),
        ("squeeze", |x| x.expand_dims(1).squeeze(1).ravel()),
        ("triangles", |x| x.tril(1) + x.triu(-1)),
        ("diagonal", |x| x.diagonal(1, 0, 1)),
        ("spread", |x| x.diagonal(0, 0, 1).diag(-1)),
        ("trace", |x| x.trace(-1, 0, 1)),
        ("meshgrid", |x| {
            let grid = ops::meshgrid(&[x.index(0), x.index((.., 0))], ops::Indexing::Xy);
            &grid[0] * &grid[1]
        }),
        ("take", |x| {
            let at = x.ones_like().cumsum(1).cast(DType::I32) * 7 % 4;
            x.take_along_axis(&at, 1)
        }),
        ("broadcast", |x| x.index((.., ..1)) * x),
        ("products of elements", |x| {
            // Several for one place, and none for others.
            let at = x.ones_like().cumsum(0).cast(DType::I32) % 2 + 1;
            x.index((.., 0)).at(at.index((.., 0))).multiply(x.index((.., 1)))
        }),
        ("sort", |x| x.sort(1) * x.sort_descending(0)),
        ("largest", |x| x.top_k(2, 0).0),
        ("sort by another", |x| ops::sort_together(&[x.sin(), x.clone()], 1, -1)[1].clone()),
        ("partition", |x| x.partition(1, 1)),
    ]);
}

#[test]
fn gradients_of_reductions_are_differences() {
    check(&[
        ("std", |x| x.std(1)),
        ("norm", |x| x.norm(0)),
        ("norm of order 3", |x| x.vector_norm(3.0, ..)),
        ("logsumexp", |x| x.logsumexp(0) + x.logsumexp(keep(1))),
        ("ptp", |x| x.ptp(-1)),
        ("average", |x| x.average(1, &x.square())),
        ("standardize", |x| x.standardize(-1, 1e-5)),
        ("cumsum", |x| x.cumsum(0)),
        ("cumprod", |x| x.cumprod(1)),
        ("cummax", |x| x.cummax(1)),
        ("cummin", |x| x.cummin(0)),
        ("diff", |x| x.diff(2, 1)),
        ("trapezoid", |x| x.trapezoid(0.5, 0)),
        ("nanmean", |x| select(&x.gt(1.0), f64::NAN, x).nanmean(1)),
        ("cov", |x| x.cov()),
        ("corrcoef", |x| x.corrcoef()),
        ("products", |x| x.prod(0)),
        ("products of no elements", |x| x.index(3..).prod(0) + x.sum(0)),
        ("median", |x| x.median(1) + x.nanmedian(0).sum(..)),
        ("quantile", |x| x.quantile(0.3, 1, ops::QuantileMethod::Linear)),
        ("interpolation", |x| x.interp(&x.ravel().sort(0), &x.ravel())),
    ]);
}

#[test]
fn gradients_of_products_are_differences() {
    check(&[
        ("dot", |x| x.dot(&x.t())),
        ("inner", |x| x.inner(&x.sin())),
        ("outer", |x| x.outer(&x.index(0))),
        ("vdot", |x| x.vdot(&x.cos())),
        ("vecdot", |x| x.vecdot(&x.index(1))),
        ("kron", |x| x.kron(&x.index((..2, 0)))),
        ("cross", |x| x.index((.., ..3)).cross(&x.index((.., 1..)))),
        ("tensordot", |x| x.tensordot(&x.exp(), &[0, 1], &[0, 1])),
        ("contraction over axis 1 with axis 0", |x| ops::stack(&[x, x], 0).tensordot(x, &[1], &[0])),
        ("einsum", |x| ops::einsum("ij,kj,lj->ikl", &[x, &x.sin(), &x.exp()])),
        ("einsum with a batch", |x| ops::einsum("ij,ik->ijk", &[x, &x.tanh()])),
        ("polyval", |x| x.index(0).polyval(&x.index(1))),
        ("vander", |x| x.index(0).vander(3)),
    ]);
}

#[test]
fn gradients_of_formulas_are_differences() {
    check(&[
        ("powers", |x| x.pow(3) + x.abs().pow(1.5) + x.square().pow(x)),
        ("roots", |x| x.cbrt() + x.hypot(x.roll(1, 0))),
        ("inverse functions", |x| x.asinh() + (x.square() + 1.5).acosh() + (x * 0.4).atanh()),
        ("sums of exponentials", |x| x.logaddexp(x.roll(1, 1)) + x.logaddexp2(0.5)),
        ("sinc", |x| x.sinc()),
        ("remainder", |x| x.remainder(0.75) + x.fmod(0.5)),
        ("clip", |x| x.clip(-0.5, 0.75) + x.fmax(0.1) + x.fmin(0.2)),
        ("units", |x| x.elu(1.5) + x.selu() + x.celu(0.5) + x.leaky_relu(0.1) + x.relu() + x.relu6()),
        ("smooth units", |x| x.gelu_tanh() + x.mish() + x.log_sigmoid() + x.soft_sign() + x.squareplus(4.0)),
        ("hard units", |x| x.hard_tanh() + x.hard_silu() + x.sparse_plus() + x.sparse_sigmoid()),
        ("gates", |x| x.glu(1) + (x.square() + 0.1).log1mexp().index((.., ..2))),
        ("signs", |x| x.copysign(x.roll(1, 1)) + x.nan_to_num()),
    ]);
}

/// A formula that chooses between two: the one that is not chosen leaves no NaN.
#[test]
fn gradients_at_edges_are_finite() {
    let at = |f: F, x: f64| -> f64 {
        let x = Client::cpu().array(&[x], &[1]).expect("it fits");
        grad(move |x: &Array| f(x).sum(..))(&x).expect("it runs").to_vec::<f64>().expect("it ran")[0]
    };
    assert_eq!(at(|x| x.relu(), 0.0), 0.0);
    assert_eq!(at(|x| x.elu(1.0), 1e3), 1.0);
    assert_eq!(at(|x| x.sinc(), 0.0), 0.0);
    assert_eq!(at(|x| x.asinh(), 0.0), 1.0);
    assert!((at(|x| x.asinh(), 1e300) * 1e300 - 1.0).abs() < 1e-9);
    assert!((at(|x| x.acosh(), 1e300) * 1e300 - 1.0).abs() < 1e-9);
    assert_eq!(at(|x| x.logaddexp(x), 0.3), 1.0);
    assert!((at(|x| x.log1mexp(), 1e3)).abs() < 1e-12);
}

/// Elements that are NaN count for nothing, also in gradients.
#[test]
fn gradients_of_the_variance_of_numbers_ignore_nan() -> Result<(), Error> {
    let client = Client::cpu();
    let with = client.array(&[1.0f64, f64::NAN, 3.0, 6.5], &[4])?;
    let without = client.array(&[1.0f64, 3.0, 6.5], &[3])?;
    let pairs: [(F, F); 2] = [(|x| x.nanvar(..), |x| x.var(..)), (|x| x.nanstd(..), |x| x.std(..))];
    for (nan, plain) in pairs {
        let found = grad(move |x: &Array| nan(x))(&with)?.to_vec::<f64>()?;
        let want = grad(move |x: &Array| plain(x))(&without)?.to_vec::<f64>()?;
        assert_eq!(found[1], 0.0);
        for (a, b) in [found[0], found[2], found[3]].iter().zip(want) {
            assert!((a - b).abs() < 1e-12, "{found:?}");
        }
    }
    Ok(())
}

/// `cos(πx) - sinc(x)` over `x` loses all digits near 0; so do slopes of the gated unit at large gates, where `x`
/// multiplies what is left of 1.
#[test]
fn slopes_keep_their_digits() {
    let x = [1e-5f32, 1e-4, 1e-3, 1e-2, 0.0, 0.5, 1.0, 2.5, -1e-4];
    let at = |x: &[f32]| Client::cpu().array(x, &[x.len()]).expect("it fits");
    let slopes = grad(|x: &Array| x.sinc().sum(..))(&at(&x)).expect("it has a slope").to_vec::<f32>().expect("f32");
    for (x, found) in x.iter().zip(slopes) {
        let a = f64::from(*x) * std::f64::consts::PI;
        let exact = match a.abs() < 0.1 {
            true => std::f64::consts::PI * (-a / 3.0 + a.powi(3) / 30.0 - a.powi(5) / 840.0),
            false => std::f64::consts::PI * (a * a.cos() - a.sin()) / (a * a),
        };
        let close = (f64::from(found) - exact).abs() <= 2e-6 * exact.abs() + 1e-9;
        assert!(close, "the slope of sinc at {x}: {found}, not {exact}");
    }
    let gates = [3e7f32, 1e30, 30.0, 100.0, -100.0, 0.0];
    let slopes = grad(|x: &Array| x.silu().sum(..))(&at(&gates)).expect("it has a slope").to_vec::<f32>().expect("f32");
    for (found, exact) in slopes.iter().zip([1.0, 1.0, 1.0, 1.0, 0.0, 0.5]) {
        assert!((found - exact).abs() <= 1e-5, "{slopes:?}");
    }
    // What a rounded `tanh` leaves of 1 would be multiplied by `x³`.
    let clients = [Client::cpu()].into_iter().chain(crate::lang::random::gpu());
    for client in clients {
        let x = client.array(&[127.0f32, -127.0, 2e4, -2e4, 20.0, -20.0, 9.5, 0.0], &[8]).expect("it fits");
        let slopes = grad(|x: &Array| x.gelu_tanh().sum(..))(&x).expect("it has a slope").to_vec::<f32>().expect("f32");
        for (found, exact) in slopes.iter().zip([1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.5]) {
            assert!((found - exact).abs() <= 1e-5, "{slopes:?} on {}", client.device());
        }
    }
}

//! The operations of random programs that are composed of many others: linear algebra, windows at positions, attention,
//! distributions with parameters, initializers.
use super::attributes::Attributes;
use crate::initializers::{self, Distribution, Fan, Initializer};
use crate::linalg::{self, MatrixNorm, Triangle};
use crate::ops::{self, Attention};
use crate::prelude::*;
use crate::random::{self, Key, key};
use crate::vmap;

/// The results of a step, if it is one of these.
pub(super) fn step(name: &str, x: &[Array], a: &Attributes) -> Option<Vec<Array>> {
    let known = [linear, special, windows, drawn];
    known.into_iter().find_map(|step| step(name, x, a)).or_else(|| made(name, a).map(|x| vec![x]))
}

/// A matrix far from singular ones.
fn near(x: &Array) -> Array {
    x * 0.5 + ops::identity(x.shape()[x.rank() - 1], DType::F32) * 3.0
}
/// A positive definite matrix.
fn gram(x: &Array) -> Array {
    x.matmul(&x.t()) * 0.25 + ops::identity(x.shape()[x.rank() - 2], DType::F32)
}
/// A matrix with other elements on its diagonal, so that its values lie apart.
fn apart(x: &Array) -> Array {
    x + (ops::arange(0, x.shape()[x.rank() - 1] as i32, 1, DType::F32) * 3.0).diag(0)
}

fn linear(name: &str, x: &[Array], a: &Attributes) -> Option<Vec<Array>> {
    Some(vec![match name {
        "linalg.det" => linalg::det(&near(&x[0])),
        "linalg.inv" => linalg::inv(&near(&x[0])),
        "linalg.slogdet" => {
            let (sign, log) = linalg::slogdet(&near(&x[0]));
            return Some(vec![sign, log]);
        }
        "linalg.cond" => linalg::cond(&near(&x[0])),
        "linalg.cholesky" => linalg::cholesky(&gram(&x[0])),
        "linalg.solve" => linalg::solve(&near(&x[0]), &x[1]),
        "linalg.lstsq" => linalg::lstsq(&(&x[0] + ops::eye(3, 2, 0, DType::F32) * 2.0), &x[1]),
        "linalg.pinv" => linalg::pinv(&near(&x[0])),
        "linalg.matrix_rank" => linalg::matrix_rank(&near(&x[0])),
        "linalg.matrix_norm" => {
            let norm = match a.text(0) {
                "fro" => MatrixNorm::Frobenius,
                "1" => MatrixNorm::One,
                "-1" => MatrixNorm::MinusOne,
                "inf" => MatrixNorm::Infinity,
                _ => MatrixNorm::MinusInfinity,
            };
            linalg::matrix_norm(&x[0], norm)
        }
        "linalg.matrix_power" => linalg::matrix_power(&(near(&x[0]) / 3.0), a.int(0) as i32),
        "linalg.qr" => {
            let (q, r) = linalg::qr(&near(&x[0]));
            return Some(vec![q, r]);
        }
        "linalg.svdvals" => linalg::svdvals(&apart(&near(&x[0]))),
        "linalg.svd" => {
            let (u, s, v) = linalg::svd(&near(&x[0]));
            (u * s.expand_dims(-2)).matmul(&v)
        }
        "linalg.eigvalsh" => linalg::eigvalsh(&apart(&gram(&x[0]))),
        "linalg.eigh" => {
            let (w, v) = linalg::eigh(&apart(&gram(&x[0])));
            (&v * w.expand_dims(-2)).matmul(&v.t())
        }
        "linalg.multi_dot" => linalg::multi_dot(x),
        "scipy.linalg.cho_solve" => linalg::cho_solve(&linalg::cholesky(&gram(&x[0])), &x[1]),
        "scipy.linalg.solve_triangular" => {
            let triangle = if a.is(0) { Triangle::Lower } else { Triangle::Upper };
            linalg::triangular_solve(&near(&x[0]), &x[1], triangle)
        }
        _ => return None,
    }])
}

fn special(name: &str, x: &[Array], a: &Attributes) -> Option<Vec<Array>> {
    let along = || {
        let axis = a.axis(0);
        if a.is(1) { ops::reverse(axis) } else { axis.into() }
    };
    Some(vec![match name {
        "scipy.special.betainc" => x[0].stop_gradient().betainc(&x[1].stop_gradient(), &x[2]),
        "cumsum reverse" => x[0].cumsum(along()),
        "cumprod reverse" => x[0].cumprod(along()),
        "cummax reverse" => x[0].cummax(along()),
        "cummin reverse" => x[0].cummin(along()),
        "lax.cumlogsumexp" => x[0].cumlogsumexp(along()),
        "nn.dot_product_attention" => {
            let mut rest = x[3..].iter();
            let mut options = Attention::new().causal(a.is(2));
            if a.is(0) {
                options = options.bias(rest.next().expect("a bias"));
            }
            if a.is(1) {
                options = options.mask(rest.next().expect("a mask"));
            }
            if let Some(scale) = a.0[3].as_f64() {
                options = options.scale(scale);
            }
            if !a.0[4].is_null() {
                let window = a.sizes(4);
                options = options.window(window[0], window[1]);
            }
            options.run(&x[0], &x[1], &x[2])
        }
        _ => return None,
    }])
}

fn windows(name: &str, x: &[Array], a: &Attributes) -> Option<Vec<Array>> {
    Some(vec![match name {
        "lax.dynamic_slice_in_dim" => x[0].dynamic_slice_in_dim(&x[1], a.size(1), a.axis(0)),
        "lax.dynamic_index_in_dim" => x[0].dynamic_index_in_dim(&x[1], a.axis(0)),
        "lax.dynamic_update_slice_in_dim" => x[0].dynamic_update_slice_in_dim(&x[1], &x[2], a.axis(0)),
        "lax.dynamic_update_index_in_dim" => x[0].dynamic_update_index_in_dim(&x[1], &x[2], a.axis(0)),
        "lax.dynamic_slice" => x[0].dynamic_slice(x[1..].to_vec(), &a.sizes(0)),
        "lax.dynamic_update_slice" => x[0].dynamic_update_slice(&x[1], x[2..].to_vec()),
        _ => return None,
    }])
}

/// Numbers of a distribution whose parameters are arrays.
fn drawn(name: &str, x: &[Array], a: &Attributes) -> Option<Vec<Array>> {
    let name = name.strip_prefix("random.").filter(|_| !x.is_empty())?;
    let (key, shape, f32) = (key(a.int(0)), x[0].shape(), DType::F32);
    Some(vec![match name {
        "gamma" => random::gamma(key, &x[0], shape, f32),
        "loggamma" => random::loggamma(key, &x[0], shape, f32),
        "chisquare" => random::chisquare(key, &x[0], shape, f32),
        "t" => random::t(key, &x[0], shape, f32),
        "beta" => random::beta(key, &x[0], &x[1], shape, f32),
        "f" => random::f(key, &x[0], &x[1], shape, f32),
        "lognormal" => random::lognormal(key, &x[0], shape, f32),
        "pareto" => random::pareto(key, &x[0], shape, f32),
        "rayleigh" => random::rayleigh(key, &x[0], shape, f32),
        "wald" => random::wald(key, &x[0], shape, f32),
        "weibull_min" => random::weibull_min(key, &x[0], &x[1], shape, f32),
        "poisson" => random::poisson(key, &x[0], shape, DType::I32),
        "binomial" => random::binomial(key, x[0].floor(), &x[1], shape, f32),
        "geometric" => random::geometric(key, &x[0], shape, DType::I32),
        "dirichlet" => random::dirichlet(key, &x[0], &a.sizes(1), f32),
        "multivariate_normal" => {
            random::multivariate_normal(key, &x[1], &gram(&x[0]), &x[0].shape()[..x[0].rank() - 2], f32)
        }
        "split_batch" => {
            let each = vmap(|key: &Key, s: &Array| s * random::normal(key.clone(), &[2], DType::F32));
            each(&random::split_batch(key, shape), &x[0]).expect("a batch of keys")
        }
        _ => return None,
    }])
}

/// Arrays of a seed and a shape.
fn made(name: &str, a: &Attributes) -> Option<Array> {
    if name == "random.orthogonal" {
        return Some(random::orthogonal(key(a.int(0)), a.size(1), a.size(2), &[], DType::F32));
    }
    let initializer: Initializer = match name.strip_prefix("nn.initializers.")? {
        "zeros" => initializers::zeros(),
        "ones" => initializers::ones(),
        "constant" => initializers::constant(1.5),
        "uniform" => initializers::uniform(0.5),
        "normal" => initializers::normal(0.5),
        "truncated_normal" => initializers::truncated_normal(0.5, -2.0, 2.0),
        "variance_scaling" => initializers::variance_scaling(0.5, Fan::Out, Distribution::Normal),
        "orthogonal" => initializers::orthogonal(2.0, -1),
        "delta_orthogonal" => initializers::delta_orthogonal(1.0, -1),
        "glorot_uniform" => initializers::glorot_uniform(),
        "glorot_normal" => initializers::glorot_normal(),
        "lecun_uniform" => initializers::lecun_uniform(),
        "lecun_normal" => initializers::lecun_normal(),
        "he_uniform" => initializers::he_uniform(),
        "he_normal" => initializers::he_normal(),
        _ => return None,
    };
    Some(initializer.init(key(a.int(0)), &a.sizes(1), DType::F32))
}

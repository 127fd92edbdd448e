//! The functions of the cases in reference.txt of special functions, windows and linear algebra, by name.
use super::cases::{Function, Made};
use crate::linalg::{self, MatrixNorm, Triangle};
use crate::ops::{self, Operand};
use crate::prelude::*;
use crate::{Arg, grad};

macro_rules! cases {
    ($LIST:ident |$x:ident| $($name:expr => $value:expr;)*) => {
        pub(super) const $LIST: &[(&str, Function)] = &[$(($name, |$x| $value.into())),*];
    };
}

/// A matrix far from singular ones.
fn near(x: &Array) -> Array {
    x + ops::identity(x.shape()[x.shape().len() - 1], x.dtype()) * 4.0
}
/// A positive definite matrix.
fn gram(x: &Array) -> Array {
    x.matmul(&x.t()) + ops::identity(x.shape()[x.shape().len() - 2], x.dtype())
}
/// The gradient of a function that is one number.
fn slope(x: &Array, f: fn(&Array) -> Array) -> Array {
    grad(f)(x).expect("it has a gradient")
}
/// The gradients by two arrays.
fn slopes(x: &Array, y: &Array, f: fn(&Array, &Array) -> Array) -> (Array, Array) {
    grad(f).argnums((Arg::<0>, Arg::<1>))(x, y).expect("it has gradients")
}
fn cubed(x: &Array) -> Array {
    (x * x * x).sum(..)
}
fn three((a, b, c): (Array, Array, Array)) -> Made {
    vec![a.abs(), b, c.abs()].into()
}

cases! { LINEAR |x|
    "lax.lgamma" => x[0].lgamma();
    "lax.digamma" => x[0].digamma();
    "lax.lgamma gradient" => slope(&x[0], |x| x.lgamma().sum(..));
    "lax.digamma gradient" => slope(&x[0], |x| x.digamma().sum(..));
    "scipy.special.betaln" => x[0].betaln(&x[1]);
    "scipy.special.entr" => x[0].entr();
    "scipy.special.erfinv" => x[0].erf_inv();
    "scipy.special.erfinv gradient" => slope(&x[0], |x| x.erf_inv().sum(..));
    "scipy.special.factorial" => x[0].factorial();
    "scipy.special.logit" => x[0].logit();
    "scipy.special.ndtr" => x[0].ndtr();
    "scipy.special.xlogy" => x[0].xlogy(&x[1]);
    "scipy.special.xlog1py" => x[0].xlog1py(&x[1]);
    "scipy.special.xlogy gradient" => slopes(&x[0], &x[1], |x, y| x.xlogy(y).sum(..));
    "scipy.special.xlog1py gradient" => slopes(&x[0], &x[1], |x, y| x.xlog1py(y).sum(..));
    "lax.dynamic_slice" => x[0].dynamic_slice([&x[1], &x[2]], &[2, 3]);
    "lax.dynamic_slice_in_dim" => x[0].dynamic_slice_in_dim(&x[1], 2, 1);
    "lax.dynamic_index_in_dim" => x[0].dynamic_index_in_dim(&x[1], 1);
    "lax.dynamic_update_slice" => x[0].dynamic_update_slice(&x[1], [&x[2], &x[3]]);
    "lax.dynamic_update_slice_in_dim" => x[0].dynamic_update_slice_in_dim(&x[1], &x[2], 1);
    "lax.dynamic_update_index_in_dim" => x[0].dynamic_update_index_in_dim(&x[1], &x[2], 1);
    "lax.dynamic_slice gradient" => {
        let at = x[2].clone();
        grad(move |x: &Array, y: &Array| {
            let updated = x.dynamic_update_slice(y, [&at, &at]).dynamic_slice([Operand::from(1), 1.into()], &[2, 2]);
            (x.dynamic_slice([&at, &at], &[2, 2]) * updated).sum(..)
        }).argnums((Arg::<0>, Arg::<1>))(&x[0], &x[1]).expect("it has gradients")
    };
    "linalg.cholesky" => linalg::cholesky(&gram(&x[0]));
    "linalg.cholesky indefinite" => linalg::cholesky(&x[0]);
    "linalg.cholesky asymmetric" => linalg::cholesky(&x[0]);
    "linalg.det" => linalg::det(&near(&x[0]));
    "linalg.inv" => linalg::inv(&near(&x[0]));
    "linalg.slogdet" => linalg::slogdet(&near(&x[0]));
    "linalg.slogdet singular" => linalg::slogdet(&x[0]);
    "linalg.solve" => linalg::solve(&near(&x[0]), &x[1]);
    "linalg.lstsq" => linalg::lstsq(&x[0], &x[1]);
    "linalg.pinv" => linalg::pinv(&x[0]);
    "linalg.matrix_rank" => linalg::matrix_rank(&x[0]);
    "linalg.cond" => linalg::cond(&near(&x[0]));
    "linalg.matrix_norm fro" => linalg::matrix_norm(&x[0], MatrixNorm::Frobenius);
    "linalg.matrix_norm nuc" => linalg::matrix_norm(&x[0], MatrixNorm::Nuclear);
    "linalg.matrix_norm 1" => linalg::matrix_norm(&x[0], MatrixNorm::One);
    "linalg.matrix_norm -1" => linalg::matrix_norm(&x[0], MatrixNorm::MinusOne);
    "linalg.matrix_norm 2" => linalg::matrix_norm(&x[0], MatrixNorm::Two);
    "linalg.matrix_norm -2" => linalg::matrix_norm(&x[0], MatrixNorm::MinusTwo);
    "linalg.matrix_norm inf" => linalg::matrix_norm(&x[0], MatrixNorm::Infinity);
    "linalg.matrix_norm -inf" => linalg::matrix_norm(&x[0], MatrixNorm::MinusInfinity);
    "linalg.matrix_power 0" => linalg::matrix_power(&(near(&x[0]) / 4.0), 0);
    "linalg.matrix_power 1" => linalg::matrix_power(&(near(&x[0]) / 4.0), 1);
    "linalg.matrix_power 5" => linalg::matrix_power(&(near(&x[0]) / 4.0), 5);
    "linalg.matrix_power -2" => linalg::matrix_power(&(near(&x[0]) / 4.0), -2);
    "linalg.multi_dot" => linalg::multi_dot(x);
    "linalg.qr" => linalg::qr(&x[0]);
    "linalg.svdvals" => linalg::svdvals(&x[0]);
    "linalg.svd" => three(linalg::svd(&x[0]));
    "linalg.eigvalsh" => linalg::eigvalsh(&gram(&x[0]));
    "linalg.eigh" => {
        let (w, v) = linalg::eigh(&gram(&x[0]));
        (w, v.abs())
    };
    "scipy.linalg.cho_solve" => linalg::cho_solve(&linalg::cholesky(&gram(&x[0])), &x[1]);
    "scipy.linalg.solve_triangular lower" => linalg::triangular_solve(&near(&x[0]), &x[1], Triangle::Lower);
    "scipy.linalg.solve_triangular upper" => linalg::triangular_solve(&near(&x[0]), &x[1], Triangle::Upper);
    "linalg.det gradient" => slope(&x[0], |x| linalg::det(&near(x)));
    "linalg.solve gradient" => slopes(&x[0], &x[1], |x, y| linalg::solve(&near(x), y).square().sum(..));
    "linalg.cholesky gradient" => slope(&x[0], |x| cubed(&linalg::cholesky(&gram(x))));
    "linalg.qr gradient" => slope(&x[0], |x| {
        let (q, r) = linalg::qr(x);
        cubed(&q) + cubed(&r)
    });
    "linalg.svdvals gradient" => slope(&x[0], |x| cubed(&linalg::svdvals(x)));
    "linalg.eigvalsh gradient" => slope(&x[0], |x| cubed(&linalg::eigvalsh(x)));
    "linalg.pinv gradient" => slope(&x[0], |x| {
        let wide = ops::eye(4, 3, 0, x.dtype()) * 2.0;
        cubed(&linalg::pinv(&(x + wide)))
    });
}

//! A Gaussian process: its hyperparameters by gradient descent, then its prediction with variances.
use pallas_rt::array_prelude::*;
use pallas_rt::linalg::{Triangle::Lower, cho_solve, cholesky, triangular_solve};

fn kernel(p: &Array, a: &Array, b: &Array) -> Array {
    let d = (a.expand_dims(1) - b) / p.index(0).exp();
    (2 * p.index(1) - 0.5 * d.square()).exp()
}

fn factor(p: &Array, x: &Array) -> Array {
    cholesky(&(kernel(p, x, x) + (2 * p.index(2)).exp() * ops::identity(x.len(), F32)))
}

fn loss(p: &Array, x: &Array, y: &Array) -> Array {
    let l = factor(p, x);
    0.5 * y.matmul(&cho_solve(&l, y)) + l.diag(0).log().sum(..)
}

fn predict(p: &Array, x: &Array, y: &Array, at: &Array) -> (Array, Array) {
    let (l, cross) = (factor(p, x), kernel(p, x, at));
    let mean = cho_solve(&l, y).matmul(&cross);
    let rest = triangular_solve(&l, &cross, Lower).square().sum(0);
    (mean, (2 * p.index(1)).exp() - rest)
}

pub fn run() -> Result<Vec<Array>> {
    let x = ops::linspace(-3, 3, 30, F32);
    let y = (2 * &x).sin() + 0.3 * random::normal(random::key(3), &[30], F32);
    let mut p = ops::array([0.0, 0.0, -1.0]);
    let slope = jit(grad(loss));
    for _ in 0..30 {
        p = &p - 0.01 * slope(&p, &x, &y)?;
    }
    let (mean, variance) = jit(predict)(&p, &x, &y, &ops::linspace(-2, 4, 7, F32))?;
    Ok(vec![p, mean, variance])
}

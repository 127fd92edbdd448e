"""A Gaussian process: its hyperparameters by gradient descent, then its prediction with variances."""
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular


def kernel(p, a, b):
    d = (a[:, None] - b) / jnp.exp(p[0])
    return jnp.exp(2 * p[1] - 0.5 * jnp.square(d))


def factor(p, x):
    return jnp.linalg.cholesky(kernel(p, x, x) + jnp.exp(2 * p[2]) * jnp.eye(len(x)))


def loss(p, x, y):
    l = factor(p, x)
    return 0.5 * y @ cho_solve((l, True), y) + jnp.log(jnp.diag(l)).sum()


@jax.jit
def predict(p, x, y, at):
    l, cross = factor(p, x), kernel(p, x, at)
    mean = cho_solve((l, True), y) @ cross
    rest = jnp.square(solve_triangular(l, cross, lower=True)).sum(0)
    return mean, jnp.exp(2 * p[1]) - rest


def run():
    x = jnp.linspace(-3.0, 3.0, 30)
    y = jnp.sin(2 * x) + 0.3 * jax.random.normal(jax.random.key(3), (30,))
    p = jnp.array([0.0, 0.0, -1.0])
    slope = jax.jit(jax.grad(loss))
    for _ in range(30):
        p = p - 0.01 * slope(p, x, y)
    mean, variance = predict(p, x, y, jnp.linspace(-2.0, 4.0, 7))
    return p, mean, variance

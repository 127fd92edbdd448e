"""Logistic regression by gradient descent."""
import jax
import jax.numpy as jnp


def loss(w, x, y):
    margins = (2 * y - 1) * (x @ w)
    return jax.nn.softplus(-margins).mean() + 0.01 * jnp.square(w).sum()


def run():
    a, b, c = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(a, (200, 5))
    noise = 0.3 * jax.random.normal(c, (200,))
    y = (x @ jax.random.normal(b, (5,)) + noise > 0).astype(jnp.float32)
    w, losses = jnp.zeros(5), []
    f = jax.jit(jax.value_and_grad(loss))
    for _ in range(50):
        value, slope = f(w, x, y)
        w = w - 0.5 * slope
        losses.append(value)
    right = ((x @ w > 0) == (y > 0)).mean()
    return w, jnp.stack(losses), right

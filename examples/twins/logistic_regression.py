"""Logistic regression by gradient descent."""
import jax
import jax.numpy as jnp


def loss(w, x, y):
    margins = (2 * y - 1) * (x @ w)
    return jax.nn.softplus(-margins).mean() + 0.01 * jnp.square(w).sum()


@jax.jit
def step(w, x, y):
    value, slope = jax.value_and_grad(loss)(w, x, y)
    return w - 0.5 * slope, value


def run():
    a, b, c = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(a, (200, 5))
    noise = 0.3 * jax.random.normal(c, (200,))
    y = (x @ jax.random.normal(b, (5,)) + noise > 0).astype(jnp.float32)
    w = jnp.zeros(5)
    losses = []
    for _ in range(50):
        w, value = step(w, x, y)
        losses.append(value)
    right = ((x @ w > 0) == (y > 0)).mean()
    return w, jnp.stack(losses), right

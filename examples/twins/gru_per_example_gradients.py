"""The gradient of each sequence of a batch by the weights of a gated recurrent unit, none of them longer than 1."""
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Gru(NamedTuple):
    x: jax.Array
    h: jax.Array
    out: jax.Array


def loss(gru, xs, y):
    def step(h, x):
        xz, xr, xn = jnp.split(x @ gru.x, 3)
        hz, hr, hn = jnp.split(h @ gru.h, 3)
        z = jax.nn.sigmoid(xz + hz)
        n = jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn)
        return (1 - z) * n + z * h, None

    h, _ = jax.lax.scan(step, jnp.zeros(4), xs)
    return jnp.square(h @ gru.out - y)


def clipped(gru, xs, y):
    slope = jax.grad(loss)(gru, xs, y)
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(slope)))
    return norm, jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), slope)


def run():
    a, b, c, d, e = jax.random.split(jax.random.key(2), 5)
    normal = jax.random.normal
    gru = Gru(0.5 * normal(a, (3, 12)), 0.5 * normal(b, (4, 12)), normal(c, (4,)))
    xs, ys = normal(d, (16, 10, 3)), normal(e, (16,))
    each = jax.jit(jax.vmap(clipped, in_axes=(None, 0, 0)))
    norms, slopes = each(gru, xs, ys)
    return norms, slopes.x.mean(0), slopes.h.mean(0), slopes.out.mean(0)

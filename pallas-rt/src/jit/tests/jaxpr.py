"""Functions as JAX prints them, which the tests compare with: `python jaxpr.py > jaxpr.txt`.

Needs jax[cpu]==0.12.0.1. Functions of jax.numpy are inlined. A function is followed by an empty line.
"""
import jax
import jax.numpy as jnp
import numpy as np

x, w = jnp.ones((2, 3)), jnp.ones((3, 4))
weights = np.ones(3, np.float32)


def captured(x):
    return jnp.asarray(weights) * x


def scores(q, k):
    s = jnp.matmul(q, jnp.swapaxes(k, -1, -2)) * 0.125
    return jnp.exp(s).sum(-1), s.max((0, 1)), jnp.argmax(s, -1)


FUNCTIONS = [
    ("where", lambda x: jnp.where(x > 0, x, 0.5 * x), [x]),
    ("layer", lambda x, w: jnp.tanh(x @ w + 1.0), [x, w]),
    ("scores", scores, [jnp.ones((5, 7, 8)), jnp.ones((5, 6, 8))]),
    ("moves", lambda x: (x.T.reshape(6).astype(jnp.int32) + 3, jnp.broadcast_to(x, (5, 2, 3)), x.sum(1, keepdims=True)), [x]),
    ("numbers", lambda x: (x * 1e-5, x + 1e10, x - 123456789.0, x / 0.1, x * jnp.float32(jnp.inf), x**2.5, x * 1e16), [x]),
    ("bits", lambda x: ((x << 3) ^ (x >> 2) & 255, ~x | 1, jnp.minimum(x, 5)), [jnp.ones(2, jnp.uint32)]),
    ("unused", lambda x: (jnp.exp(x), x.sum())[1], [x]),
    ("many", lambda *a: tuple(a) + tuple(b + b for b in a), [[x] * 8]),
    ("captured", captured, [jnp.ones(3)]),
    ("nothing", lambda x: x, [x]),
    ("gather", lambda x, i: jnp.take(x, i, axis=0, mode="clip"), [x, jnp.zeros(5, jnp.int32)]),
    ("scatter", lambda x, i, y: jnp.exp(x.at[i].max(y)), [x, jnp.zeros(5, jnp.int32), jnp.ones((5, 3))]),
    ("windows", lambda x, i, y: jnp.exp(x.at[i, i].add(y)), [x, jnp.zeros(5, jnp.int32), jnp.ones(5)]),
]

with jax.disable_jit():
    for name, f, args in FUNCTIONS:
        g = (lambda a: f(*a)) if name == "many" else f
        print(name)
        print(jax.make_jaxpr(g)(*args), end="\n\n")

"""Slopes by JAX where operands are equal, at the ends of pieces, at 0 and at infinities; `python slopes.py > slopes.txt`.

A line is a name, then for each operand its elements and the derivative of the sum of the result by it.
"""
import jax
import jax.numpy as jnp
from jax import lax

X = [-6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, float("inf"), float("-inf")]
ROWS = [[1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0], [2.0, 1.0, 1.0, 2.0, 2.0], [-1.0, -2.0, -2.0, -1.0, -1.0, -3.0, -1.0], [3.0]]
WEIGHTS = lambda n: jnp.arange(1.0, n + 1.0)
BASES = [0.0, 0.0, 0.0, 0.0, 0.0, -0.0, 1.0, 1.0, 2.0, -2.0]
EXPONENTS = [0.0, 1.0, 2.0, 0.5, 3.0, 2.0, 0.0, 2.0, -1.0, 2.0]

ONE = dict(
    abs=jnp.abs, relu=jax.nn.relu, relu6=jax.nn.relu6, hard_sigmoid=jax.nn.hard_sigmoid, hard_tanh=jax.nn.hard_tanh,
    hard_silu=jax.nn.hard_silu, leaky_relu=lambda x: jax.nn.leaky_relu(x, 0.25), elu=jax.nn.elu, celu=jax.nn.celu,
    selu=jax.nn.selu, sparse_plus=jax.nn.sparse_plus, sparse_sigmoid=jax.nn.sparse_sigmoid, sign=jnp.sign,
    nan_to_num=jnp.nan_to_num, soft_sign=jax.nn.soft_sign, softplus=jax.nn.softplus,
)
TWO = dict(
    maximum=jnp.maximum, minimum=jnp.minimum, fmax=jnp.fmax, fmin=jnp.fmin,
    pow=lambda x, y: x**y, heaviside=jnp.heaviside, copysign=jnp.copysign, logaddexp=jnp.logaddexp, hypot=jnp.hypot,
)
THREE = dict(clip=jnp.clip)
ALONG = dict(
    cummax=lambda x: lax.cummax(x), cummin=lambda x: lax.cummin(x), cummax_reverse=lambda x: lax.cummax(x, reverse=True),
    cumprod=jnp.cumprod, sort=jnp.sort,
)
WHOLE = dict(max=jnp.max, min=jnp.min, prod=jnp.prod, median=jnp.median, ptp=jnp.ptp, infinity_norm=lambda x: jnp.linalg.norm(x, jnp.inf))


def show(x):
    return " ".join(repr(float(v)) for v in x)


def line(name, f, *args):
    args = [jnp.array(a) for a in args]
    slopes = jax.grad(lambda *a: jnp.sum(f(*a)), tuple(range(len(args))))(*args)
    print(f"{name}; " + "; ".join(f"{show(x)} -> {show(d)}" for x, d in zip(args, slopes)))


for name, f in ONE.items():
    line(name, f, X)
for name, f in TWO.items():
    if name == "pow":
        line(name, f, BASES, EXPONENTS)
        continue
    # Infinities, and numbers whose squares are none of the type, for roots.
    drawn = [*X, 3e38, 1e-30] if name == "hypot" else [x for x in X if abs(x) < 7]
    pairs = [(x, y) for x in drawn for y in drawn]
    line(name, f, [x for x, _ in pairs], [y for _, y in pairs])
for name, f in THREE.items():
    triples = [(x, a, b) for x in (0.0, 1.0, 2.0, 3.0) for a in (0.0, 1.0, 2.0) for b in (0.0, 1.0, 2.0, 3.0)]
    line(name, f, *[[t[i] for t in triples] for i in range(3)])
for name, f in ALONG.items():
    for row in ROWS:
        line(name, lambda x: f(x) * WEIGHTS(len(row)), row)
for name, f in WHOLE.items():
    for row in ROWS:
        line(name, f, row)

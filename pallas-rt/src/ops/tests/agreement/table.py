"""The operations of the random programs: how operands and attributes are drawn, and JAX's function."""
import jax
import jax.numpy as jnp

ROWS = {}


class Row:
    """`exact` for operations that do not round; `gradient` and `batch` are False where neither is compared."""

    def __init__(self, draw, function, exact=False, gradient=True, batch=True):
        self.draw, self.function, self.exact, self.gradient, self.batch = draw, function, exact, gradient, batch


def row(name, draw, function, **flags):
    assert name not in ROWS, name
    ROWS[name] = Row(draw, function, **flags)


def named(name):
    for prefix, space in [("nn.", jax.nn), ("lax.", jax.lax), ("scipy.special.", jax.scipy.special)]:
        if name.startswith(prefix):
            return getattr(space, name.removeprefix(prefix))
    return getattr(jnp, name)


def one(kind="f", **limits):
    return lambda d: ([d.pick(kind, **limits)], [])


def two(kind="n"):
    def draw(d):
        x = d.pick(kind)
        return [x, d.partner(x, kind)], []
    return draw


for name in "sin cos tanh exp arctan square".split():
    row(name, one(), lambda x, a, f=named(name): f(x[0]))
for name in "abs negative".split():
    row(name, one("n"), lambda x, a, f=named(name): f(x[0]), exact=True)
for name in "add subtract multiply".split():
    row(name, two(), lambda x, a, f=named(name): f(x[0], x[1]))

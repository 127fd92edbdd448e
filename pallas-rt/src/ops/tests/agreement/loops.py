"""Operations of the random programs that take functions: loops, branches, roots, transposes and second derivatives. It adds
its rows to the table; nestings.py draws scans and conditions in one another."""
import jax
import jax.numpy as jnp
from jax import lax

from table import POSITIVE, row

x = lambda d, **limits: d.finite("f32", high=2, **limits)


def scanned(d):
    shape = d.shape(0, 1)
    start = x(d, shape=shape, within=(-2, 2))
    return [start, x(d, shape=[d.dice.randint(1, 4), *shape], within=(-2, 2)), x(d, shape=shape, within=(-1, 1))], [d.dice.random() < 0.5]


def scan(x, a):
    def step(h, element):
        h = jnp.tanh(h * x[2] + element)
        return h, h * element
    return lax.scan(step, x[0], x[1], reverse=a[0])


row("lax.scan", scanned, scan)
row("lax.fori_loop", lambda d: ([x(d)], [d.dice.randint(0, 4)]),
    lambda x, a: lax.fori_loop(0, a[0], lambda i, h: jnp.sin(h) + 0.25 * i, x[0]))


def loop(x, a):
    """As many steps as an operand says; without gradients, which reverse mode has not."""
    step = lambda carry: (carry[0] + 1, carry[1] * 0.5 + 1)
    return lax.while_loop(lambda carry: carry[0] < x[1], step, (jnp.int32(0), lax.stop_gradient(x[0])))


row("lax.while_loop", lambda d: ([x(d), d.new("i32", [], 0, 4)], []), loop)
row("lax.cond", lambda d: ([d.pick("b", shape=[]), x(d)], []),
    lambda x, a: lax.cond(x[0], jnp.cos, lambda x: x * x * 0.5, x[1]))
row("lax.switch", lambda d: ([d.new("i32", [], -2, 4), x(d)], []),
    lambda x, a: lax.switch(x[0], [jnp.sin, lambda x: x * 2, lambda x: -x], x[1]))


def map_of(d):
    rows, columns = d.dice.randint(1, 4), d.dice.randint(1, 4)
    return [x(d, shape=[rows, columns], within=(-2, 2)), x(d, shape=[rows], within=(-2, 2))], []


row("linear_transpose", map_of, lambda x, a: jax.linear_transpose(
    lambda v: jnp.sin(x[0]) @ v + v.sum(), jnp.zeros(x[0].shape[1], jnp.float32))(x[1])[0])


def cubic(x, a):
    """The root of y³ + y - x by Newton's method."""
    f = lambda y: y * y * y + y - x[0]
    newton = lambda f, guess: lax.fori_loop(0, 12, lambda _, y: y - f(y) / (3 * y * y + 1), guess)
    return lax.custom_root(f, jnp.ones_like(x[0]), newton, lambda g, y: y / g(jnp.ones_like(y)))


row("lax.custom_root", lambda d: ([x(d, within=POSITIVE)], []), cubic)
row("hessian", lambda d: ([x(d, shape=[d.dice.randint(1, 4)], within=(-2, 2))], []),
    lambda x, a: jax.hessian(lambda v: (jnp.sin(v) * jnp.cumsum(v)).sum())(x[0]))
row("jacrev", lambda d: ([x(d, shape=[d.dice.randint(1, 3)], within=(-2, 2))], []),
    lambda x, a: jax.jacrev(lambda v: jnp.tanh(v) * v[0])(x[0]))
row("jvp", lambda d: ([v := x(d, within=(-2, 2)), x(d, shape=d.values[v].shape, within=(-2, 2))], []),
    lambda x, a: jax.jvp(lambda v: jnp.exp(jnp.sin(v)) * v, (x[0],), (x[1],)))
row("checkpoint", lambda d: ([x(d)], []), lambda x, a: jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)))(x[0]))

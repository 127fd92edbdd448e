#!/usr/bin/env python3
"""Values that functions of blocks and of batches compute in JAX: `python values.py > values.txt`. A line has the name of the
function and the numbers."""
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
BOTH = P(("x", "y"))


def say(name, value):
    leaves = jax.tree.leaves(value)
    print(name, *[repr(float(v)) for leaf in leaves for v in jnp.ravel(leaf)])


# Loops and branches whose condition each device decides for itself.
def own_steps(v):
    return lax.while_loop(lambda c: c.sum() < 40.0, lambda c: c * 1.5 + 1.0, v)


def own_branch(v):
    return lax.switch(lax.axis_index(("x", "y")), [jnp.sin, jnp.cos, lambda v: v * v, lambda v: -v], v)


def nested(v):
    def step(c):
        count, v = c
        v = lax.cond(v.sum() < 3.0, lambda v: v + 2.0, lambda v: v * 1.5, v)
        v = lax.fori_loop(0, 1 + lax.axis_index("y"), lambda _, v: v + 0.25, v)
        return count + 1, v

    return lax.while_loop(lambda c: c[1].sum() < 20.0, step, (lax.pcast(0, ("x", "y"), to="varying"), v))[1]


def exchanged(v):
    v = own_steps(v)
    return lax.psum(own_branch(v), "x") + lax.ppermute(v, "y", [(0, 1), (1, 0)])


# Those of devices that exchange arrays in their steps: the condition is the same for those that do. XLA's permutes wait for
# all devices, so the other one's block is here what it adds to a sum.
def others(v):
    return lax.psum(v, "y") - v


def rows_steps(v):
    return lax.while_loop(lambda c: lax.psum(c, "y").sum() < 60.0, lambda c: c + others(c) * 0.5 + 1.0, v)


def rows_branch(v):
    branches = [lambda v: lax.pmax(v, "y") * v, lambda v: v - lax.psum(v, "y")]
    return lax.switch(lax.axis_index("x"), branches, v)


# What is read first and never again may give its memory to what is exchanged.
def rows_reused(v):
    apart = lambda v: lax.pcast(v, "y", to="varying")
    branches = [lambda v: jnp.cos(apart(lax.psum(jnp.sin(v), "y"))), lambda v: v * apart(lax.psum(jnp.cos(v) + v, "y"))]
    v = lax.switch(lax.axis_index("x"), branches, v)
    return lax.while_loop(lambda c: lax.psum(c, "y").sum() < 9.0, lambda c: apart(lax.psum(jnp.sin(c), "y")) * 0.5 + 2.0, v)


def rows_nested(v):
    def step(c):
        count, v = c
        v = lax.cond(count % 2 == 0, lambda v: v + lax.psum(v, "y") * 0.125, lambda v: rows_branch(v) * 0.5 + 3.0, v)
        v = lax.fori_loop(0, count + 1, lambda _, v: v + others(v) * lax.axis_index("y") * 0.25, v)
        return count + 1, v

    number = lax.axis_index("x")
    return lax.while_loop(lambda c: c[0] < 2 + 2 * lax.axis_index("x"), step, (number, v))[1] + lax.psum(v, "x")


eight = jnp.arange(8.0)
BLOCKS = [own_steps, own_branch, nested, exchanged, rows_steps, rows_branch, rows_reused, rows_nested]
for name, f in ((f.__name__, f) for f in BLOCKS):
    say(name, jax.jit(shard_map(f, mesh=mesh, in_specs=BOTH, out_specs=BOTH))(eight))

# Batches whose axes have names.
six = jnp.arange(6.0).reshape(2, 3)
nine = jnp.arange(9.0).reshape(3, 3)
wide = jnp.arange(18.0).reshape(3, 6)
BATCHES = {
    "sums": (lambda v: (lax.psum(v, "i"), lax.pmean(v, "i"), lax.pmax(v, "i"), lax.pmin(v, "i")), nine),
    "sum_of_constant": (lambda v: v + lax.psum(jnp.float32(2.0), "i"), nine),
    "sum_of_truths": (lambda v: lax.psum(v > 4.0, "i"), nine),
    "gathered": (lambda v: lax.all_gather(v, "i", axis=1), nine),
    "gathered_tiled": (lambda v: lax.all_gather(v, "i", tiled=True) * v[0], nine),
    "scattered": (lambda v: lax.psum_scatter(v, "i"), nine),
    "scattered_tiled": (lambda v: lax.psum_scatter(v, "i", tiled=True), wide),
    "to_all": (lambda v: lax.all_to_all(v, "i", 0, 0), nine),
    "to_all_tiled": (lambda v: lax.all_to_all(v, "i", 0, 0, tiled=True), wide),
    "permuted": (lambda v: lax.ppermute(v, "i", [(0, 2), (1, 0), (2, 1)]), nine),
    "shuffled": (lambda v: lax.pshuffle(v, "i", [2, 0, 1]), nine),
    "numbers": (lambda v: v * lax.axis_index("i") + lax.axis_size("i"), nine),
    "gradient_inside": (jax.grad(lambda v: (lax.psum(v * v, "i") * jnp.sin(v)).sum()), nine),
    "gradient_of_gathered": (jax.grad(lambda v: (lax.all_gather(v * v, "i") * jnp.arange(3.0)).sum()), nine),
    "gradient_of_scattered": (jax.grad(lambda v: lax.psum_scatter(jnp.sin(v), "i")), nine),
    "gradient_of_permuted": (jax.grad(lambda v: (lax.ppermute(v * v, "i", [(0, 1), (1, 2), (2, 0)]) * v).sum()), nine),
    "tangent": (lambda v: jax.jvp(lambda v: lax.pmean(v * v, "i"), (v,), (v + 1.0,)), nine),
    "carried": (lambda v: lax.scan(lambda c, w: (c + lax.psum(w, "i"), c * lax.axis_index("i")), v[0], v), nine),
    "until": (lambda v: lax.while_loop(lambda v: lax.psum(v, "i").sum() < 100.0, lambda v: v * 2.0, v), nine),
    "of_sum": (lambda v: lax.cond(lax.psum(v, "i").sum() < 9.0, jnp.sin, lambda v: v + lax.pmax(v, "i"), v), nine),
    "normalized": (lambda v: (v - lax.pmean(v, "i")) / jnp.sqrt(lax.pmean((v - lax.pmean(v, "i")) ** 2, "i")), nine),
}
for name, (f, v) in BATCHES.items():
    say(name, jax.jit(jax.vmap(f, axis_name="i"))(v))
say("around", jax.grad(lambda v: (jax.vmap(lambda v: lax.psum(jnp.sin(v), "i") * v, axis_name="i")(v)).sum())(nine))
say("unmapped", jax.vmap(lambda v: lax.psum(v, "i"), axis_name="i", in_axes=1, out_axes=None)(nine))
two = lambda f: jax.vmap(jax.vmap(f, axis_name="j"), axis_name="i")
say("nested_sum", two(lambda v: v + lax.psum(v, ("i", "j")))(six))
say("nested_number", two(lambda v: v * 0 + lax.axis_index(("j", "i")))(six))
say("nested_other", two(lambda v: lax.psum(v, "i") + lax.pmax(v, "j"))(six))
say("same_name", jax.vmap(jax.vmap(lambda v: lax.psum(v, "i"), axis_name="i"), axis_name="i")(six))
# With its types of values JAX cannot trace collectives over axes of batches in a body.
block = lambda v: jax.vmap(lambda v: lax.psum(lax.psum(v, "x"), "i"), axis_name="i")(v)
say("in_a_body", jax.jit(shard_map(block, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False))(eight))
body = shard_map(lambda v: v * lax.psum(lax.psum(v, "x"), "i"), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
say("around_a_body", jax.vmap(body, axis_name="i")(jnp.arange(12.0).reshape(3, 4)))

# Bodies that are manual along one axis. The other one divides arguments.

put = lambda v, *spec: jax.device_put(v, NamedSharding(mesh, P(*spec)))
square = jnp.arange(16.0).reshape(4, 4) / 7.0
weights = jnp.cos(jnp.arange(24.0)).reshape(4, 6)


def layer(v, w):
    h = jnp.tanh(v @ w)
    return lax.psum(h.T @ h, "x") + lax.pmean(h.sum(), "x")


def moved(v, w):
    g = lax.all_gather(v, "x", axis=1)
    s = lax.psum_scatter(v @ w, "x", scatter_dimension=0, tiled=True)
    p = lax.ppermute(v, "x", [(0, 1), (1, 0)]) * (1.0 + lax.axis_index("x"))
    return lax.psum(g.sum(axis=(0, 1)), "x"), s, p[::-1] + jnp.roll(v, 1, axis=1)


def steps(v, w):
    def step(c, row):
        c = jnp.tanh(c @ w[:, :4]) + lax.psum(row, "x")
        return c, c.sum()

    return lax.scan(step, v, jnp.stack([v, v * 2.0, v - 1.0]))


PARTIAL = {
    "partial_layer": (layer, P()),
    "partial_moved": (moved, (P(), P("x"), P("x"))),
}
for name, (f, out) in PARTIAL.items():
    g = jax.jit(shard_map(f, mesh=mesh, axis_names={"x"}, in_specs=(P("x"), P()), out_specs=out))
    say(name, g(put(square, None, "y"), put(weights, None, "y")))
g = shard_map(lambda v, w: steps(v, w)[0], mesh=mesh, axis_names={"x"}, in_specs=(P("x"), P()), out_specs=P("x"))
say("partial_steps", jax.jit(g)(put(square, None, "y"), put(weights, "y")))
f = shard_map(layer, mesh=mesh, axis_names={"x"}, in_specs=(P("x"), P()), out_specs=P())
loss = lambda v, w: (f(v, w) ** 2).sum() / 100.0
say("partial_gradient", jax.jit(jax.grad(loss, argnums=(0, 1)))(put(square, "x", "y"), put(weights, "y")))

# Bodies in bodies: the outer one is manual along x, the inner one along y.
inside = lambda f, takes, gives: shard_map(f, axis_names={"y"}, in_specs=takes, out_specs=gives)
outside = lambda f, takes, gives: jax.jit(shard_map(f, mesh=mesh, axis_names={"x"}, in_specs=takes, out_specs=gives))


def mixed(v):
    def inner(w):
        number = lax.axis_index("x") * 10 + lax.axis_index("y")
        return w * lax.psum(w, "x") + lax.psum(w * w, "y").sum() + number

    return inside(inner, P(None, "y"), P(None, "y"))(v * 2.0) + lax.psum(v, "x")


def reduced(v, w):
    def inner(v, w):
        h = jnp.tanh(v @ w)
        return lax.psum(h.T @ h, "y") + lax.pmean(lax.psum(h.sum(), "x"), "y")

    return lax.psum(inside(inner, (P("y"), P()), P())(v, w), "x")


def captured(v, w):
    total = lax.psum(v.sum(), "x")
    # JAX does not slice what a body captures.
    inner = lambda w, total, first: w * total + first * lax.axis_index("y")
    return inside(inner, (P("y"), P(), P()), P("y"))(w, total, v[0, 0])


say("nested_mixed", outside(mixed, P("x"), P("x"))(square))
say("nested_reduced", outside(reduced, (P("x"), P()), P())(square, weights))
say("nested_captured", outside(captured, (P("x"), P()), P("x"))(square, weights))


# JAX does not lower the gradient of a body in a body; this is the same function in one.
def at_once(v, w):
    h = jnp.tanh(v @ w)
    return lax.psum(lax.psum(h.T @ h, "y") + lax.pmean(lax.psum(h.sum(), "x"), "y"), "x")


g = shard_map(at_once, mesh=mesh, in_specs=(BOTH, P()), out_specs=P())
say("nested_value", g(square, weights))
loss = lambda v, w: (g(v, w) ** 2).sum() / 100.0
say("nested_gradient", jax.jit(jax.grad(loss, argnums=(0, 1)))(square, weights))

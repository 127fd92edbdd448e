#!/usr/bin/env python3
"""Values that functions of blocks and of batches compute in JAX: `python values.py > values.txt`. A line has the name of the
function and the numbers."""
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import AxisType, PartitionSpec as P

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


eight = jnp.arange(8.0)
for name, f in {"own_steps": own_steps, "own_branch": own_branch, "nested": nested, "exchanged": exchanged}.items():
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

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

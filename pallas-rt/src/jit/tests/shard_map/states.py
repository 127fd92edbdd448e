#!/usr/bin/env python3
"""The states of values inside of `jax.shard_map`, on a mesh of two axes: a line for each operation and states of operands.

    NAME OPERANDS RESULT        a letter for each axis: I invariant, V varying, U unreduced, R reduced; `error`
"""
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import AxisType, PartitionSpec as P

AXES = "xy"
BOTH = ("x", "y")
mesh = jax.make_mesh((2, 2), BOTH, axis_types=(AxisType.Auto,) * 2)


def states(v):
    t = jax.typeof(v).manual_axis_type
    of = lambda a: "V" if a in t.varying else "U" if a in t.unreduced else "R" if a in t.reduced else "I"
    return "".join(of(a) for a in AXES)


def put(v, wanted):
    for axis, state in zip(AXES, wanted):
        if state in "VU":
            v = lax.pcast(v, axis, to="varying")
        if state == "U":
            v = lax.pcast(v, axis, to="unreduced")
        if state == "R":
            v = lax.pcast(v, axis, to="reduced")
    return v


def found(f, *operands):
    got = []

    def body(v):
        got.append(states(f(*[put(v, s) for s in operands])))
        return v

    try:
        jax.eval_shape(shard_map(body, mesh=mesh, in_specs=P(), out_specs=P()), jnp.zeros((4, 4)))
    except Exception:
        return got[0] if got else "error"
    return got[0]


RING = lambda axes: [(i, (i + 1) % n) for n in [2 if axes == "x" else 4] for i in range(n)]
COLLECTIVES = {
    "psum": lax.psum,
    "pmean": lax.pmean,
    "pmax": lax.pmax,
    "pmin": lax.pmin,
    "all_gather": lambda v, a: lax.all_gather(v, a, tiled=True),
    "all_gather_invariant": lambda v, a: lax.all_gather(v, a, tiled=True, to="invarying"),
    "all_gather_reduced": lambda v, a: lax.all_gather(v, a, tiled=True, to="reduced"),
    "psum_scatter": lambda v, a: lax.psum_scatter(v, a, tiled=True),
    "all_to_all": lambda v, a: lax.all_to_all(v, a, 0, 0, tiled=True),
    "ppermute": lambda v, a: lax.ppermute(v, a, RING(a)),
    "varying": lambda v, a: lax.pcast(v, a, to="varying"),
    "unreduced": lambda v, a: lax.pcast(v, a, to="unreduced"),
    "reduced": lambda v, a: lax.pcast(v, a, to="reduced"),
    "axis_index": lambda v, a: lax.axis_index(a),
    "axis_size": lambda v, a: jnp.zeros(4) + lax.axis_size(a),
}
UNARY = {
    "neg": lambda v: -v,
    "exp": jnp.exp,
    "transpose": lambda v: v.T,
    "sum": lambda v: v.sum(),
    "max": lambda v: v.max(),
}
BINARY = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b}
for name, f in COLLECTIVES.items():
    for axes in ("x", BOTH):
        for s in (a + b for a in "IVUR" for b in "IVUR"):
            print(f"{name}:{''.join(axes)}", s, found(lambda v: f(v, axes), s))
for name, f in UNARY.items():
    for s in "IVUR":
        print(name, s + "I", found(f, s + "I"))
for name, f in BINARY.items():
    for a in "IVUR":
        for b in "IVUR":
            print(name, f"{a}I,{b}I", found(f, a + "I", b + "I"))


def accepted(f, spec=P()):
    try:
        jax.eval_shape(shard_map(f, mesh=mesh, in_specs=P(), out_specs=spec), jnp.zeros((4, 4)))
        return "ok"
    except Exception:
        return "error"


def scanned(v, s, t):
    lax.scan(lambda c, _: (put(v, t), None), put(v, s), None, length=2)
    return v


def branched(v, s, t):
    lax.cond(v.sum() > 0, lambda: put(v, s), lambda: put(v, t))
    return v


# The state with which a value begins and the one that a step makes of it; those of two branches; those of results.
SOME = ("II", "VI", "VV")
for s in SOME:
    for t in SOME:
        print("scan", f"{s},{t}", accepted(lambda v: scanned(v, s, t)))
        print("cond", f"{s},{t}", accepted(lambda v: branched(v, s, t)))
    for name, spec in (("", P()), ("x", P("x")), ("xy", P(BOTH))):
        print(f"out:{name}", s, accepted(lambda v: put(v, s), spec))

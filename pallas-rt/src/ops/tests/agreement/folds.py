"""Long folds of arrays of every element type, with JAX's answers.

    python folds.py 240 1 > folds.txt

Needs jax[cpu]==0.12.0.1. A line is a fold in JSON: its name; element type, shape, seed and limits of its operand, as in
programs.py; the axis; some elements of the result; and the number of roundings to the result's type by which JAX's own
algorithm may be off: running folds of JAX round about log2(n) times, others once.
"""
import json
import math
import random
import sys

import jax
import jax.numpy as jnp
import numpy as np

from programs import ROUNDING, TYPES, elements, is_float, shown

# Elements of running folds that are compared.
EVERY = 37


def scaled(x, axis):
    """The gradient by a factor of each line along the axis: the sum of what it is multiplied with."""
    shape = [n for i, n in enumerate(x.shape) if i != axis]
    return jax.grad(lambda w: (x * jnp.expand_dims(w, axis)).astype(jnp.float32).sum())(jnp.ones(shape, x.dtype))


def some(x):
    return x.ravel()[::EVERY]


FLOATS = {
    "sum": jnp.sum, "mean": jnp.mean, "var": jnp.var, "std": jnp.std, "prod": jnp.prod, "norm": lambda x, axis: jnp.linalg.norm(x, axis=axis),
    "logsumexp": lambda x, axis: jax.nn.logsumexp(x, axis=axis), "max": jnp.max, "min": jnp.min, "scaled": scaled,
    "cumsum": lambda x, axis: some(jnp.cumsum(x, axis)), "cumprod": lambda x, axis: some(jnp.cumprod(x, axis)),
    "softmax": lambda x, axis: some(jax.nn.softmax(x, axis)),
}
OTHERS = {name: FLOATS[name] for name in ("sum", "prod", "max", "min", "cumsum", "cumprod")}


def drawn(dice, dtype):
    rows = int(10 ** dice.uniform(0, 4))
    shape = [rows, dice.choice([1, 2, 3])] if dice.random() < 0.5 else [dice.choice([1, 2, 3]), rows]
    axis = shape.index(rows)
    is_real = dtype in ROUNDING
    name = dice.choice(sorted(FLOATS if is_real else OTHERS))
    if name in ("prod", "cumprod"):
        low, high = (1 - 1 / rows, 1 + 1 / rows) if is_real else (1, 2)
    else:
        low, high = dice.choice([(0, 1), (0.1, 0.2), (-1, 2)] if is_real else [(0, 3), (0, 1), (0, 100)])
    if dtype == "bool" and name in ("max", "min", "cumprod"):
        name = "sum"
    operand = [dtype, shape, dice.randrange(1, 100000), low, high]
    x = jnp.array(elements(*operand))
    found = jax.jit(FLOATS[name], static_argnums=1)(x, axis)
    if is_float(found) and not np.isfinite(np.asarray(found).astype(np.float64)).all():
        return drawn(dice, dtype)
    steps = 1
    if name in ("cumsum", "cumprod"):
        steps = 2 + math.ceil(math.log2(rows + 1))
    if name in ("softmax", "norm", "logsumexp"):
        # Elements are rounded before and after the sum.
        steps = 4
    return {"name": name, "operand": operand, "axis": axis, "result": shown(found), "steps": steps}


def main(total, seed):
    dice = random.Random(seed)
    types = ["f16", "bf16"] * 4 + sorted(TYPES)
    for i in range(total):
        print(json.dumps(drawn(dice, types[i % len(types)]), separators=(",", ":")))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

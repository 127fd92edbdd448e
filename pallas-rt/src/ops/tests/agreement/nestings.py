"""Random nestings of transformations, with JAX's answers.

    python nestings.py 300 3 > nestings.txt

A line is a function in JSON: `input` as in programs.py, `tree`, and `value`, the function's result. A tree is
`["body", steps]`, `["jit", f]`, `["grad", f]`, `["vmap", f]`, `["jvp", f]`, `["scan", length, f]` (also of no steps),
`["cond", f, g]` or `["guard", steps, f]`: the steps, which are not finite elsewhere, where `x` is larger than 0.05, else f.
All are functions from an array to one of its shape; `built` says which.
"""
import json
import random
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from programs import Redraw, check, elements, shown

STEPS = {
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "square": lambda x: x * x,
    "centered": lambda x: x - x.mean(),
    "scaled": lambda x: x / (1 + (x * x).sum()),
    "exp": lambda x: jnp.exp(-x * x),
    "softmax": lambda x: x * jax.nn.softmax(x, axis=None),
    "max": lambda x: x + x.max(),
    "cumsum": lambda x: jnp.cumsum(x, axis=-1) if x.ndim else x * 2,
    "flip": lambda x: jnp.flip(x) * x,
    "dot": lambda x: jnp.dot(x.ravel(), x.ravel()) * x,
}
GUARDED = {
    "sqrt": jnp.sqrt,
    "log": jnp.log,
    "inverse": lambda x: 1 / x,
    "power": lambda x: x ** (x * 0.5),
    "scaled log": lambda x: jnp.log(x) * x.sum(),
    "arccosh": lambda x: jnp.arccosh(1 + x),
}


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def tanh(x, by):
    return jnp.tanh(x) * by


@tanh.defjvp
def slope(by, x, dx):
    # Libraries' tanh are off by some roundings; where it is nearly 1, slopes lose most of their digits by that.
    y = tanh(x[0], by)
    return y, dx[0] * (1 - y) * (1 + y)


SCALES = [1.0, 0.5, -0.75, 0.25]


def built(tree, by=1.0):
    """The function; `by`: a factor for results of `tanh`, from which it computes slopes."""
    kind, *rest = tree
    if kind == "body":
        def body(x):
            for name in rest[0]:
                x = STEPS[name](x)
            return x
        return body
    f = built(rest[-1], by)
    if kind == "jit":
        return jax.jit(f)
    if kind == "grad":
        return jax.grad(lambda x: f(x).sum())
    if kind == "vmap":
        return lambda x: jax.vmap(f)(x) if x.ndim else f(x)
    if kind == "jvp":
        def forward(x):
            value, tangent = jax.jvp(f, (x,), (jnp.cos(x),))
            return value + 0.5 * tangent
        return forward
    if kind == "scan":
        def loop(x):
            scales = jnp.array(SCALES[:rest[0]], jnp.float32)
            last, all = lax.scan(lambda c, s: (tanh(f(c), by), c * s), x, scales)
            return last + all.sum(0)
        return loop
    if kind == "guard":
        def steps(x):
            for name in rest[0]:
                x = GUARDED[name](jnp.abs(x) if name != rest[0][0] else x)
            return x
        return lambda x: lax.cond((x > 0.05).all(), steps, f, x)
    g = built(rest[0], by)
    return lambda x: lax.cond(x.sum() > 0.1, g, f, x)


def nodes(tree):
    return 1 + sum(nodes(t) for t in tree[1:] if isinstance(t, list) and isinstance(t[0], str) and t[0] in KINDS)


KINDS = ["jit", "grad", "vmap", "jvp", "scan", "cond", "guard", "body"]


def drawn(dice, depth):
    if depth == 0:
        return ["body", [dice.choice(list(STEPS)) for _ in range(dice.randint(1, 3))]]
    kind = dice.choice(KINDS[:7])
    if kind == "guard":
        return [kind, dice.sample(list(GUARDED), dice.randint(1, 2)), drawn(dice, depth - 1)]
    if kind == "cond":
        return [kind, drawn(dice, depth - 1), drawn(dice, dice.randint(0, min(depth - 1, 1)))]
    return [kind, *([dice.choice([0, 2, 3, 4])] if kind == "scan" else []), drawn(dice, depth - 1)]


def main(total, seed):
    dice, done = random.Random(seed), 0
    while done < total:
        tree = drawn(dice, dice.randint(2, 5))
        text = ["f32", [dice.randint(1, 3) for _ in range(dice.randint(1, 3))], dice.randrange(1, 100000), -1.5, 1.5]
        x = elements(*text)
        f = jax.jit(built(tree))
        value = f(x)
        try:
            if not np.isfinite(value).all() or np.abs(value).max() > 1000 or np.abs(value).max() == 0:
                raise Redraw("out of range")
            for by in (1 + 2**-22, 1 - 2**-22):
                check([value], [f(x * np.float32(by))], 8 + 4 * nodes(tree))
                check([value], [jax.jit(built(tree, by))(x)], 8 + 4 * nodes(tree))
        except Redraw:
            continue
        print(json.dumps({"input": text, "tree": tree, "nodes": nodes(tree), "value": shown(value)}, separators=(",", ":")))
        done += 1


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

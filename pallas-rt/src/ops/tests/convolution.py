"""JAX's answers for convolutions and windowed folds: `python convolution.py > convolution.txt`.

Needs jax[cpu]==0.12.0.1. A line is `name settings | operands | results`: the last operand is the cotangent, and the
results are the value and the gradient of each other operand. Settings are `key=1,2` for lists, `key=text` else.
"""
import random

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

draw = random.Random(12)
seeds = iter(range(1, 100000))


class Operand:
    """Elements by the formula of `element` in reference.py."""

    def __init__(self, *shape):
        seed = next(seeds)
        i = np.arange(int(np.prod(shape)), dtype=np.uint64)
        z = (i * np.uint64(2654435761) + np.uint64(seed * 40503 + 12345)) % np.uint64(2**32)
        z = ((z ^ z >> np.uint64(15)) * np.uint64(2246822519)) % np.uint64(2**32)
        z ^= z >> np.uint64(13)
        self.text = f"f32[{','.join(map(str, shape))}] ~{seed} -2 2"
        self.array = jnp.array(-2 + (z % np.uint64(64)).astype(np.float32) / 16).reshape(shape)


def line(name, settings, operands, f):
    text = " ".join(f"{k}={','.join(map(str, v)) if isinstance(v, (list, tuple)) else v}" for k, v in settings.items())
    arrays = [x.array for x in operands]
    value, back = jax.vjp(f, *arrays)
    if len(settings) > 4 and value.size + sum(x.size for x in arrays) > 400:
        raise ValueError("a smaller case will do")
    cotangent = Operand(*value.shape)
    results = [value, *back(cotangent.array)]

    def shown(x):
        elements = " ".join(f"{float(e):.7g}" for e in jnp.ravel(x))
        return f"f32[{','.join(map(str, x.shape))}] {elements}".strip()
    texts = "; ".join(x.text for x in [*operands, cotangent])
    print(f"{name} {text}".strip(), "|", texts, "|", "; ".join(map(shown, results)))


def f(*shape):
    return Operand(*shape)


def flat(pairs):
    return [x for pair in pairs for x in pair]


def padding(count):
    kind = draw.choice(["valid", "same", "same_lower", "pairs", "pairs", "pairs"])
    if kind == "pairs":
        return [(draw.randint(-1, 3), draw.randint(-1, 2)) for _ in range(count)], None
    return kind.upper(), kind


def options(count):
    pads, kind = padding(count)
    settings = {"padding": kind or flat(pads), "strides": [draw.choice([1, 1, 2, 3]) for _ in range(count)],
                "dilation": [draw.choice([1, 1, 2, 3]) for _ in range(count)],
                "spacing": [draw.choice([1, 1, 2]) for _ in range(count)]}
    return settings, pads


def convolution():
    count = draw.choice([0, 1, 1, 2, 2, 2, 3])
    settings, pads = options(count)
    kind = draw.choice(["plain", "plain", "features", "batches", "depth"])
    groups = draw.choice([2, 3]) if kind != "plain" else 1
    inputs, outputs = (1, draw.choice([1, 2])) if kind == "depth" else (draw.choice([1, 2, 5]), draw.choice([1, 3, 4]))
    batch = draw.choice([1, 2, 3, 0] if draw.random() < 0.2 else [1, 2, 3])
    settings["groups"] = groups if kind in ("features", "depth") else 1
    settings["batch_groups"] = groups if kind == "batches" else 1
    letters = "HWD"[:count]
    names = [list("NC" + letters), list("OI" + letters), list("NC" + letters)]
    style = draw.choice(["first", "last", "mixed"])
    if style == "last":
        names = [list("N" + letters + "C"), list(letters + "IO"), list("N" + letters + "C")]
    elif style == "mixed":
        for name in names:
            draw.shuffle(name)
    names = ["".join(name) for name in names]
    settings["axes"] = names
    extents = [draw.choice([1, 3, 4, 7, 8, 0] if draw.random() < 0.1 else [1, 3, 5, 6, 7]) for _ in range(count)]
    size = [draw.choice([1, 2, 3]) for _ in range(count)]
    lhs = dict(zip("NC" + letters, [batch * settings["batch_groups"], inputs * settings["groups"], *extents]))
    rhs = dict(zip("OI" + letters, [outputs * groups, inputs, *size]))
    operands = [f(*(lhs[c] for c in names[0])), f(*(rhs[c] for c in names[1]))]
    line("lax.conv_general_dilated", settings, operands, lambda a, b: lax.conv_general_dilated(
        a, b, settings["strides"], pads, settings["dilation"], settings["spacing"], tuple(names), settings["groups"],
        settings["batch_groups"]))


def window():
    count = draw.choice([1, 2, 2, 3, 4])
    settings, pads = options(count)
    settings["op"] = draw.choice(["add", "max", "min"])
    settings["window"] = [draw.choice([1, 2, 3]) for _ in range(count)]
    op, start = {"add": (lax.add, 0.0), "max": (lax.max, -jnp.inf), "min": (lax.min, jnp.inf)}[settings["op"]]
    # JAX has no gradient of an extreme on a dilated operand.
    if settings["op"] != "add":
        settings["dilation"] = [1] * count
    if any(p < 0 for p in flat(pads)) and not isinstance(pads, str):
        pads = [(max(a, 0), max(b, 0)) for a, b in pads]
        settings["padding"] = flat(pads)
    shape = [draw.choice([1, 2, 5, 6]) for _ in range(count)]
    line("lax.reduce_window", settings, [f(*shape)], lambda x: lax.reduce_window(
        x, start, op, tuple(settings["window"]), tuple(settings["strides"]), pads,
        tuple(settings["dilation"]), tuple(settings["spacing"])))


def attempt(case):
    """JAX refuses some settings; a case that it refuses is drawn again."""
    while True:
        try:
            return case()
        except (ValueError, TypeError, NotImplementedError):
            continue


for _ in range(90):
    attempt(convolution)
for _ in range(40):
    attempt(window)
for strides in ([1, 1], [2, 3], [3, 2]):
    for kind in ("same", "valid", "pairs"):
        for turned in (False, True):
            pads = kind.upper() if kind != "pairs" else [(1, 2), (0, 1)]
            settings = {"strides": strides, "padding": kind if kind != "pairs" else flat(pads), "turned": int(turned)}
            channels = (3, 2) if turned else (2, 3)
            line("lax.conv_transpose", settings, [f(2, 4, 3, 2), f(2, 3, *channels)],
                 lambda a, b: lax.conv_transpose(a, b, strides, pads, transpose_kernel=turned))
line("lax.conv", {"strides": [2, 1], "padding": "same"}, [f(2, 3, 5, 4), f(4, 3, 3, 2)],
     lambda a, b: lax.conv(a, b, (2, 1), "SAME"))
for n, m in ((5, 3), (3, 6), (4, 4), (7, 1), (6, 4)):
    for mode in ("full", "same", "valid"):
        line("convolve", {"mode": mode}, [f(n), f(m)], lambda a, b: jnp.convolve(a, b, mode))
        line("correlate", {"mode": mode}, [f(n), f(m)], lambda a, b: jnp.correlate(a, b, mode))


def flax_pool(x, start, op, window, strides, pads):
    """flax.linen.pooling.pool of flax 0.10."""
    dims, steps = (1,) + tuple(window) + (1,), (1,) + tuple(strides) + (1,)
    return lax.reduce_window(x, start, op, dims, steps, pads if isinstance(pads, str) else [(0, 0), *pads, (0, 0)])


for window_, strides, pads in (((2, 2), (2, 2), "VALID"), ((3, 2), (1, 2), "SAME"), ((3, 3), (2, 2), [(1, 1), (0, 2)])):
    settings = {"window": list(window_), "strides": list(strides),
                "padding": pads.lower() if isinstance(pads, str) else flat(pads)}
    shape = (2, 5, 6, 3)
    line("flax.linen.max_pool", settings, [f(*shape)],
         lambda x: flax_pool(x, -jnp.inf, lax.max, window_, strides, pads))
    line("flax.linen.min_pool", settings, [f(*shape)],
         lambda x: flax_pool(x, jnp.inf, lax.min, window_, strides, pads))
    for include in (0, 1):
        def mean(x):
            ones = jnp.ones_like(x)
            count = window_[0] * window_[1] if include else flax_pool(ones, 0.0, lax.add, window_, strides, pads)
            return flax_pool(x, 0.0, lax.add, window_, strides, pads) / count
        line("flax.linen.avg_pool", {**settings, "include": include}, [f(*shape)], mean)

"""Random programs of operations on arrays, with JAX's answers.

    python programs.py 1500 7 > programs.txt     # for PALLAS_AGREEMENT=programs.txt
    python programs.py 300 8 programs.txt > more.txt    # operations that programs.txt has seldom come first

sample.txt, which the test runs, has programs of several such files, so that every operation is among them.

Needs jax[cpu]==0.12.0.1. A line is a program in JSON:
- `inputs`: element type, shape, seed and limits of each, elements by the formula of `elements`; instead of a higher limit
  "nan", "ties" or "edges";
- `steps`: the name of an operation, numbers of its operands, and its attributes. Inputs and then the results of the
  steps are numbered in their order;
- `results`: numbers of the values that no step uses; `values`: these values;
- `gradients`: the gradients by the floating-point inputs of the sum of the floating-point results, each times the
  weights of `weights`; or null;
- `batched`: numbers of the inputs that get a first axis of `BATCH` examples; `batch`: results of jax.vmap; or null.

A third of the programs is hard: its inputs have ties, zeros of both signs, or infinities, NaN, and the
extremes of their types, in all element types, and functions get numbers beyond their domains. Other programs are drawn
again if results or gradients are not finite where inputs are; all programs if they change by more than a part of
the bound with which they are compared when each step that rounds is moved by as much as it may round, or when results
that are subnormal are 0, for which XLA takes them in some operations.
"""
import gc
import json
import os
import random
import sys
from collections import Counter

# Programs are compiled once and run on a few elements.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 " + os.environ.get("XLA_FLAGS", "")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

import evaluate
import table
import positions  # noqa: F401, it adds its operations to the table
import composed  # noqa: F401, likewise
import loops  # noqa: F401, likewise

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i32": np.int32, "i8": np.int8,
         "i16": np.int16, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "bool": np.bool_}
NAMES = {np.dtype(t): name for name, t in TYPES.items()}
ROUNDING = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
BATCH = 2
# Ways in which steps that round are moved, each with random signs, in both directions; nothing is moved; subnormal numbers
# are 0.
WAYS = 2
MOVES = [np.eye(WAYS + 1, dtype=np.float32)[k] * sign for k in range(WAYS) for sign in (1, -1)]
NOWHERE, FLUSHED = np.zeros(WAYS + 1, np.float32), np.eye(WAYS + 1, dtype=np.float32)[WAYS]
TIES = [-1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0]
# The largest number and one near 0: in `f16` a subnormal one; those of `f32` and `bf16` JAX takes for 0.
EXTREMES = {"f32": (3.4028234663852886e38, 2.0**-126), "bf16": (3.3895313892515355e38, 2.0**-126), "f16": (65504.0, 6e-8)}


def edges(dtype):
    """Sixteen elements that are hard on operations."""
    if dtype in EXTREMES:
        top, small = EXTREMES[dtype]
        return [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, np.inf, -np.inf, np.nan, small, top, -top, 3.0, -2.5, 1.0, 0.0]
    info = np.iinfo(TYPES[dtype])
    low, high = int(info.min), int(info.max)
    return [low, high, 0, 1, high - 1, low + 1, 2, 3, low, high, 0, 1, high // 2 + 1, 5, 7, 4]


def mixed(seed, n):
    """32 random bits for each of n elements."""
    z = (np.arange(n, dtype=np.uint64) * 2654435761 + seed * 40503 + 12345) % 2**32
    z = ((z ^ z >> 15) * 2246822519) % 2**32
    return z ^ z >> 13


def elements(dtype, shape, seed, low, high):
    """The elements of an input; of floats with `high` = "nan" one third is NaN."""
    z = mixed(seed, int(np.prod(shape)))
    if dtype == "bool":
        x = z & 1
    elif high == "edges":
        x = np.array(edges(dtype))[(z % 16).astype(np.int64)]
    elif high == "ties":
        own = TIES if dtype in ROUNDING else range(8)
        x = np.array(own)[(z % 8).astype(np.int64)]
    elif dtype in ROUNDING:
        top = 2.0 if high == "nan" else high
        x = low + (z % 65536).astype(np.float64) / 65536 * (top - low)
        if high == "nan":
            x = np.where((z >> 16) % 3 == 0, np.nan, x)
    else:
        x = low + (z % np.uint64(high - low + 1)).astype(np.int64)
    return x.astype(np.float32 if dtype in ROUNDING else x.dtype).astype(TYPES[dtype]).reshape(shape)


def name_of(x):
    return NAMES[np.dtype(x.dtype)]


def is_float(x):
    return name_of(x) in ROUNDING


def number(x):
    x = x.item() if hasattr(x, "item") else x
    if isinstance(x, float):
        return str(int(x)) if x == int(x) and abs(x) < 1e9 else f"{x:.9g}"
    return str(int(x))


def shown(x):
    x = np.asarray(x)
    wide = x.astype(np.float64) if name_of(x) in ROUNDING else x
    text = " ".join("nan" if e != e else str(e) if abs(e) == np.inf else number(e) for e in wide.ravel())
    return f"{name_of(x)}[{','.join(map(str, x.shape))}] {text}".strip()


def weights(x):
    """The weights of a result in the sum that is differentiated."""
    return ((np.arange(x.size) * 7 % 11 - 5) / 4).reshape(x.shape).astype(np.float32)


def loss(results):
    floats = [x for x in results if is_float(x)]
    return sum((x.astype(jnp.float32) * weights(x)).sum() for x in floats)


class Redraw(Exception):
    """The program is not fit to be compared."""


# JAX refuses some operands; an operation that it refuses is drawn again.
REFUSED = (Redraw, ValueError, TypeError, NotImplementedError, IndexError)
FAILED = Counter()


TRACED = {}


def traced(name, operands, attributes):
    """A step's jaxpr: its function is run once for operands of these types, and evaluated, differentiated and batched as a jaxpr."""
    key = (name, json.dumps(attributes), *[(x.shape, str(x.dtype)) for x in operands])
    if key not in TRACED:
        def function(*x):
            made = table.ROWS[name].function(list(x), attributes)
            return list(made) if isinstance(made, (list, tuple)) else [made]
        TRACED[key] = jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands])
    return TRACED[key]


def inside(x, limits):
    """True if all elements are within limits."""
    if limits is None:
        return True
    low, high = limits
    high = np.inf if isinstance(high, str) and high != "nan" else high
    y = np.asarray(x).astype(np.float64)
    return bool(((y >= low) & (y <= (np.inf if high == "nan" else high)) | (np.isnan(y) & (high == "nan"))).all())


def moved(x, step, far, cancels):
    """A step's result as if it had been rounded otherwise, in the ways that `far` weighs; the last is that numbers which
    are subnormal are 0."""
    if not is_float(x):
        return x
    signs = [(mixed(step + 1000 * k, x.size) % 2).astype(np.float32).reshape(x.shape) * 2 - 1 for k in range(WAYS)]
    rounding = sum(far[k] * own for k, own in enumerate(signs)) * ROUNDING[name_of(x)]
    wide = x.astype(jnp.float32)
    if name_of(x) != "f16":
        wide = wide * (1 - far[WAYS] * (jnp.abs(lax.stop_gradient(wide)) < 2.0**-126))
    wide = wide * (1 + rounding)
    # Zeros keep their sign.
    return (wide + rounding if cancels else wide).astype(x.dtype)


def steps(program, inputs, far, given):
    """The results of each step, moved as `far` says. Those of some steps are given."""
    values, all = list(inputs), []
    for step, (name, operands, attributes) in enumerate(program["steps"]):
        made = given.get(step)
        if made is None:
            operands = [values[i] for i in operands]
            made = evaluate.replayed(traced(name, operands, attributes), operands)
            row = table.ROWS[name]
            made = made if row.exact else [moved(x, step, far, row.cancels) for x in made]
        values += made
        all.append(made)
    return all


def results_of(program, inputs, made):
    """The values that no step uses, of the results of all steps."""
    values = [*inputs, *(x for made in made for x in made)]
    return [values[i] for i in program["results"]]


def apply(program, inputs, far, given):
    return results_of(program, inputs, steps(program, inputs, far, given))


def without(program, which, given):
    """The given results of those steps that do not depend on some inputs."""
    sizes = [len(made) for made in given]
    found, known = {}, [i not in which for i in range(len(program["inputs"]))]
    for step, (_, operands, _) in enumerate(program["steps"]):
        free = all(known[i] for i in operands)
        if free:
            found[step] = given[step]
        known += [free] * sizes[step]
    return found


def bound(x, depth):
    """The largest difference; mod.rs has the same formula."""
    x = np.asarray(x)
    finite = np.abs(x.astype(np.float64)[np.isfinite(x.astype(np.float64))])
    return ROUNDING[name_of(x)] * (16 + 8 * depth) * (0.1 + finite.max(initial=0.0))


def check(before, after, depth):
    for x, y in zip(before, after, strict=True):
        a, b = np.asarray(x).astype(np.float64), np.asarray(y).astype(np.float64)
        if not is_float(x):
            if (a != b).any():
                raise Redraw("integers depend on rounding")
            continue
        if (np.isfinite(a) != np.isfinite(b)).any():
            raise Redraw("not finite")
        rest = np.isfinite(a)
        if (np.abs(a - b)[rest] > bound(x, depth) / 3).any():
            raise Redraw("ill-conditioned")


class Draw:
    """A program that is being drawn, and its values. Rows of the table ask for operands."""

    def __init__(self, dice, counts):
        self.dice, self.counts = dice, counts
        self.program = {"inputs": [], "steps": []}
        self.inputs, self.values, self.of_steps = [], [], []
        self.hard = dice.random() < 1 / 3
        self.narrow = dice.random() < (0.3 if self.hard else 0.15)
        self.mixed = dice.random() < (0.6 if self.hard else 0.25)
        # Arrays whose elements do not depend on rounding, by their identity.
        self.known = {}

    def shape(self, low=0, high=3, extents=None):
        extents = extents or (1, 2, 3, 3, 4, 5)
        shape = [self.dice.choice(extents) for _ in range(self.dice.randint(low, high))]
        while np.prod(shape) > 60:
            shape[shape.index(max(shape))] -= 1
        if shape and 0 not in extents and self.dice.random() < 0.02:
            shape[self.dice.randrange(len(shape))] = self.dice.choice([0, 1])
        return shape

    def new(self, kind, shape, low=-2, high=2):
        """A new input."""
        dice = self.dice
        dtype = {"b": "bool", "i32": "i32", "f32": "f32", "u8": "u8"}.get(kind)
        if kind == "f":
            dtype = dice.choice(["f32", "bf16", "f16"]) if self.narrow else "f32"
        elif kind == "i":
            dtype = dice.choice(["i32", "i8", "i16", "u8", "u16", "u32"]) if self.mixed else "i32"
            low, high = (0 if dtype[0] == "u" else -5, 6) if (low, high) == (-2, 2) else (low, high)
            if dtype[0] == "u" and low < 0:
                dtype = "i32"
        if self.hard and (low, high) in ((-2, 2), (-5, 6), (0, 6)) and dice.random() < 0.8:
            high = dice.choice(["ties", "edges"])
        seed = dice.randrange(1, 100000)
        text = [dtype, list(shape), seed, low, high]
        self.program["inputs"].append(text)
        self.inputs.append(len(self.values))
        self.values.append(elements(*text))
        self.known[id(self.values[-1])] = self.values[-1]
        return len(self.values) - 1

    def pick(self, kind="f", low=0, high=4, fits=lambda x: True, shape=None, fresh=0.2, within=None):
        """A value of a kind: `f` floats, `f32`, `i` integers, `i32`, `b` truth values, `n` numbers, `a` any."""
        if self.hard and kind in ("f", "f32") and within and within[1] != "nan" and self.dice.random() < 0.4:
            within = None  # Beyond the function's domain.

        def fit(i):
            x = self.values[i]
            if not low <= x.ndim <= high or not of_kind(x, kind):
                return False
            return (shape is None or list(x.shape) == list(shape)) and inside(x, within) and fits(x)

        found = [i for i in range(len(self.values)) if fit(i)]
        if found and self.dice.random() >= fresh:
            return found[-1] if self.dice.random() < 0.6 else self.dice.choice(found)
        kind = {"n": self.dice.choice("fffi"), "a": self.dice.choice("ffib")}.get(kind, kind)
        for _ in range(30):
            own = self.shape(low or self.dice.choice([0, 1, 1, 1]), min(high, 3)) if shape is None else shape
            i = self.new(kind, own, *(within or (-2, 2)))
            if fits(self.values[i]):
                return i
            self.program["inputs"].pop()
            self.inputs.pop()
            self.values.pop()
        raise Redraw("no such value")

    def finite(self, kind, fits=lambda x: True, **limits):
        """A value of finite numbers."""
        kept, self.hard = self.hard, False
        try:
            return self.pick(kind, fits=lambda x: fits(x) and is_finite([x]), **limits)
        finally:
            self.hard = kept

    def apart(self, x, by=1e-3):
        """True if no two elements are nearly equal, so that their order does not depend on rounding, or all are known."""
        if id(x) in self.known:
            return True
        y = np.sort(np.asarray(x).astype(np.float64).ravel())
        return not is_float(x) or (name_of(x) == "f32" and bool((np.diff(y) > by).all()))

    def append(self, name, operands, attributes):
        """Appends a step and returns the number of its last result."""
        own = [self.values[i] for i in operands]
        made = evaluate.values(traced(name, own, attributes), own)
        for x in made:
            self.is_sane(x, own)
        if table.ROWS[name].exact and all(id(x) in self.known for x in own):
            self.known.update((id(x), x) for x in made)
        self.program["steps"].append([name, list(operands), attributes])
        self.values += made
        return len(self.values) - 1

    def partner(self, i, kind="n", within=None):
        """A value that broadcasts with another one."""
        shape = self.values[i].shape

        def fits(x):
            if not inside(x, within):
                return False
            try:
                return np.prod(np.broadcast_shapes(shape, x.shape), initial=1) <= 200 and promotes(x, self.values[i])
            except ValueError:
                return False
        own = list(shape)[self.dice.randrange(len(shape) + 1):] if self.dice.random() < 0.3 else list(shape)
        own = [1 if self.dice.random() < 0.15 else n for n in own]
        found = [k for k, x in enumerate(self.values) if k != i and of_kind(x, kind) and fits(x)]
        if found and self.dice.random() < 0.6:
            return self.dice.choice(found[-3:])
        limits = within or (-2, 2)
        if kind == "n" and is_float(self.values[i]) or kind == "f":
            return self.new("f", own, *limits)
        if not promotes_new(self.values[i]):
            raise Redraw("u32 by others")
        i = self.new({"n": "i", "a": "i"}.get(kind, kind), own, *limits)
        if name_of(self.values[i]) == "u32": raise Redraw("u32 by others")
        return i

    def step(self, name):
        """Appends a step."""
        row = table.ROWS[name]
        lists = [self.program["inputs"], self.inputs, self.values, self.program["steps"]]
        kept = [len(x) for x in lists]
        try:
            self.append(name, *row.draw(self))
        except REFUSED as why:
            FAILED[f"{name}: {type(why).__name__} {str(why)[:60]}"] += 1
            for x, n in zip(lists, kept):
                del x[n:]

    def is_sane(self, x, operands):
        if np.dtype(x.dtype) not in NAMES or x.size > 200: raise Redraw("large")
        if is_float(x) and not self.hard:
            y = np.asarray(x).astype(np.float64)
            had = any(is_float(o) and not np.isfinite(np.asarray(o).astype(np.float64)).all() for o in operands)
            if (np.abs(y[np.isfinite(y)]) > 100).any() or (not np.isfinite(y).all() and not had):
                raise Redraw("out of range")


def of_kind(x, kind):
    name = name_of(x)
    return {"f": name in ROUNDING, "f32": name == "f32", "b": name == "bool", "i32": name == "i32", "u8": name == "u8",
            "n": name != "bool", "a": True, "i": name not in ROUNDING and name != "bool"}[kind]


def promotes(x, y):
    """True if the common type has at most 32 bits where 64-bit types exist."""
    names = {name_of(x), name_of(y)}
    return not ("u32" in names and names & {"i8", "i16", "i32"})


def promotes_new(x):
    return name_of(x) != "u32"


def drawn(seed, counts, total):
    """A program with answers."""
    dice = random.Random(seed)
    draw = Draw(dice, counts)
    names = sorted(table.ROWS, key=lambda name: (counts[name] + dice.random() * 4))
    length = dice.randint(5, 12)
    tried = 0
    while len(draw.program["steps"]) < length and tried < 40:
        tried += 1
        # Mostly the operations that had the fewest steps so far.
        name = dice.choice(names[:16] if dice.random() < 0.92 else names)
        draw.step(name)
    program = draw.program
    numbered(draw)
    used = {i for _, operands, _ in program["steps"] for i in operands}
    first = len(program["inputs"])
    program["results"] = [i for i in range(first, len(draw.values)) if i not in used]
    depth = len(program["steps"])
    inputs = draw.values[:first]
    made = values(program, inputs, depth)
    results = results_of(program, inputs, made[0])
    program["values"] = [shown(x) for x in results]
    program["gradients"] = gradients(program, inputs, made, depth, draw.hard)
    program["batched"], program["batch"] = batch(program, inputs, made, depth, dice)
    return program


# Results must not differ where steps are moved, and where numbers that are subnormal are zeros.
VARIANTS = [NOWHERE, *MOVES, FLUSHED]


def values(program, inputs, depth):
    """The results of each step, for each variant."""
    function = jax.jit(lambda x, far: steps(program, x, far, {}))
    made = [function(inputs, far) for far in VARIANTS]
    for other in made[1:]:
        check(results_of(program, inputs, made[0]), results_of(program, inputs, other), depth)
    return made


def answers(function, args, given, depth):
    """The results of a function of arrays, of whether steps are moved, and of the given results of steps."""
    function = jax.jit(function)
    found, *others = [function(args, far, known) for far, known in zip(VARIANTS, given, strict=True)]
    for other in others:
        check(found, other, depth)
    return found


def numbered(draw):
    """Numbers inputs before steps."""
    order = draw.inputs + [i for i in range(len(draw.values)) if i not in draw.inputs]
    place = {old: new for new, old in enumerate(order)}
    draw.values = [draw.values[i] for i in order]
    for step in draw.program["steps"]:
        step[1] = [place[i] for i in step[1]]


def is_finite(arrays):
    return all(np.isfinite(np.asarray(x).astype(np.float64)).all() for x in arrays if is_float(x))


def gradients(program, inputs, made, depth, hard):
    results = results_of(program, inputs, made[0])
    which = [i for i, x in enumerate(inputs) if is_float(x)]
    if not which or not any(is_float(x) for x in results) or not (hard or is_finite(results)):
        return None

    def function(floats, far, given):
        all = list(inputs)
        for i, x in zip(which, floats):
            all[i] = x
        return loss(apply(program, all, far, given))

    given = [without(program, which, x) for x in made]
    try:
        found = answers(jax.grad(function), [inputs[i] for i in which], given, depth + 8)
    except (NotImplementedError, ValueError):
        return None
    return [shown(g) for g in found] if hard or is_finite(found) else None


def batch(program, inputs, made, depth, dice):
    which = [i for i in range(len(inputs)) if dice.random() < 0.7]
    if not which:
        return None, None
    stacked = [jnp.array(elements(text[0], [BATCH] + text[1], *text[2:])) if i in which else inputs[i]
               for i, text in enumerate(program["inputs"])]
    axes = [0 if i in which else None for i in range(len(inputs))]
    function = jax.vmap(lambda x, far, given: apply(program, x, far, given), (axes, None, None))
    found = answers(function, stacked, [without(program, which, x) for x in made], depth)
    return which, [shown(x) for x in found]


def main(total, seed, before):
    counts, reasons, done = Counter(), Counter(), 0
    for line in (line for path in before for line in open(path)):
        counts.update(name for name, _, _ in json.loads(line)["steps"])
    k = seed * 1000003
    # Most of what JAX makes for a program is free of cycles.
    gc.set_threshold(200_000, 20, 20)
    while done < total:
        k += 1
        try:
            program = drawn(k, counts, total)
        except REFUSED as why:
            reasons[str(why)[:40]] += 1
            continue
        counts.update(name for name, _, _ in program["steps"])
        print(json.dumps(program, separators=(",", ":")))
        done += 1
        if done % 50 == 0:
            few = sorted(table.ROWS, key=lambda name: counts[name])[:4]
            fewest = {name: counts[name] for name in few}
            common = FAILED.most_common(8) if done % 500 == 0 else ""
            print(f"{done} programs; {common} drawn again: {dict(reasons)}; fewest: {fewest}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

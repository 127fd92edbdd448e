"""Operations of the random programs that move elements: shapes, positions, order, windows."""
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from table import along, empty, named, of, one, row, two, unary, unless, with_like

EXACT = dict(exact=True)


def pairs(flat):
    return [tuple(flat[i:i + 2]) for i in range(0, len(flat), 2)]


def shaped(*attributes, kind="a", low=1, high=3, **limits):
    """A value, and attributes that depend on the dice and on its shape."""
    def draw(d):
        x = d.pick(kind, low=low, high=high, **limits)
        return [x], [f(d, list(d.values[x].shape)) for f in attributes]
    return draw


def axis(d, shape):
    return d.dice.randrange(-len(shape), len(shape))


def number(*choices):
    return lambda d, shape: d.dice.choice(choices)


def factors(d, shape):
    n = int(np.prod(shape))
    a = d.dice.choice([k for k in range(1, n + 1) if n % k == 0] or [1])
    return d.dice.choice([[a, n // a], [n // a, a], [n]] if n else [[0]])


def stretched(d, shape):
    return d.shape(0, 1, (2, 3)) + [d.dice.randint(2, 3) if n == 1 else n for n in shape]


def some_axes(d, shape):
    return None if d.dice.random() < 0.3 else d.dice.sample(range(len(shape)), d.dice.randint(1, min(2, len(shape))))


def two_axes(d, shape):
    return d.dice.sample(range(len(shape)), 2)


row("reshape", shaped(factors), lambda x, a: x[0].reshape(a[0]), **EXACT)
unary("ravel atleast_1d atleast_2d atleast_3d", one("a", high=3), **EXACT)
row("transpose", shaped(lambda d, s: d.dice.sample(range(len(s)), len(s))), lambda x, a: x[0].transpose(a[0]), **EXACT)
unary("matrix_transpose fliplr", one("a", low=2, high=3), **EXACT)
unary("flipud", one("a", low=1, high=3), **EXACT)
row("swapaxes", shaped(axis, axis), lambda x, a: jnp.swapaxes(x[0], *a), **EXACT)
row("moveaxis", shaped(axis, axis), lambda x, a: jnp.moveaxis(x[0], *a), **EXACT)
row("expand_dims", shaped(axis), lambda x, a: jnp.expand_dims(x[0], a[0]), **EXACT)
row("squeeze", one("a", high=3), lambda x, a: jnp.squeeze(x[0]), **EXACT)
row("broadcast_to", shaped(stretched), lambda x, a: jnp.broadcast_to(x[0], a[0]), **EXACT)
row("flip", shaped(some_axes), lambda x, a: jnp.flip(x[0], None if a[0] is None else tuple(a[0])), **EXACT)
row("roll", shaped(number(1, 2, -7, 0), axis), lambda x, a: jnp.roll(x[0], *a), **EXACT)
row("rot90", shaped(number(1, 2, 3, -1), two_axes, low=2), lambda x, a: jnp.rot90(x[0], a[0], tuple(a[1])), **EXACT)
row("repeat", shaped(number(1, 2, 3), axis), lambda x, a: jnp.repeat(x[0], a[0], axis=a[1]), **EXACT)
row("tile", shaped(lambda d, s: [d.dice.choice([1, 2, 2, 3]) for _ in range(d.dice.randint(1, 3))]),
    lambda x, a: jnp.tile(x[0], a[0]), **EXACT)
row("pad", shaped(lambda d, s: [[d.dice.randint(0, 2), d.dice.randint(0, 2)] for _ in s], number(0, 3), kind="n"),
    lambda x, a: jnp.pad(x[0], a[0], constant_values=a[1]), **EXACT)


def together(*attributes, along=None, high=3, low=1):
    """Two or three values of one shape, but for an axis."""
    def draw(d):
        x = d.pick("n", low=low, high=high)
        if d.values[x].dtype == np.uint32:
            raise ValueError("u32 by others")
        shape = list(d.values[x].shape)
        own = along(d, shape) if along else None
        all = [x]
        for _ in range(d.dice.randint(1, 2)):
            other = list(shape)
            if along:
                other[own] = d.dice.randint(1, 3)
            kind = "f" if d.values[x].dtype.kind in "fV" else "i32"
            all.append(d.pick(kind, shape=other, fresh=0.3))
        return all, [own] if along else [f(d, shape) for f in attributes]
    return draw


row("concatenate", together(along=axis), lambda x, a: jnp.concatenate(x, a[0]), **EXACT)
row("stack", together(axis), lambda x, a: jnp.stack(x, a[0]), **EXACT)
for name in "hstack vstack dstack column_stack".split():
    row(name, together(high=2), lambda x, a, f=named(name): f(x), **EXACT)
row("append", together(along=axis), lambda x, a: jnp.append(x[0], x[1], axis=a[0]), **EXACT)
row("insert", together(number(0, 1, -1), number(0)), lambda x, a: jnp.insert(x[0], a[0], x[1], axis=a[1]) if
    x[1].shape[0] == 1 or x[0].ndim == 1 and x[1].size == 1 else jnp.insert(x[0], a[0], x[1][0], axis=a[1]), **EXACT)
row("delete", shaped(number(0, -1), axis), lambda x, a: jnp.delete(x[0], a[0], axis=a[1]), **EXACT)
row("broadcast_arrays", two("a"), lambda x, a: jnp.broadcast_arrays(*x), **EXACT)
row("split", shaped(lambda d, s: [d.dice.randint(0, 2), d.dice.randint(2, 4)], axis),
    lambda x, a: jnp.split(x[0], a[0], axis=a[1]), **EXACT)
row("array_split", shaped(number(1, 2, 3), axis), lambda x, a: jnp.array_split(x[0], a[0], axis=a[1]), **EXACT)
for name, least in [("hsplit", 1), ("vsplit", 2), ("dsplit", 3)]:
    row(name, shaped(number(1, 2, 3), low=least), lambda x, a, f=named(name): f(x[0], a[0]), **EXACT)
row("unstack", shaped(axis), lambda x, a: jnp.unstack(x[0], axis=a[0]), **EXACT)


# Ranges: [start, stop, step] with null, or a position.
def ranges(d, shape):
    def item(n):
        if n and d.dice.random() < 0.2:
            return d.dice.randrange(-n, n)
        ends = [None, 0, 1, -1, 2, n, -n - 1]
        return [d.dice.choice(ends), d.dice.choice(ends), d.dice.choice([None, 1, 2, -1, -2])]
    return [item(n) for n in shape[:d.dice.randint(1, len(shape))]]


def items(all):
    return tuple(item if isinstance(item, int) else slice(*item) for item in all)


row("x[a:b:c]", shaped(ranges), lambda x, a: x[0][items(a[0])], **EXACT)
row("x[a:b, c]", shaped(number(0, 1), number(2, 3), number(0, -1), low=2), lambda x, a: x[0][a[0]:a[1], a[2]], **EXACT)
row("x[a:-b]", shaped(number(0, 1), number(-1, -2)), lambda x, a: x[0][a[0]:a[1]], **EXACT)


def at_positions(count, *attributes, outside=True, update=False, low=2, high=3, kind="n", shape_of=None):
    """A value, i32 positions along its first axis, and elements of the shape of that part."""
    def draw(d):
        x = d.pick(kind, low=low, high=high)
        shape = list(d.values[x].shape)
        n = shape[0]
        own = [d.dice.randint(1, 3)] if count is None else count
        limits = (-n - 1, n + 1) if outside and d.dice.random() < 0.3 else (-n, max(n - 1, 0))
        at = d.new("i32", own, *limits)
        all = [x, at]
        if update:
            kind_of = "f32" if d.values[x].dtype.kind in "fV" else "b" if d.values[x].dtype == bool else "i"
            all.append(d.pick(kind_of, shape=own + shape[1:] if d.dice.random() < 0.8 else [], fresh=0.5))
        return all, [f(d, shape) for f in attributes]
    return draw


row("take", at_positions(None, axis0 := number(0), number("fill", "clip", "wrap"), low=1),
    lambda x, a: jnp.take(x[0], x[1], axis=a[0], mode=a[1]), **EXACT)
# Gradients of positions outside are a line of the numerics page.
row("x[i, :, j]", at_positions(None, number("i", "::-1,i", "i,0", "None,i"), outside=False, low=2),
    lambda x, a: {"i": lambda x, i: x[i], "::-1,i": lambda x, i: x[::-1, i], "i,0": lambda x, i: x[i, 0],
                  "None,i": lambda x, i: x[None, i]}[a[0]](x[0], x[1]), **EXACT)
row("x.at[i].get", at_positions(None, low=1), lambda x, a: x[0].at[x[1]].get(mode="fill"), **EXACT)
# `float-rounding`
rounded = lambda x, all, a: all[2].dtype.itemsize > x.dtype.itemsize
for name in "set add multiply min max".split():
    update = at_positions(None, number("i", "i", "1:", "::2"), update=True, low=1)
    row(f"x.at[i].{name}", unless(rounded, update) if name == "multiply" else update,
        lambda x, a, g=name: getattr(
            {"i": x[0].at[x[1]], "1:": x[0].at[1:], "::2": x[0].at[::2]}[a[0]], g)(
            x[2] if a[0] == "i" else x[2].ravel()[0]).astype(x[0].dtype), exact=name not in ("add", "multiply"))


def beside(update):
    def draw(d):
        x = d.pick("n", low=1, high=3)
        shape = list(d.values[x].shape)
        own = d.dice.randrange(len(shape))
        n = shape[own]
        shape[own] = d.dice.randint(1, 3) if not update else 1
        all = [x, d.new("i32", shape, -n, max(n - 1, 0))]
        if update:
            all.append(d.pick("f32" if d.values[x].dtype.kind in "fV" else "i32", shape=shape))
        return all, [own]
    return draw


row("take_along_axis", beside(False), lambda x, a: jnp.take_along_axis(x[0], x[1], a[0]), **EXACT)
row("put_along_axis", beside(True), lambda x, a: jnp.put_along_axis(x[0], x[1], x[2].astype(x[0].dtype), a[0], inplace=False),
    **EXACT)


def flat_positions(d):
    x = d.pick("f32", low=1)
    n = d.values[x].size
    at = d.new("i32", [2], 0, max(n // 2 - 1, 0))
    return [x, at, d.pick("f32", shape=[])], []


row("put", flat_positions, lambda x, a: jnp.put(x[0], x[1], x[2], inplace=False), **EXACT)
row("fill_diagonal", lambda d: ([d.pick("f32", low=2, high=2), d.pick("f32", shape=[])], []),
    lambda x, a: jnp.fill_diagonal(x[0], x[1], inplace=False), **EXACT)
for name in "nonzero argwhere".split():
    row(name, unless(empty, shaped(number(1, 3, 5), number(-1, 0), kind="b")),
        lambda x, a, f=named(name): f(x[0], size=a[0], fill_value=a[1]), **EXACT)
row("flatnonzero", unless(empty, shaped(number(1, 3, 5), number(-1, 0), kind="b")),
    lambda x, a: jnp.flatnonzero(x[0], size=a[0], fill_value=a[1]), **EXACT)


def masked(of_axis):
    def draw(d):
        x = d.pick("n", low=1, high=3)
        shape = list(d.values[x].shape)
        own = d.dice.randrange(len(shape))
        mask = d.pick("b", shape=[shape[own]] if of_axis else shape)
        return [x, mask], ([own] if of_axis else []) + [d.dice.randint(1, 4)]
    return draw


row("compress", masked(True), lambda x, a: jnp.compress(x[1], x[0], axis=a[0], size=a[1], fill_value=0), **EXACT)
row("extract", masked(False), lambda x, a: jnp.extract(x[1], x[0], size=a[0], fill_value=0), **EXACT)
row("bincount", shaped(number(2, 4), kind="i32", high=1), lambda x, a: jnp.bincount(x[0], length=a[0]), **EXACT)


def chosen(d):
    x = d.pick("f32", low=1, high=2)
    at = d.new("i32", d.values[x].shape, -1, 2)
    return [at, x, d.pick("f32", shape=d.values[x].shape)], [d.dice.choice(["clip", "wrap"])]


row("choose", chosen, lambda x, a: jnp.choose(x[0], x[1:], mode=a[0]), **EXACT)
row("select", lambda d: ([d.pick("b", shape=(s := d.shape(1, 2))), d.pick("b", shape=s, fresh=0.6), d.pick("f32", shape=s),
                          d.pick("f32", shape=s)], [d.dice.choice([0, 7])]),
    lambda x, a: jnp.select(x[:2], x[2:], a[0]), **EXACT)
bounded = lambda x: jnp.where(jnp.isposinf(x), 9.0, jnp.where(jnp.isneginf(x), -9.0, x))
for name in "sum prod max min".split():
    row(f"ops.segment_{name}", lambda d: ([x := d.pick("f32", low=1, high=2), d.new("i32", [d.values[x].shape[0]], 0, 2)], [3]),
        lambda x, a, f=named(f"ops.segment_{name}"): bounded(f(x[0], x[1], a[0])))

# Triangles and diagonals.
for name in "tril triu".split():
    row(name, shaped(number(0, 1, -1), low=2), lambda x, a, f=named(name): f(x[0], a[0]), **EXACT)
row("diagonal", shaped(number(0, 1, -1), two_axes, low=2), lambda x, a: jnp.diagonal(x[0], a[0], *a[1]), **EXACT)
row("trace", shaped(number(0, 1, -1), two_axes, low=2, kind="n"), lambda x, a: jnp.trace(x[0], a[0], *a[1]))
row("diag", shaped(number(0, 1, -1), high=2), lambda x, a: jnp.diag(x[0], a[0]), **EXACT)
row("diagflat", shaped(number(0, 1, -1), high=2), lambda x, a: jnp.diagflat(x[0], a[0]), **EXACT)
row("vander", shaped(number(1, 3), high=1, kind="f"), lambda x, a: jnp.vander(x[0], a[0]))
row("meshgrid", lambda d: ([d.pick("n", low=1, high=1), d.pick("n", low=1, high=1)], [d.dice.choice(["xy", "ij"])]),
    lambda x, a: jnp.meshgrid(*x, indexing=a[0]), **EXACT)
row("nn.glu", shaped(axis, kind="f", fits=lambda x: all(n % 2 == 0 for n in x.shape), fresh=0.5),
    lambda x, a: jax.nn.glu(x[0], a[0]))


# Order.
def ordered(*attributes, kind="n", low=1, high=3, size=None):
    def draw(d):
        fits = lambda x: d.apart(x) and x.size > 0
        x = d.pick(kind, low=low, high=high, fits=fits, **({} if size is None else {"shape": [size]}))
        return [x], [f(d, list(d.values[x].shape)) for f in attributes]
    return draw


flag = number(True, False)
row("sort", ordered(axis, flag), lambda x, a: jnp.sort(x[0], axis=a[0], descending=a[1]), **EXACT)
row("argsort", ordered(axis, flag), lambda x, a: jnp.argsort(x[0], axis=a[0], descending=a[1]), **EXACT)
row("top_k", ordered(lambda d, s: d.dice.randint(1, s[-1])), lambda x, a: lax.top_k(x[0], a[0]), **EXACT)
row("partition", ordered(number(0, -1)), lambda x, a: jnp.partition(x[0], a[0]), **EXACT)
row("argpartition", ordered(number(0, -1), kind="f32"), lambda x, a: jnp.argpartition(x[0], a[0]), **EXACT)


def sorted_together(d):
    x = ordered()(d)[0][0]
    return [x, d.pick("f32", shape=d.values[x].shape)], [axis(d, d.values[x].shape)]


row("lax.sort", sorted_together, lambda x, a: lax.sort(x, num_keys=1, dimension=a[0] % x[0].ndim), **EXACT)
row("lexsort", sorted_together, lambda x, a: jnp.lexsort([x[1].round(), x[0]], axis=a[0]), **EXACT)


def into_sorted(count, *attributes, least=1, nan=True):
    """A sorted array of one axis; with count 2 another value of its length."""
    def draw(d):
        pick = d.pick if nan else d.finite
        table = pick("f32", low=1, high=1, fits=lambda x: d.apart(x) and x.size >= least)
        table = d.append("sort", [table], [0, False])
        more = [d.pick("f32", shape=d.values[table].shape)] * (count - 1)
        return [d.pick("f32", low=1), table, *more], [f(d, []) for f in attributes]
    return draw


row("searchsorted", into_sorted(1, number("left", "right")), lambda x, a: jnp.searchsorted(x[1], x[0], side=a[0]), **EXACT)
# Edges with NaN are not sorted in one of the two directions.
row("digitize", into_sorted(1, flag, nan=False), lambda x, a: jnp.digitize(x[0], x[1], right=a[0]), **EXACT)
# A histogram of one edge is refused here, and empty in JAX.
row("histogram", into_sorted(1, least=2), lambda x, a: jnp.histogram(x[0], x[1])[0], **EXACT)
row("interp", into_sorted(2), lambda x, a: jnp.interp(*x))
sets = lambda d: ([d.pick("i32", low=1, high=2), d.pick("i32", low=1, high=2)], [d.dice.randint(1, 6)])
row("isin", sets, lambda x, a: jnp.isin(*x), **EXACT)
row("unique", lambda d: (sets(d)[0][:1], [4]), lambda x, a: jnp.unique(x[0], size=a[0], fill_value=-9), **EXACT)
for name in "union1d intersect1d setdiff1d setxor1d".split():
    row(name, sets, lambda x, a, f=named(name): f(*x, size=a[0], fill_value=-9), **EXACT)


# Windows: strides, padding (a word, or pairs), dilations.
def window(rank):
    def draw(d):
        dice = d.dice
        list_of = lambda *choices: [dice.choice(choices) for _ in range(rank)]
        pads = dice.choice(["VALID", "SAME", None])
        pads = pads or [[dice.randint(0, 1), dice.randint(0, 2)] for _ in range(rank)]
        return [list_of(1, 1, 2), pads, list_of(1, 1, 2), list_of(1, 1, 2)]
    return draw


# Infinities beside padding are a line of the numerics page.
def conv(d):
    rank, groups, batches = d.dice.choice([1, 2]), d.dice.choice([1, 1, 2]), d.dice.choice([1, 1, 2])
    batches = 1 if groups == 2 else batches
    lhs = [d.dice.randint(1, 2) * batches, d.dice.randint(1, 2) * groups] + [d.dice.randint(3, 4) for _ in range(rank)]
    rhs = [d.dice.randint(1, 2) * groups * batches, lhs[1] // groups] + [d.dice.randint(1, 3) for _ in range(rank)]
    return [d.finite("f32", shape=lhs), d.finite("f32", shape=rhs)], [*window(rank)(d), groups, batches]


row("lax.conv_general_dilated", conv, lambda x, a: lax.conv_general_dilated(
    x[0], x[1], a[0], a[1], a[2], a[3], None, a[4], a[5]))
plain = lambda d: (lambda made: (made[0], made[1][:1] + [d.dice.choice(["VALID", "SAME"])]))(conv(d))
row("lax.conv", plain, lambda x, a: lax.conv(x[0], x[1], a[0], a[1]))
turned = lambda d: ([d.finite("f32", shape=[1, 3, 2]), d.finite("f32", shape=[2, 2, 3])],
                    [[d.dice.choice([1, 2, 3])], d.dice.choice(["VALID", "SAME"])])
row("lax.conv_transpose", turned, lambda x, a: lax.conv_transpose(x[0], x[1], a[0], a[1]))
FOLDS = {"add": (lax.add, 0.0), "max": (lax.max, -jnp.inf), "min": (lax.min, jnp.inf)}


def folded(d):
    x = d.pick("f32", low=1, high=3)
    shape = d.values[x].shape
    strides, pads, _, spacing = window(len(shape))(d)
    if not isinstance(pads, str):
        pads = [[0, 0] for _ in pads]
    return [x], [d.dice.choice(list(FOLDS)), [d.dice.randint(1, min(2, n + 1)) for n in shape], strides, pads, spacing]


row("lax.reduce_window", folded, lambda x, a: lax.reduce_window(
    x[0], FOLDS[a[0]][1], FOLDS[a[0]][0], tuple(a[1]), tuple(a[2]), a[3], None, tuple(a[4])))


def pooled(name, by=None):
    """The pools of flax.linen, with features last."""
    def function(x, a):
        f, start = FOLDS[name]
        own, strides = (1, *a[0], 1), (1, *a[1], 1)
        y = lax.reduce_window(x[0], start, f, own, strides, a[2])
        if name != "add":
            return y
        ones = jnp.ones_like(x[0])
        return y / (np.prod(a[0]) if a[3] else lax.reduce_window(ones, 0.0, lax.add, own, strides, a[2]))
    return function


pool = lambda d: ([d.pick("f32", shape=[d.dice.randint(1, 2), d.dice.randint(2, 4), d.dice.randint(1, 3)])],
                  [[d.dice.randint(1, 2)], [d.dice.randint(1, 2)], d.dice.choice(["VALID", "SAME"]), d.dice.random() < 0.5])
for name, fold in [("max", "max"), ("min", "min"), ("avg", "add")]:
    row(f"flax.linen.{name}_pool", pool, pooled(fold))
for name in "convolve correlate".split():
    row(name, lambda d: ([d.finite("f32", low=1, high=1), d.finite("f32", low=1, high=1)], [d.dice.choice(["full", "same", "valid"])]),
        lambda x, a, f=named(name): f(x[0], x[1], mode=a[0]))

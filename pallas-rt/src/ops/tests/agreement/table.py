"""The operations of the random programs: how operands and attributes are drawn, and JAX's function. This file has the
elementwise operations, reductions, products and new arrays; positions.py has the others."""
import jax
import jax.numpy as jnp
import numpy as np

ROWS = {}
TYPES = {"f32": jnp.float32, "i32": jnp.int32, "bf16": jnp.bfloat16, "f16": jnp.float16, "bool": jnp.bool_,
         "i8": jnp.int8, "u8": jnp.uint8, "u32": jnp.uint32}


class Row:
    """`exact` for operations that do not round, `cancels` for those whose zeros are differences of numbers near 1."""

    def __init__(self, draw, function, exact=False, cancels=False):
        self.draw, self.function, self.exact, self.cancels = draw, function, exact, cancels


def row(name, draw, function, **flags):
    assert name not in ROWS, name
    ROWS[name] = Row(draw, function, **flags)


def named(name):
    for prefix, space in [("nn.", jax.nn), ("lax.", jax.lax), ("scipy.special.", jax.scipy.special),
                          ("linalg.", jnp.linalg), ("ops.", jax.ops), ("random.", jax.random)]:
        if name.startswith(prefix):
            return getattr(space, name.removeprefix(prefix))
    return getattr(jnp, name)


def one(kind="f", **limits):
    return lambda d: ([d.pick(kind, **limits)], [])


def two(kind="n", other=None, within=None, first=None):
    def draw(d):
        x = d.pick(kind, within=first)
        return [x, d.partner(x, other or kind, within)], []
    return draw


def unless(named, draw):
    """Draws what a line of the numerics page does not name: there answers differ by design, and it has a test."""
    def drawn(d):
        operands, attributes = draw(d)
        if named(np.asarray(d.values[operands[0]]), [np.asarray(d.values[i]) for i in operands], attributes):
            raise ValueError("named by the numerics page")
        return operands, attributes
    return drawn


# `gradient-infinite`, `gradient-nan`, `gradient-spread`, `fold-area`, `nan-sign`, `empty-position`, `fold-formula`.
infinite = lambda x, all, a: any(np.isinf(x.astype(np.float32)).any() for x in all)
area = lambda x, all, a: x.shape[a[-1]] == 1 or infinite(x, all, a)
any_nan = lambda x, *_: bool(np.isnan(x.astype(np.float32)).any())
empty = lambda x, *_: x.size == 0
overflows = lambda x, *_: x.dtype == np.float16 and bool((np.abs(x.astype(np.float32)) > 255).any())
equal = lambda axis: lambda x, all, a: bool((np.ptp(x.astype(np.float32), axis=axis(a)) == 0).any())

def unary(names, draw, **flags):
    for name in names.split():
        row(name, draw, lambda x, a, f=named(name): f(x[0]), **flags)


def binary(names, draw, **flags):
    for name in names.split():
        row(name, draw, lambda x, a, f=named(name): f(x[0], x[1]), **flags)


POSITIVE = (0.25, 4.25)
unary("sin cos exp exp2 expm1 tanh sinh cosh arctan arcsinh sinc radians scipy.special.erf scipy.special.erfc "
      "nn.sigmoid nn.silu nn.softplus nn.soft_sign nn.log_sigmoid nn.mish nn.selu nn.gelu nn.tanh nn.sparse_sigmoid "
      "nn.hard_sigmoid nn.hard_silu nn.sparse_plus nn.squareplus", one())
unary("degrees", one(within=(-1, 1)))
unary("tan", one(within=(-1.25, 1.25)))
unary("square", one("n", within=(-8, 8)))
unary("cbrt log log2 log10 sqrt reciprocal lax.rsqrt nn.log1mexp", one(within=POSITIVE))
unary("arcsin arccos arctanh", one(within=(-0.875, 0.875)))
unary("arccosh", one(within=(1.25, 9)))
unary("log1p", one(within=(-0.5, 3)))
unary("abs negative sign floor ceil trunc positive", one("n"), exact=True)
unary("nn.relu nn.relu6", unless(any_nan, one()), exact=True)
unary("rint fabs nn.hard_tanh lax.stop_gradient round", one(), exact=True)
unary("isnan isinf isfinite isposinf isneginf nan_to_num", one(within=(-9, "nan"), fresh=0.6), exact=True)
unary("signbit", unless(any_nan, one(fresh=0.6)), exact=True)
unary("logical_not", one("a"), exact=True)
unary("bitwise_not", one("i"), exact=True)
unary("modf", one(), exact=True)
row("bitwise_count", one("i"), lambda x, a: jax.lax.population_count(x[0]), exact=True)
row("lax.bitcast_convert_type", one("f32"), lambda x, a: jax.lax.bitcast_convert_type(jnp.round(x[0]), jnp.uint32),
    exact=True)
row("nn.gelu exact", one(), lambda x, a: jax.nn.gelu(x[0], approximate=False))
binary("add subtract multiply", two())
binary("maximum minimum fmax fmin", two(), exact=True)
binary("less less_equal greater greater_equal equal not_equal", two(), exact=True)
binary("logical_and logical_or logical_xor", two("a"), exact=True)
binary("bitwise_and bitwise_or bitwise_xor", two("i"), exact=True)
binary("left_shift right_shift", two("i", within=(0, 5)), exact=True)
binary("divide", two(within=(1, 5)))
binary("power float_power", two("f", first=POSITIVE))
binary("floor_divide remainder fmod divmod", two("i", within=(1, 5)), exact=True)
binary("hypot arctan2", two("f"))
binary("logaddexp logaddexp2", unless(infinite, two("f")))
binary("copysign heaviside", two("f"), exact=True)
row("isclose", two("f"), lambda x, a: jnp.isclose(x[0], x[1]), exact=True)
row("allclose", two("f"), lambda x, a: jnp.allclose(x[0], x[1]), exact=True)
binary("array_equal array_equiv", two("n"), exact=True)


def three(kinds):
    def draw(d):
        x = d.pick(kinds[1])
        return [d.partner(x, kinds[0]), x, d.partner(x, kinds[2])], []
    return draw


row("where", three("bnn"), lambda x, a: jnp.where(*x), exact=True)


def of_one_type(draw):
    """XLA may keep the bits that a product in 16 bits would lose before a sum in 32."""
    def drawn(d):
        operands, attributes = draw(d)
        if len({d.values[i].dtype for i in operands}) > 1:
            raise ValueError("several types")
        return operands, attributes
    return drawn


row("lax.fma", of_one_type(three("fff")), lambda x, a: x[0] * x[1] + x[2])


def with_number(kind, *numbers, **limits):
    return lambda d: ([d.pick(kind, **limits)], [d.dice.choice(numbers)])


row("add number", with_number("f", 0.5, -1.25, 2.0), lambda x, a: x[0] + a[0])
row("multiply number", with_number("f", 0.5, -1.25, 2.0), lambda x, a: x[0] * a[0])
row("clip", lambda d: ([d.pick("f")], [-1.0, d.dice.choice([0.5, 1.0])]), lambda x, a: jnp.clip(x[0], *a), exact=True)
row("lax.clamp", lambda d: ([d.pick("f")], [-0.75, 1.25]), lambda x, a: jnp.clip(x[0], *a), exact=True)
row("power number", with_number("f", 2, 3, -1, within=POSITIVE), lambda x, a: x[0] ** a[0])
row("nn.leaky_relu", with_number("f", 0.01, 0.25), lambda x, a: jax.nn.leaky_relu(x[0], a[0]))
row("nn.elu", with_number("f", 1.0, 0.5), lambda x, a: jax.nn.elu(x[0], a[0]))
row("nn.celu", with_number("f", 1.0, 2.0), lambda x, a: jax.nn.celu(x[0], a[0]))
row("nn.one_hot", lambda d: ([d.pick("i", high=2)], [d.dice.randint(1, 4)]),
    lambda x, a: jax.nn.one_hot(x[0], a[0]), exact=True)
row("astype", lambda d: ([d.pick("a", within=(-99, 99))], [d.dice.choice(["f32", "i32", "f32", "bool", "bf16", "i8"])]),
    lambda x, a: x[0].astype(TYPES[a[0]]), exact=True)


# Reductions: attributes are the axes, or null for all, and whether they are kept.
def axes(d, i, empty=False):
    rank = d.values[i].ndim
    if rank == 0 or d.dice.random() < 0.25:
        return None
    all = d.dice.sample(range(rank), d.dice.randint(1, min(2, rank)))
    return [n - rank if d.dice.random() < 0.3 else n for n in all]


def reduced(kind, **limits):
    def draw(d):
        x = d.pick(kind, low=0 if d.dice.random() < 0.1 else 1, **limits)
        return [x], [axes(d, x), d.dice.random() < 0.4]
    return draw


def tuple_of(a):
    return None if a is None else tuple(a)


def reduction(names, draw, **flags):
    for name in names.split():
        row(name, draw, lambda x, a, f=named(name): f(x[0], axis=tuple_of(a[0]), keepdims=a[1]), **flags)


reduction("sum mean", reduced("a"))
reduction("std", unless(equal(lambda a: tuple_of(a[0])), reduced("f")))
reduction("var nn.logsumexp nn.logmeanexp", reduced("f"))
reduction("linalg.norm", unless(overflows, reduced("f")))
reduction("prod", reduced("a"))
reduction("max min", reduced("a"), exact=True)
reduction("any all", reduced("a"), exact=True)
reduction("ptp", reduced("n"))
reduction("count_nonzero", reduced("a"), exact=True)
reduction("nansum nanprod nanmean nanvar nanstd", reduced("f32", within=(-2, "nan"), fresh=0.6))
reduction("nanmax nanmin", reduced("f32", within=(-2, "nan"), fresh=0.6), exact=True)
reduction("median", reduced("f32"))
reduction("nanmedian", reduced("f32", within=(-2, "nan"), fresh=0.6))
for name in "softmax log_softmax".split():
    row(f"nn.{name}", reduced("f", fits=lambda x: x.ndim), lambda x, a, f=named("nn." + name): f(x[0], axis=tuple_of(a[0])))
# `fold-variance`: JAX subtracts squares by default.
row("nn.standardize", reduced("f32", fits=lambda x: x.ndim and x.shape[-1] > 1),
    lambda x, a: jax.nn.standardize(x[0], axis=-1, algorithm="stable"))
row("linalg.vector_norm", lambda d: ([x := d.pick("f32", low=1)], [axes(d, x), False, d.dice.choice([1, 3, "inf", "-inf"])]),
    lambda x, a: jnp.linalg.vector_norm(x[0], axis=tuple_of(a[0]), ord=float(a[2])))
METHODS = ["linear", "lower", "higher", "midpoint", "nearest"]
for name in "quantile nanquantile percentile nanpercentile".split():
    kinds = dict(within=(-2, "nan"), fresh=0.5) if "nan" in name else {}
    scale = 100 if "percentile" in name else 1
    row(name, lambda d, kinds=kinds, scale=scale: ([x := d.pick("f32", low=1, **kinds)],
        [axes(d, x), d.dice.random() < 0.4, d.dice.choice([0.3, 0.45, 0.9]) * scale, d.dice.choice(METHODS)]),
        lambda x, a, f=named(name): f(x[0], a[2], axis=tuple_of(a[0]), keepdims=a[1], method=a[3]))


def along(kind, *numbers, low=1, **limits):
    """A value and one of its axes, after other attributes."""
    def draw(d):
        x = d.pick(kind, low=low, **limits)
        rank = d.values[x].ndim
        return [x], [n(d) if callable(n) else n for n in numbers] + [d.dice.randrange(-rank, rank)]
    return draw


for name in "argmax argmin nanargmax nanargmin".split():
    row(name, along("a"), lambda x, a, f=named(name): f(x[0], axis=a[0]), exact=True)
# `fold-16-bits`, `fold-formula`.
rounds = lambda x, all, a: x.dtype.itemsize == 2 and x.dtype.kind in "fV" and (np.abs(x.astype(np.float32)) > 1e4).any()
for name in "cumsum cumprod".split():
    row(name, unless(rounds, along("a")), lambda x, a, f=named(name): f(x[0], axis=a[0]))
for name in "nancumsum nancumprod".split():
    row(name, along("f32", within=(-2, "nan"), fresh=0.6), lambda x, a, f=named(name): f(x[0], axis=a[0]))
for name in "lax.cummax lax.cummin".split():
    row(name, along("n"), lambda x, a, f=named(name): f(x[0], axis=a[0] % x[0].ndim), exact=True)
row("diff", along("n", lambda d: d.dice.choice([1, 1, 2])), lambda x, a: jnp.diff(x[0], a[0], a[1]))
row("ediff1d", one("f"), lambda x, a: jnp.ediff1d(x[0]))
row("trapezoid", unless(area, along("f", 0.5)), lambda x, a: jnp.trapezoid(x[0], dx=a[0], axis=a[1]))
unary("cov", one("f32", low=2, high=2, fits=lambda x: min(x.shape) > 1))
unary("corrcoef", unless(equal(lambda a: 1), one("f32", low=2, high=2, fits=lambda x: x.shape[0] > 1 and x.shape[1] > 2)))


def with_like(kind, *draws, within=None, low=1):
    """A value, another one of its shape, and an axis."""
    def draw(d):
        x = d.pick(kind, low=low)
        rank = d.values[x].ndim
        return [x, d.pick(kind, shape=d.values[x].shape, within=within)], [d.dice.randrange(-rank, rank)] if rank else []
    return draw


row("average", with_like("f32", within=POSITIVE), lambda x, a: jnp.average(x[0], axis=a[0], weights=x[1]))


# Products.
def product(*shapes, kind="f"):
    """Operands whose shapes are written with letters; extents of letters are drawn."""
    def draw(d):
        text = d.dice.choice(shapes)
        first = d.pick(kind, low=len(text[0]), high=len(text[0]))
        known = dict(zip(text[0], d.values[first].shape))
        if len(set(text[0])) != len(text[0]) or any(letter.isdigit() and n != int(letter) for letter, n in known.items()):
            known = {c: int(c) if c.isdigit() else d.dice.randint(1, 4) for c in dict.fromkeys(text[0])}
            first = d.new(kind, [known[c] for c in text[0]])
        rest = []
        for letters in text[1:]:
            shape = [int(c) if c.isdigit() else known.setdefault(c, d.dice.randint(1, 4)) for c in letters]
            rest.append(d.pick(kind, shape=shape, fresh=0.3))
        return [first, *rest], []
    return draw


binary("matmul", product(("ab", "bc"), ("a", "a"), ("ab", "b"), ("b", "bc"), ("dab", "bc"), ("dab", "dbc")))
binary("dot", product(("ab", "bc"), ("a", "a"), ("ab", "b"), ("dab", "bc")))
binary("vdot", product(("ab", "ab"), ("a", "a")))
binary("inner", product(("ab", "cb"), ("a", "a")))
binary("outer kron", product(("a", "b"), ("ab", "c")))
binary("matvec", product(("ab", "b"), ("dab", "db")))
binary("vecmat", product(("b", "bc"), ("db", "dbc")))
binary("vecdot", product(("ab", "b"), ("ab", "ab")))
binary("cross", product(("3", "3"), ("a3", "3"), ("a3", "a3")))
binary("polyval", product(("a", "bc"), ("a", "b")))
TEXTS = ["ij,jk->ik", "ij->ji", "ij->", "bij,bjk->bik", "i,j->ij", "ij,ij->", "ij,jk,kl->il", "ij,j->ij", "ijk,k->ji",
         "ij,kj,lj->ikl", "ij,k->j", "i,i->i", "ij->j", "ii->i", "iij->ji", "iji,j->ji", "iii", "ij,jk,kl,l->i"]
# `...` of drawn operands: their shapes, and the text.
DOTS = [("...i->...", ["abi"]), ("...ij,...jk->...ik", ["aij", "jk"]), ("...ij,...jk->...ik", ["baij", "ajk"]), ("...i,...j", ["ai", "aj"]),
        ("i...->i", ["iab"]), ("i...,j...", ["ia", "ja"]), ("...ii->i...", ["aii"]), ("...,...", ["ab", "b"]), ("i...j,j->...i", ["iabj", "j"])]


def einsum(d):
    if d.dice.random() < 0.4:
        text, shapes = d.dice.choice(DOTS)
        return product(tuple(shapes))(d)[0], [text]
    text = d.dice.choice(TEXTS)
    return product(tuple(text.split("->")[0].split(",")))(d)[0], [text]


def tensordot(d):
    operands, own, other = d.dice.choice([(("ab", "bc"), [-1], [0]), (("abc", "cda"), [0, 2], [2, 0]), (("a", "b"), [], [])])
    return product(operands)(d)[0], [own, other] if isinstance(own, list) else []


row("einsum", einsum, lambda x, a: jnp.einsum(a[0], *x))
row("tensordot", lambda d: tensordot(d), lambda x, a: jnp.tensordot(x[0], x[1], (a[0], a[1])))


# New arrays.
def new(*draws):
    return lambda d: ([], [f(d) for f in draws])


def of(*choices):
    return lambda d: d.dice.choice(choices)


some = lambda d: d.shape(0, 3)
few = of(1, 2, 3, 4)
dtype = of("f32", "f32", "i32", "bf16", "bool")
row("arange", new(of(0, -1, 2), of(3, 5, 6), of(1, 2), of("f32", "i32")),
    lambda x, a: jnp.arange(*a[:3], dtype=TYPES[a[3]]), exact=True)
row("linspace", new(of(-1, 0.5), of(2, 3), of(1, 3, 6)), lambda x, a: jnp.linspace(*a))
row("logspace", new(of(-1, 0), of(1, 0.5), of(1, 3, 5)), lambda x, a: jnp.logspace(*a))
row("geomspace", new(of(1, 2), of(8, 5), of(2, 3, 5)), lambda x, a: jnp.geomspace(*a))
row("zeros", new(some, dtype), lambda x, a: jnp.zeros(a[0], TYPES[a[1]]), exact=True)
row("ones", new(some, dtype), lambda x, a: jnp.ones(a[0], TYPES[a[1]]), exact=True)
row("full", new(some, of(3, -1, 0), of("f32", "i32", "bf16")), lambda x, a: jnp.full(a[0], a[1], TYPES[a[2]]), exact=True)
row("eye", new(few, few, of(0, 1, -1), of("f32", "i32")), lambda x, a: jnp.eye(*a[:3], dtype=TYPES[a[3]]), exact=True)
row("identity", new(few), lambda x, a: jnp.identity(a[0]), exact=True)
row("tri", new(few, few, of(0, 1, -1)), lambda x, a: jnp.tri(*a), exact=True)
row("indices", new(lambda d: d.shape(1, 2)), lambda x, a: jnp.indices(tuple(a[0])), exact=True)
for name in "bartlett blackman hamming hanning".split():
    row(name, new(of(1, 4, 7)), lambda x, a, f=named(name): f(a[0]), cancels=True)
unary("zeros_like ones_like", one("a"), exact=True)
row("full_like", with_number("n", 3, 0), lambda x, a: jnp.full_like(x[0], a[0]), exact=True)


# Random numbers: a seed first.
def seeded(*draws):
    return lambda d: ([], [d.dice.randrange(10**6)] + [f(d) for f in draws])


for name in "uniform normal exponential gumbel laplace logistic".split():
    row(f"random.{name}", seeded(some), lambda x, a, f=named("random." + name): f(jax.random.key(a[0]), tuple(a[1])))
row("random.bits", seeded(some), lambda x, a: jax.random.bits(jax.random.key(a[0]), tuple(a[1])) >> 8, exact=True)
row("random.randint", seeded(some, of(-3, 0), of(4, 9)),
    lambda x, a: jax.random.randint(jax.random.key(a[0]), tuple(a[1]), a[2], a[3]), exact=True)
row("random.bernoulli", seeded(some, of(0.25, 0.5)),
    lambda x, a: jax.random.bernoulli(jax.random.key(a[0]), a[2], tuple(a[1])), exact=True)
row("random.rademacher", seeded(some),
    lambda x, a: jax.random.rademacher(jax.random.key(a[0]), tuple(a[1]), jnp.float32), exact=True)
row("random.truncated_normal", seeded(some),
    lambda x, a: jax.random.truncated_normal(jax.random.key(a[0]), -2.0, 2.0, tuple(a[1])))
row("random.permutation", seeded(of(1, 4, 7)), lambda x, a: jax.random.permutation(jax.random.key(a[0]), a[1]), exact=True)
row("random.fold_in", seeded(some, of(1, 77)), lambda x, a: jax.random.uniform(
    jax.random.fold_in(jax.random.key(a[0]), a[2]), tuple(a[1])))

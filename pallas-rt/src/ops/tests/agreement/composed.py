"""Operations of the random programs that are composed of many others: linear algebra, special functions, windows at
positions, attention, distributions with parameters, initializers. It adds its rows to the table."""
import jax
import jax.numpy as jnp
import numpy as np

from table import POSITIVE, binary, infinite, named, one, row, seeded, some, unary, unless

finite = lambda x: bool(np.isfinite(np.asarray(x)).all() and (np.abs(np.asarray(x)) <= 4).all())


def matrix(rows=(1, 2, 3, 4), columns=None, low=2):
    """A matrix, or a batch of them, square if `columns` is None."""
    def draw(d, shape=None):
        if shape is None:
            n = d.dice.choice(rows)
            shape = d.shape(0, 1, (1, 2, 3)) * (low == 2) + [n, n if columns is None else d.dice.choice(columns)]
        is_square = lambda x: finite(x) and (columns is not None or x.shape[-1] == x.shape[-2]) and x.size > 0
        kept, d.hard = d.hard, False
        try:
            return d.pick("f32", low=2, high=3, shape=shape if d.dice.random() < 0.7 else None, fits=is_square, within=(-2, 2))
        finally:
            d.hard = kept
    return draw


def near(x):
    """A matrix far from singular ones."""
    return x * 0.5 + 3 * jnp.eye(x.shape[-1])


def gram(x):
    """A positive definite matrix."""
    return x @ x.swapaxes(-1, -2) * 0.25 + jnp.eye(x.shape[-2])


square = lambda d: ([matrix()(d)], [])
wide = lambda d: ([matrix(columns=(2, 3, 5))(d)], [])


def with_right_side(d):
    x = matrix()(d)
    shape = list(d.values[x].shape[:-1]) + [d.dice.randint(1, 3)]
    kept, d.hard = d.hard, False
    try:
        return [x, d.pick("f32", shape=shape, fits=finite, within=(-2, 2))], []
    finally:
        d.hard = kept


for name in "det inv slogdet".split():
    row(f"linalg.{name}", square, lambda x, a, g=named("linalg." + name): g(near(x[0])))
for name in "cond".split():
    row(f"linalg.{name}", square, lambda x, a, g=named("linalg." + name): g(near(x[0])))
row("linalg.cholesky", square, lambda x, a: jnp.linalg.cholesky(gram(x[0])))
row("linalg.solve", with_right_side, lambda x, a: jnp.linalg.solve(near(x[0]), x[1]))
row("linalg.lstsq", lambda d: ([x := d.pick("f32", shape=[3, 2], fits=finite, within=(-2, 2)), d.pick("f32", shape=[3], fits=finite, within=(-2, 2))], []),
    lambda x, a: jnp.linalg.lstsq(x[0] + 2 * jnp.eye(3, 2), x[1])[0])
row("linalg.pinv", square, lambda x, a: jnp.linalg.pinv(near(x[0])))
row("linalg.matrix_rank", square, lambda x, a: jnp.linalg.matrix_rank(near(x[0])), exact=True)
row("linalg.matrix_norm", lambda d: ([matrix(columns=(2, 3))(d)], [d.dice.choice(["fro", "1", "-1", "inf", "-inf"])]),
    lambda x, a: jnp.linalg.matrix_norm(x[0], ord=a[0] if a[0] == "fro" else float(a[0])))
row("linalg.matrix_power", lambda d: ([matrix()(d)], [d.dice.choice([0, 1, 2, 3, -1, -2])]),
    lambda x, a: jnp.linalg.matrix_power(near(x[0]) / 3, a[0]))
row("linalg.qr", square, lambda x, a: tuple(jnp.linalg.qr(near(x[0]))))
row("linalg.svdvals", square, lambda x, a: jnp.linalg.svdvals(near(x[0]) + jnp.diag(jnp.arange(x[0].shape[-1], dtype=jnp.float32) * 3)))
row("linalg.svd", square, lambda x, a: (lambda u, s, v: (u * s[..., None, :]) @ v)(*jnp.linalg.svd(near(x[0]), full_matrices=False)))
row("linalg.eigvalsh", square, lambda x, a: jnp.linalg.eigvalsh(gram(x[0]) + jnp.diag(jnp.arange(x[0].shape[-1], dtype=jnp.float32) * 3)))
row("linalg.eigh", square, lambda x, a: (lambda w, v: (v * w[..., None, :]) @ v.swapaxes(-1, -2))(
    *jnp.linalg.eigh(gram(x[0]) + jnp.diag(jnp.arange(x[0].shape[-1], dtype=jnp.float32) * 3))))
row("scipy.linalg.cho_solve", with_right_side, lambda x, a: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(gram(x[0])), True), x[1]))
row("scipy.linalg.solve_triangular", lambda d: (with_right_side(d)[0], [d.dice.random() < 0.5]),
    lambda x, a: jax.scipy.linalg.solve_triangular(near(x[0]), x[1], lower=a[0]))


def chain(d):
    sizes = [d.dice.randint(1, 4) for _ in range(4)]
    return [d.pick("f32", shape=sizes[i:i + 2], within=(-2, 2)) for i in range(3)], []


row("linalg.multi_dot", chain, lambda x, a: jnp.linalg.multi_dot(x))


# Special functions.
def pair(kind="f32", first=None, second=None):
    def draw(d):
        x = d.pick(kind, within=first, high=2)
        return [x, d.partner(x, kind, second)], []
    return draw


UNIT = (0.0625, 0.9375)
unary("lax.lgamma lax.digamma", one("f32", within=(0.5, 5)))
unary("scipy.special.factorial", one("f32", within=(0, 4)))
unary("scipy.special.logit", one("f32", within=UNIT))
unary("scipy.special.ndtr", one("f32", within=(-3, 3)))
unary("scipy.special.entr", one("f32", within=POSITIVE))
row("scipy.special.erfinv", one("f32", within=(-0.875, 0.875)), lambda x, a: jax.scipy.special.erfinv(x[0]))
binary("scipy.special.xlogy scipy.special.xlog1py", pair(second=POSITIVE))
binary("scipy.special.betaln", pair(first=POSITIVE, second=POSITIVE))


def positive(d, shape=None, within=POSITIVE, high=2):
    kept, d.hard = d.hard, False
    try:
        return d.pick("f32", high=high, shape=shape, within=within, fits=lambda x: bool((np.asarray(x) >= within[0]).all()))
    finally:
        d.hard = kept


binary("scipy.special.gammainc scipy.special.gammaincc", lambda d: ([x := positive(d), positive(d, d.values[x].shape)], []))
row("scipy.special.betainc", lambda d: ([x := positive(d), positive(d, d.values[x].shape), positive(d, d.values[x].shape, UNIT)], []),
    lambda x, a: jax.scipy.special.betainc(jax.lax.stop_gradient(x[0]), jax.lax.stop_gradient(x[1]), x[2]))


# Windows at positions.
def window(updates):
    def draw(d):
        x = d.pick("n", low=1, high=3, fits=lambda x: x.size > 0)
        shape = d.values[x].shape
        axis = d.dice.randrange(len(shape))
        size = d.dice.randint(1, shape[axis])
        own = list(shape)
        own[axis] = size
        if updates == "index":
            del own[axis]
        start = d.new("i32", [], -6, 6)
        kept, d.mixed = d.mixed, False
        more = [cast_like(d, x, own)] if updates else []
        d.mixed = kept
        return [x, *more, start], [axis, size]
    return draw


def cast_like(d, x, shape):
    """A value of another's type."""
    y = d.pick("f" if np.issubdtype(np.asarray(d.values[x]).dtype, np.floating) or d.values[x].dtype == jnp.bfloat16 else "i", shape=shape)
    if d.values[y].dtype != d.values[x].dtype:
        raise ValueError("another type")
    return y


lax = jax.lax
row("lax.dynamic_slice_in_dim", window(None), lambda x, a: lax.dynamic_slice_in_dim(x[0], x[1], a[1], a[0]), exact=True)
row("lax.dynamic_index_in_dim", window(None), lambda x, a: lax.dynamic_index_in_dim(x[0], x[1], a[0], keepdims=False), exact=True)
row("lax.dynamic_update_slice_in_dim", window("slice"), lambda x, a: lax.dynamic_update_slice_in_dim(x[0], x[1], x[2], a[0]), exact=True)
row("lax.dynamic_update_index_in_dim", window("index"), lambda x, a: lax.dynamic_update_index_in_dim(x[0], x[1], x[2], a[0]), exact=True)


def whole_window(updates):
    def draw(d):
        x = d.pick("n", low=1, high=3, fits=lambda x: x.size > 0)
        own = [d.dice.randint(1, n) for n in d.values[x].shape]
        more = [cast_like(d, x, own)] if updates else []
        return [x, *more, *[d.new("i32", [], -6, 6) for _ in own]], [own]
    return draw


row("lax.dynamic_slice", whole_window(False), lambda x, a: lax.dynamic_slice(x[0], x[1:], a[0]), exact=True)
row("lax.dynamic_update_slice", whole_window(True), lambda x, a: lax.dynamic_update_slice(x[0], x[1], x[2:]), exact=True)


# Folds from the end.
def along_reversed(kind):
    def draw(d):
        x = d.pick(kind, low=1)
        rank = d.values[x].ndim
        return [x], [d.dice.randrange(-rank, rank), d.dice.random() < 0.7]
    return draw


for name in "cumsum cumprod cummax cummin".split():
    row(f"{name} reverse", along_reversed("n"), lambda x, a, g=getattr(lax, name): g(x[0], axis=a[0] % x[0].ndim, reverse=a[1]),
        exact="m" in name[3:4])
row("lax.cumlogsumexp", unless(infinite, along_reversed("f")), lambda x, a: lax.cumlogsumexp(x[0], axis=a[0] % x[0].ndim, reverse=a[1]))


# Attention.
def attention(d):
    dice = d.dice
    batch, queries, keys, shared, group, width = [dice.randint(1, 2), dice.randint(1, 3), dice.randint(1, 3), dice.randint(1, 2), dice.randint(1, 2), dice.randint(1, 3)]
    heads = shared * group
    lead = [batch] if dice.random() < 0.7 else []
    batch = batch if lead else 1
    kept, d.hard, d.narrow = (d.hard, d.narrow), False, False
    try:
        value = lambda *shape: d.pick("f32", shape=lead + list(shape), fits=finite, fresh=0.4)
        operands = [value(queries, heads, width), value(keys, shared, width), value(keys, shared, width)]
        bias = dice.random() < 0.3
        mask = dice.random() < 0.3
        wide = [dice.choice([1, batch]), dice.choice([1, heads]), dice.choice([1, queries]), keys]
        operands += [d.pick("f32", shape=wide, fits=finite)] if bias else []
        operands += [d.new("b", wide)] if mask else []
    finally:
        d.hard, d.narrow = kept
    window = [dice.randint(0, 2), dice.randint(0, 2)] if dice.random() < 0.3 else None
    return operands, [bias, mask, dice.random() < 0.4, dice.choice([None, 0.5]), window]


def attended(x, a):
    bias, mask, causal, scale, window = a
    rest = list(x[3:])
    return jax.nn.dot_product_attention(*x[:3], bias=rest.pop(0) if bias else None, mask=rest.pop(0) if mask else None,
                                        is_causal=causal, scale=scale, local_window_size=tuple(window) if window else None)


row("nn.dot_product_attention", attention, attended)


# Distributions, whose parameters are values.
def drawn_by(*limits):
    def draw(d):
        shape = d.shape(0, 2)
        return [positive(d, shape, within) for within in limits], [d.dice.randrange(10**6)]
    return draw


for name, count in [("gamma", 1), ("loggamma", 1), ("chisquare", 1), ("t", 1), ("beta", 2), ("f", 2), ("lognormal", 1), ("pareto", 1), ("rayleigh", 1), ("wald", 1)]:
    # Later ones have no heavy tails.
    within = (2.25, 4.25) if name in ("t", "f", "pareto") else (0.25, 1.25) if name == "lognormal" else POSITIVE
    row(f"random.{name}", drawn_by(*[within] * count), lambda x, a, g=named("random." + name): g(jax.random.key(a[0]), *x, shape=x[0].shape))
row("random.weibull_min", drawn_by(POSITIVE, (0.75, 4.25)), lambda x, a: jax.random.weibull_min(jax.random.key(a[0]), *x, shape=x[0].shape))
row("random.poisson", drawn_by((0.25, 20)), lambda x, a: jax.random.poisson(jax.random.key(a[0]), x[0], shape=x[0].shape), exact=True)
row("random.binomial", drawn_by((0.25, 60), UNIT), lambda x, a: jax.random.binomial(jax.random.key(a[0]), jnp.floor(x[0]), x[1], shape=x[0].shape))
row("random.geometric", drawn_by(UNIT), lambda x, a: jax.random.geometric(jax.random.key(a[0]), x[0], shape=x[0].shape), exact=True)
row("random.dirichlet", lambda d: ([positive(d, [d.dice.randint(1, 4)])], [d.dice.randrange(10**6), d.shape(0, 1)]),
    lambda x, a: jax.random.dirichlet(jax.random.key(a[0]), x[0], tuple(a[1])))
row("random.multivariate_normal", lambda d: ([m := matrix()(d), d.pick("f32", shape=list(d.values[m].shape[:-1]), fits=finite, within=(-2, 2))], [d.dice.randrange(10**6)]),
    lambda x, a: jax.random.multivariate_normal(jax.random.key(a[0]), x[1], gram(x[0]), shape=x[0].shape[:-2]))
row("random.orthogonal", lambda d: ([], [d.dice.randrange(10**6), d.dice.randint(1, 4), d.dice.randint(1, 4)]),
    lambda x, a: jax.random.orthogonal(jax.random.key(a[0]), a[1], (), jnp.float32, a[2]))
row("random.split_batch", lambda d: ([positive(d, [d.dice.randint(1, 4)])], [d.dice.randrange(10**6)]),
    lambda x, a: jax.vmap(lambda k, s: s * jax.random.normal(k, (2,)))(jax.random.split(jax.random.key(a[0]), x[0].shape[0]), x[0]))

# Initializers.
init = jax.nn.initializers
for name, make in [("zeros", init.zeros), ("ones", init.ones), ("constant", init.constant(1.5)), ("uniform", init.uniform(0.5)), ("normal", init.normal(0.5)),
                   ("truncated_normal", init.truncated_normal(0.5)), ("variance_scaling", init.variance_scaling(0.5, "fan_out", "normal")),
                   ("orthogonal", init.orthogonal(2.0))] + [
                   (f"{n}_{m}", getattr(init, f"{n}_{m}")()) for n in "glorot lecun he".split() for m in "uniform normal".split()]:
    row(f"nn.initializers.{name}", seeded(lambda d: d.shape(2, 3)), lambda x, a, make=make: make(jax.random.key(a[0]), tuple(a[1])))
row("nn.initializers.delta_orthogonal", seeded(lambda d: d.shape(1, 1) + sorted(d.shape(2, 2))),
    lambda x, a: init.delta_orthogonal()(jax.random.key(a[0]), tuple(a[1])))

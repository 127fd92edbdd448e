"""Values of steps while programs are drawn, by NumPy: XLA would compile each operation of a step for each shape, which
takes a hundred times longer than its elements do. These values decide only what is drawn. JAX's answers, and the checks
that a program is fit to be compared, are those of compiled programs.

An operation without a row here is run by JAX.
"""
import functools

import jax
import numpy as np
import scipy.special
from jax.extend import core

FLOATS = {"float32", "float16", "bfloat16"}
RULES = {}


def wide(x):
    """Floats as f32, whose functions NumPy has."""
    return np.asarray(x, np.float32) if np.asarray(x).dtype.name in FLOATS else np.asarray(x)


def of(**rules):
    """Rows of operations by functions of their operands."""
    for name, f in rules.items():
        RULES[name] = lambda x, p, f=f: [f(*[wide(v) for v in x])]


def by(**rules):
    """Rows of operations by functions of the operands as they are, and parameters."""
    for name, f in rules.items():
        RULES[name] = lambda x, p, f=f: [f(*x, p)]


def divide(a, b):
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b).astype(np.int64)
    wide = a.astype(np.int64)
    return np.where(b == 0, -1, np.sign(wide) * np.sign(safe) * (np.abs(wide) // np.abs(safe)))


def remainder(a, b):
    return np.fmod(a, b) if a.dtype.kind == "f" else np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b)))


def shift(f):
    return lambda a, b: np.where(b.astype(np.int64) % 2**32 < 8 * a.dtype.itemsize, f(a, b), 0)


def signed_shift(a, b):
    top = 8 * a.dtype.itemsize - 1
    return a.view(f"i{a.dtype.itemsize}") >> np.where((b < 0) | (b > top), top, b).astype(a.view(f"i{a.dtype.itemsize}").dtype)


def unsigned_shift(a, b):
    own = a.view(f"u{a.dtype.itemsize}")
    return own >> b.astype(own.dtype)


of(add=np.add, sub=np.subtract, mul=np.multiply, div=divide, rem=remainder, max=np.maximum, min=np.minimum, pow=np.power,
   atan2=np.arctan2, nextafter=np.nextafter, eq=np.equal, ne=np.not_equal, lt=np.less, le=np.less_equal, gt=np.greater,
   ge=np.greater_equal, xor=np.bitwise_xor, neg=np.negative, abs=np.abs, sign=np.sign, floor=np.floor, ceil=np.ceil,
   sqrt=np.sqrt, rsqrt=lambda a: 1 / np.sqrt(a), cbrt=np.cbrt, exp=np.exp, exp2=np.exp2, expm1=np.expm1, log=np.log,
   log1p=np.log1p, log2=np.log2, sin=np.sin, cos=np.cos, tan=np.tan, asin=np.arcsin, acos=np.arccos, atan=np.arctan,
   sinh=np.sinh, cosh=np.cosh, tanh=np.tanh, asinh=np.arcsinh, acosh=np.arccosh, atanh=np.arctanh, square=np.square,
   logistic=lambda a: 1 / (1 + np.exp(-a)), erf=scipy.special.erf, erfc=scipy.special.erfc, erf_inv=scipy.special.erfinv,
   lgamma=scipy.special.gammaln, digamma=scipy.special.digamma, is_finite=np.isfinite, shift_left=shift(np.left_shift),
   shift_right_logical=shift(unsigned_shift), shift_right_arithmetic=signed_shift, population_count=lambda a: np.bitwise_count(a.view(f"u{a.dtype.itemsize}")),
   copy=lambda a: a, copy_p=lambda a: a, stop_gradient=lambda a: a,
   clamp=lambda low, a, high: np.minimum(np.maximum(a, low), high),
   select_n=lambda which, *cases: np.where(which, cases[1], cases[0]) if len(cases) == 2 else np.choose(which, cases))
RULES["and"] = lambda x, p: [np.bitwise_and(*x)]
RULES["or"] = lambda x, p: [np.bitwise_or(*x)]
RULES["not"] = lambda x, p: [np.invert(x[0])]
RULES["round"] = lambda x, p: [np.rint(wide(x[0])) if int(p["rounding_method"]) else
                               np.trunc(wide(x[0]) + np.copysign(np.float32(0.5), wide(x[0])))]


def converted(x, p):
    dtype = np.dtype(p["new_dtype"])
    x = wide(x)
    if x.dtype.kind == "f" and dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.clip(np.nan_to_num(np.trunc(x.astype(np.float64)), posinf=2.0**40, neginf=-2.0**40), info.min, info.max)
    return x


def broadcast(x, p):
    own = [1] * len(p["shape"])
    for n, axis in zip(np.shape(x), p["broadcast_dimensions"]):
        own[axis] = n
    return np.broadcast_to(np.reshape(x, own), p["shape"])


def sliced(x, p):
    strides = p["strides"] or [1] * np.ndim(x)
    return x[tuple(slice(*item) for item in zip(p["start_indices"], p["limit_indices"], strides))]


def iota(p):
    n = p["shape"][p["dimension"]]
    return broadcast(np.arange(n), {"shape": p["shape"], "broadcast_dimensions": [p["dimension"]]})


def folded(f, empty=None):
    """A fold; of no elements JAX has an extreme of the type."""
    def fold(x, p):
        if x.size == 0 and empty is None:
            raise LookupError
        return f(wide(x), axis=tuple(p["axes"]))
    return fold


def running(f):
    def fold(x, p):
        x = np.flip(wide(x), p["axis"]) if p["reverse"] else wide(x)
        made = f(x, axis=p["axis"])
        return np.flip(made, p["axis"]) if p["reverse"] else made
    return fold


def position(f):
    def find(x, p):
        x = wide(x)
        x = np.where(np.isnan(x), np.inf if f is np.argmax else -np.inf, x) if x.dtype.kind == "f" and np.isnan(x).any() else x
        return f(x, axis=p["axes"][0])
    return find


def product(x, y, p):
    (own, other), (own_batch, other_batch) = p["dimension_numbers"]
    letters = iter(range(40))
    a, b = [None] * np.ndim(x), [None] * np.ndim(y)
    for i, j in [*zip(own_batch, other_batch), *zip(own, other)]:
        a[i] = b[j] = next(letters)
    a, b = ([next(letters) if n is None else n for n in text] for text in (a, b))
    batch = [a[i] for i in own_batch]
    rest = [n for n in a if n not in b] + [n for n in b if n not in a]
    return np.einsum(wide(x), a, wide(y), b, batch + rest)


def parts(x, axis, sizes):
    return np.split(x, np.cumsum(sizes)[:-1].astype(int), axis)


def cast(x, p):
    x, dtype = np.asarray(x), np.dtype(p["new_dtype"])
    if x.dtype.itemsize != dtype.itemsize:
        raise LookupError
    return x.view(dtype)


def padded(x, value, p):
    if any(low < 0 or high < 0 or inner for low, high, inner in p["padding_config"]):
        raise LookupError
    return np.pad(x, [(low, high) for low, high, _ in p["padding_config"]], constant_values=value)


def power(x, p):
    return wide(x) ** np.asarray(p["y"], wide(x).dtype) if p["y"] >= 0 else 1 / wide(x) ** -p["y"]


by(convert_element_type=converted, broadcast_in_dim=broadcast, slice=sliced, bitcast_convert_type=cast, pad=padded,
   dot_general=product, integer_pow=power,
   reshape=lambda x, p: np.reshape(x, p["new_sizes"]), squeeze=lambda x, p: np.squeeze(x, tuple(p["dimensions"])),
   expand_dims=lambda x, p: np.expand_dims(x, tuple(p["dimensions"])),
   transpose=lambda x, p: np.transpose(x, p["permutation"]), rev=lambda x, p: np.flip(x, tuple(p["dimensions"])),
   tile=lambda x, p: np.tile(x, p["reps"]), reduce_sum=folded(np.sum, True), reduce_prod=folded(np.prod, True),
   reduce_max=folded(np.max), reduce_min=folded(np.min), reduce_or=folded(np.any, True), reduce_and=folded(np.all, True),
   cumsum=running(np.cumsum), cumprod=running(np.cumprod), cummax=running(np.maximum.accumulate),
   cummin=running(np.minimum.accumulate), argmax=position(np.argmax), argmin=position(np.argmin))
RULES["iota"] = lambda x, p: [iota(p)]
RULES["concatenate"] = lambda x, p: [np.concatenate(x, p["dimension"])]
RULES["stack"] = lambda x, p: [np.stack(x, p["axis"])]
RULES["split"] = lambda x, p: parts(x[0], p["axis"], p["sizes"])
RULES["unstack"] = lambda x, p: [np.take(x[0], i, p["axis"]) for i in range(x[0].shape[p["axis"]])]


def positions(x, p):
    """Positions of elements that are true, or of a table's elements."""
    kind, own = type(p["_prim"]).__name__, p["_prim"].params
    if kind == "Einsum":
        return [np.einsum(own["subscripts"], *map(wide, x))]
    if kind == "Nonzero" and len(own["axes"]) == x[0].ndim:
        found = [np.concatenate([at, np.full(own["size"], empty)])[:own["size"]] for at, empty in zip(np.nonzero(x[0]), x[1:])]
        return found if len(x) > 1 else [np.concatenate([at, np.zeros(own["size"])])[:own["size"]] for at in np.nonzero(x[0])]
    if kind == "SearchSorted" and x[0].ndim == 1:
        return [np.searchsorted(wide(x[0]), wide(x[1]), own["side"])]
    raise LookupError


def sort(x, p):
    keys = [wide(v) for v in x[:p["num_keys"]]]
    order = np.lexsort(keys[::-1], axis=p["dimension"])
    return [np.take_along_axis(v, order, p["dimension"]) for v in x]


RULES["call_hi_primitive"] = positions
RULES["sort"] = sort
of(igamma=scipy.special.gammainc, igammac=scipy.special.gammaincc, regularized_incomplete_beta=scipy.special.betainc)
# An element of random numbers depends on its position alone, so one program makes them for all shapes.
MOST = 256


@jax.jit
def many_bits(key):
    return jax.random.bits(key, (MOST,))


@functools.partial(jax.jit, static_argnums=2)
def many_gamma(key, shape, log_space):
    return jax.lax.stop_gradient((jax.random.loggamma if log_space else jax.random.gamma)(key, shape))


def random_bits(eqn, x):
    shape = eqn.outvars[0].aval.shape
    if eqn.params["bit_width"] != 32 or x[0].shape or np.prod(shape) > MOST:
        return by_jax(eqn, x)
    return [np.asarray(many_bits(x[0]))[:int(np.prod(shape))].reshape(shape)]


def random_gamma(eqn, x):
    if x[0].shape or x[1].size > MOST:
        return by_jax(eqn, x)
    wide = np.ones(MOST, np.float32)
    wide[:x[1].size] = x[1].ravel()
    return [np.asarray(many_gamma(x[0], wide, eqn.params["log_space"]))[:x[1].size].reshape(x[1].shape)]


RANDOM = {"random_bits": random_bits, "random_gamma": random_gamma}
# Operations that are programs themselves.
INNER = {"jit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


def by_jax(eqn, x):
    made = eqn.primitive.bind(*map(jax.numpy.asarray, x), **eqn.primitive.get_bind_params(eqn.params))
    return made if eqn.primitive.multiple_results else [made]


def run(eqn, x):
    """The results of an operation."""
    name = eqn.primitive.name
    if name in INNER:
        return values(eqn.params[INNER[name]], x)
    if name in RANDOM:
        return RANDOM[name](eqn, x)
    rule = RULES.get(name)
    if rule is None or any(not isinstance(v, np.ndarray) for v in x):
        return by_jax(eqn, x)
    try:
        return [np.asarray(made).astype(var.aval.dtype) for made, var in zip(rule(x, eqn.params), eqn.outvars, strict=True)]
    except LookupError:
        return by_jax(eqn, x)


def values(program, args):
    """The results of a closed jaxpr."""
    jaxpr, known = program.jaxpr, {}
    known.update(zip(jaxpr.constvars, program.consts))
    known.update(zip(jaxpr.invars, args, strict=True))

    def read(v):
        found = v.val if isinstance(v, core.Literal) else known[v]
        is_number = isinstance(v.aval, jax.core.ShapedArray) and not jax.dtypes.issubdtype(v.aval.dtype, jax.dtypes.extended)
        return np.asarray(found, v.aval.dtype) if is_number else found

    with np.errstate(all="ignore"):
        for eqn in jaxpr.eqns:
            known.update(zip(eqn.outvars, run(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def replayed(jaxpr, args):
    """The results of a jaxpr. JAX transforms what jitted functions hold sooner than it transforms these."""
    known = dict(zip(jaxpr.constvars, jaxpr.consts))
    known.update(zip(jaxpr.invars, args, strict=True))
    read = lambda v: v.val if isinstance(v, core.Literal) else known[v]
    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        if eqn.primitive.name == "jit":
            made = replayed(eqn.params["jaxpr"], operands)
        else:
            made = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
        known.update(zip(eqn.outvars, made if eqn.primitive.multiple_results or eqn.primitive.name == "jit" else [made]))
    return [read(v) for v in jaxpr.outvars]

"""JAX's answers for the cases of the array surface: `python reference.py > reference.txt`.

Needs jax[cpu]==0.12.0.1. A line is `name | operands | results`. The name's first word is that of the table in
surface.md.
An operand is a type with `~seed low high`, elements by the formula of `element`, or with `=` and its elements.
"""
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i32": np.int32, "i8": np.int8,
         "i16": np.int16, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "bool": np.bool_}
NAMES = {np.dtype(t): name for name, t in TYPES.items()}
seeds = iter(range(1, 100000))


def element(seed, i, low, high, dtype):
    z = (i * 2654435761 + seed * 40503 + 12345) % 2**32
    z = ((z ^ z >> 15) * 2246822519) % 2**32
    z ^= z >> 13
    if dtype == "bool":
        return z & 1
    if dtype[0] in "iu":
        return low + z % (high - low + 1)
    return low + (z % 64) / 64 * (high - low)


class Operand:
    def __init__(self, dtype, shape, text, elements):
        self.text = f"{dtype}[{','.join(map(str, shape))}] {text}".strip()
        self.array = jnp.array(np.array(elements, np.float64).astype(TYPES[dtype]).reshape(shape))


def made(dtype, shape, low, high):
    seed = next(seeds)
    elements = [element(seed, i, low, high, dtype) for i in range(int(np.prod(shape)))]
    return Operand(dtype, shape, f"~{seed} {low} {high}", elements)


def f(*shape, low=-2, high=2, dtype="f32"):
    return made(dtype, shape, low, high)


def pos(*shape):
    return f(*shape, low=0.25, high=4.25)


def i(*shape, low=-5, high=5, dtype="i32"):
    return made(dtype, shape, low, high)


def u(*shape):
    return made("u8", shape, 0, 9)


def b(*shape):
    return made("bool", shape, 0, 1)


def v(dtype, *elements, shape=None):
    return Operand(dtype, shape or (len(elements),), "= " + " ".join(number(x) for x in elements), elements)


def number(x):
    x = float(x)
    if np.isnan(x):
        return "-nan" if np.signbit(x) else "nan"
    if np.isfinite(x) and x == int(x) and abs(x) < 2**53 and str(x) != "-0.0":
        return str(int(x))
    return f"{x:.9g}"


def shown(x):
    x = np.asarray(x)
    elements = " ".join("nan" if np.isnan(e) else number(e) for e in x.astype(np.float64).ravel())
    return f"{NAMES[x.dtype]}[{','.join(map(str, x.shape))}] {elements}".strip()


def case(name, function, *calls):
    for operands in calls:
        results = function(*[o.array for o in operands])
        results = results if isinstance(results, (list, tuple)) else [results]
        print(" | ".join([name, " ; ".join(o.text for o in operands), " ; ".join(map(shown, results))]))


def named(name):
    space = jax.nn if name.startswith("nn.") else jnp
    return getattr(space, name.removeprefix("nn."))


INF = float("inf")
NAN = float("nan")
special = lambda: v("f32", NAN, INF, -INF, 0, -1.5, 2.5)

# Elementwise, of one operand.
for name in "abs sign negative square floor ceil trunc positive".split():
    case(name, named(name), [f(2, 3)], [i(5)], [u(4)])
for name in ("sin cos tan exp exp2 expm1 tanh sinh cosh arctan arcsinh sinc rint fabs radians degrees deg2rad "
             "rad2deg cbrt").split():
    case(name, named(name), [f(3, 5)], [i(4, low=-2, high=2)])
case("arcsin", jnp.arcsin, [f(7, low=-1, high=1)])
case("arccos", jnp.arccos, [f(7, low=-1, high=1)])
case("arctanh", jnp.arctanh, [f(7, low=-0.875, high=0.875)])
case("arccosh", jnp.arccosh, [f(7, low=1, high=9)], [v("f32", 1, 1e30, INF)])
case("arcsinh", jnp.arcsinh, [v("f32", 0, -0.0, 1e-6, -1e30, INF, NAN)])
for name in "log log2 log10 sqrt reciprocal".split():
    case(name, named(name), [pos(3, 3)], [v("i32", 1, 2, 9)])
case("log1p", jnp.log1p, [f(5, low=-0.5, high=3)], [v("f32", 1e-6, 0)])
case("round", jnp.round, [v("f32", -1.5, -0.5, 0.5, 1.5, 2.4)], [i(3)])
for name in "isnan isinf isfinite isposinf isneginf".split():
    case(name, named(name), [special()], [f(2, 2)])
case("signbit", jnp.signbit, [v("f32", -0.0, 0, -1, 1, -INF)], [f(3, dtype="f16")], [f(3, dtype="bf16")], [i(4)])
case("nan_to_num", jnp.nan_to_num, [special()], [f(3)], [i(3)])
case("logical_not", jnp.logical_not, [b(5)], [i(4, low=0, high=1)], [special()])
case("bitwise_not", jnp.bitwise_not, [i(4)], [b(3)])
case("modf", jnp.modf, [f(5)])
case("bitwise_count", lambda x: jnp.bitwise_count(x).astype(x.dtype), [i(4, low=0)], [u(5)])

# Elementwise, of two operands: types and shapes meet.
for name in "add multiply maximum minimum".split():
    case(name, named(name), [f(2, 3), f(3)], [i(2, 1), f(3)], [u(3), i(3, dtype="i8")], [b(4), b(4)], [b(2), i(2)],
         [f(3, dtype="bf16"), f(3, dtype="f16")], [f(0, 3), f(1, 3)])
case("subtract", jnp.subtract, [f(2, 3), f(3)], [u(3), u(3)], [i(), f(2, 2)])
case("divide", jnp.divide, [f(2, 3), pos(3)], [i(4), i(4, low=1, high=3)], [f(3), v("f32", 0, -0.0, 1)])
for name in "less less_equal greater greater_equal".split():
    case(name, named(name), [f(2, 3), f(3)], [i(5, low=0, high=2), i(5, low=0, high=2)], [b(4), b(4)],
         [special(), f(6)])
for name in "equal not_equal".split():
    case(name, named(name), [i(5, low=0, high=1), i(5, low=0, high=1)], [b(4), b(4)], [special(), special()])
for name in "logical_and logical_or logical_xor".split():
    case(name, named(name), [b(2, 3), b(3)], [i(5, low=0, high=1), f(5)])
for name in "bitwise_and bitwise_or bitwise_xor".split():
    case(name, named(name), [i(2, 3), i(3)], [b(4), b(4)], [u(3), i(3)])
for name in "left_shift right_shift".split():
    case(name, named(name), [i(4), i(4, low=0, high=5)])
case("power", jnp.power, [pos(2, 3), f(3)], [i(5), i(5, low=0, high=4)], [pos(3), i(3)], [u(3), u(3)])
case("power 2", lambda x: x**2, [f(4)], [i(4)])
case("power -1", lambda x: x**-1, [pos(4)])
case("power 0.5", lambda x: x**0.5, [pos(4)], [v("i32", 1, 4)])
case("float_power", jnp.float_power, [pos(3), f(3)], [v("i32", 1, 2, 3), i(3)])
for name in "floor_divide remainder fmod".split():
    case(name, named(name), [i(9, low=-9, high=9), v("i32", 1, 2, 3, -1, -2, -3, 4, -4, 5)],
         [f(6), v("f32", 0.75, -0.75, 1, -1, 0.5, -2)], [u(3), v("u8", 1, 2, 3)])
case("divmod", jnp.divmod, [i(4, low=-9, high=9), v("i32", 2, -2, 3, -3)])
for name in "hypot logaddexp logaddexp2 arctan2 copysign".split():
    case(name, named(name), [f(2, 3), f(3)], [special(), f(6)], [i(3), i(3)])
case("hypot", jnp.hypot, [v("f32", 0, 1e30, 3, INF), v("f32", 0, 1e30, -4, NAN)])
case("logaddexp", jnp.logaddexp, [v("f32", INF, -INF, 300, -INF), v("f32", INF, -INF, 299, 1)])
case("heaviside", jnp.heaviside, [v("f32", -1, 0, 2, NAN), pos(4)])
for name in "fmax fmin".split():
    case(name, named(name), [special(), f(6)], [f(6), special()], [i(3), i(3)])
case("clip", lambda x: jnp.clip(x, -1, 1), [f(3, 3)], [i(5)], [special()])
case("clip arrays", jnp.clip, [f(2, 3), f(3, low=-1, high=0), f(2, 1, low=0, high=1)])
case("where", jnp.where, [b(2, 3), f(3), f(2, 1)], [b(3), i(3), f(3)], [b(4), b(4), b(4)])
case("isclose", jnp.isclose, [special(), special()], [v("f32", 1, 1.000001, 2), v("f32", 1.000001, 1.1, 2)])
case("allclose", jnp.allclose, [v("f32", 1, 2), v("f32", 1.000001, 2)], [f(3), f(3)])
case("array_equal", jnp.array_equal, [i(3), i(3)], [v("i32", 1, 2), v("f32", 1, 2)], [f(2), f(3)])
case("array_equiv", jnp.array_equiv, [v("i32", 1, 1), v("i32", 1)], [f(2), f(2, 2)])

# Reductions.
for name in ("sum prod mean max min any all var std ptp nansum nanprod nanmax nanmin nanmean nanvar nanstd "
             "count_nonzero").split():
    g = named(name)
    numbers = [[b(2, 3)]] if name != "ptp" else []
    case(name, g, [f(2, 3, 4)], [i(2, 3)], [u(3)], *numbers)
    case(f"{name} -1", lambda x: g(x, axis=-1), [f(2, 5)], [i(3, 3, dtype="i8")])
    case(f"keepdims= {name}", lambda x: g(x, axis=(0, 2), keepdims=True), [f(2, 3, 4)])
for name in "nansum nanprod nanmax nanmin nanmean nanvar nanstd sum max".split():
    case(f"{name} -1", lambda x, g=named(name): g(x, axis=-1), [v("f32", 1, NAN, 3, 4, 5, 7, shape=(2, 3))])
for name in "sum prod mean any all".split():
    case(f"{name} 0", lambda x, g=named(name): g(x, axis=0), [f(0, 3)])
case("sum -1", lambda x: jnp.sum(x, axis=-1), [f(3, 40, dtype="bf16")], [f(3, 40, dtype="f16")])
case("mean -1", lambda x: jnp.mean(x, axis=-1), [f(3, 40, dtype="bf16")])
for name in "argmax argmin nanargmax nanargmin".split():
    case(f"{name} 1", lambda x, g=named(name): g(x, axis=1), [f(2, 7)], [i(3, 4)],
         [v("f32", 1, NAN, 3, 4, 0, 5, shape=(2, 3))])
for name in "logsumexp logmeanexp log_softmax softmax".split():
    case(f"nn.{name} -1", lambda x, g=named("nn." + name): g(x, axis=-1), [f(3, 5)],
         [v("f32", 500, 501, -500, 3, shape=(2, 2))])
case("nn.logsumexp", jax.nn.logsumexp, [f(3, 5)], [v("f32", -INF, -INF)], [v("f32", INF, 1)])
case("linalg.norm", jnp.linalg.norm, [f(7)])
case("linalg.norm -1", lambda x: jnp.linalg.norm(x, axis=-1), [f(2, 5)], [i(2, 3)])
for order in [1, 3, INF, -INF, 0]:
    case(f"linalg.vector_norm {number(order)}",
         lambda x: jnp.linalg.vector_norm(x, ord=order, axis=0), [f(4, 2)])
case("average", lambda x, w: jnp.average(x, axis=1, weights=w), [f(2, 3), pos(3)], [i(2, 3), pos(2, 3)])
for name in "cumsum cumprod nancumsum nancumprod".split():
    case(f"{name} 1", lambda x, g=named(name): g(x, axis=1), [f(2, 5)], [i(2, 3)], [b(2, 4)], [u(1, 3)], [f(2, 0)],
         [v("f32", 1, NAN, 3, shape=(1, 3))])
case("lax.cummax 0", lambda x: jax.lax.cummax(x, axis=0), [f(5, 2)], [i(4)])
case("lax.cummin 0", lambda x: jax.lax.cummin(x, axis=0), [f(5, 2)], [i(4)])
case("diff -1", lambda x: jnp.diff(x), [f(2, 5)], [b(6)], [i(4)], [f(2, 1)])
case("diff 2 0", lambda x: jnp.diff(x, n=2, axis=0), [f(5, 2)])
case("ediff1d", jnp.ediff1d, [f(2, 3)])
case("trapezoid", lambda x: jnp.trapezoid(x, dx=0.5), [f(2, 5)], [i(4)])
case("cov", jnp.cov, [f(3, 7)], [f(6)])
case("corrcoef", jnp.corrcoef, [f(3, 7)])
case("polyval", jnp.polyval, [f(4), f(2, 3)], [i(3), i(3)], [f(1), f(2)], *([v("f32", *x), v("f32", INF, -INF, NAN)] for x in ([2], [2, 1])))

# Shapes and positions, also of arrays that several programs divide.
case("reshape", lambda x: x.reshape(3, 4), [f(2, 6)], [i(4, 3)])
case("ravel", jnp.ravel, [f(2, 3)], [f()], [f(0, 2)])
case("transpose", lambda x: x.transpose(2, 0, 1), [f(2, 3, 4)])
case("matrix_transpose", jnp.matrix_transpose, [f(2, 3, 4)])
case("swapaxes", lambda x: jnp.swapaxes(x, 0, -1), [f(2, 3, 4)])
case("moveaxis", lambda x: jnp.moveaxis(x, 0, -1), [f(2, 3, 4)])
case("expand_dims", lambda x: jnp.expand_dims(x, -1), [f(2, 3)])
case("squeeze", jnp.squeeze, [f(1, 3, 1)], [f(1, 1)])
case("squeeze 0", lambda x: jnp.squeeze(x, 0), [f(1, 3, 1)])
case("broadcast_to", lambda x: jnp.broadcast_to(x, (2, 3, 4)), [f(3, 1)])
case("astype", lambda x: x.astype(jnp.int32), [f(5)], [b(3)])
case("flip", jnp.flip, [f(2, 3)], [b(4)])
case("flip -1", lambda x: jnp.flip(x, -1), [f(2, 5)])
case("fliplr", jnp.fliplr, [f(2, 3)])
case("flipud", jnp.flipud, [f(2, 3)])
for shift in [2, -7]:
    case(f"roll {shift}", lambda x: jnp.roll(x, shift, axis=-1), [f(2, 5)], [i(3)], [f(2, 0)])
for turns in [0, 1, 2, 3, -1]:
    case(f"rot90 {turns}", lambda x: jnp.rot90(x, turns), [f(2, 3)])
case("rot90 axes", lambda x: jnp.rot90(x, 1, (2, 0)), [f(2, 3, 4)])
case("repeat 3 1", lambda x: jnp.repeat(x, 3, axis=1), [f(2, 3)], [b(2, 2)])
case("repeat 0 0", lambda x: jnp.repeat(x, 0, axis=0), [f(2, 3)])
case("tile 2,3", lambda x: jnp.tile(x, (2, 3)), [f(2, 3)], [i(3)], [f(2, 1, 2)], [f()])
case("pad 1,2", lambda x: jnp.pad(x, (1, 2)), [f(3)], [f(2, 3)], [b(2)], [f(0)])
case("pad each", lambda x: jnp.pad(x, ((0, 1), (2, 0)), constant_values=7), [f(2, 3)], [i(3, 2)])
case("atleast_1d", jnp.atleast_1d, [f()], [f(2)])
case("atleast_2d", jnp.atleast_2d, [f()], [f(2)], [f(2, 2)])
case("atleast_3d", jnp.atleast_3d, [f()], [f(2)], [f(2, 3)])
case("concatenate 0", lambda *x: jnp.concatenate(x, 0), [f(2, 3), f(1, 3)], [i(2), f(3), b(1)],
     [f(0, 2), f(2, 2)], [u(3)])
case("concatenate -1", lambda *x: jnp.concatenate(x, -1), [f(2, 3), f(2, 1), f(2, 4)])
case("stack 1", lambda *x: jnp.stack(x, 1), [f(2, 3), f(2, 3)], [i(2), b(2)])
case("stack -1", lambda *x: jnp.stack(x, -1), [f(2, 3), f(2, 3), f(2, 3)])
for name in "hstack vstack dstack column_stack".split():
    case(name, lambda *x, g=named(name): g(x), [f(3), f(3)], [f(2, 3), f(2, 3)], [f(), i()])
case("append", lambda x, y: jnp.append(x, y, axis=0), [f(2, 3), f(1, 3)])
case("split 3", lambda x: jnp.split(x, 3), [f(6)], [i(3, 2)])
case("split 1,4 1", lambda x: jnp.split(x, [1, 4], axis=1), [f(2, 6)], [f(1, 3)])
case("array_split 3", lambda x: jnp.array_split(x, 3), [f(7)], [f(2, 2)])
case("hsplit", lambda x: jnp.hsplit(x, 2), [f(2, 4)], [f(4)])
case("vsplit", lambda x: jnp.vsplit(x, 2), [f(4, 2)])
case("dsplit", lambda x: jnp.dsplit(x, 2), [f(2, 1, 4)])
case("unstack", lambda x: jnp.unstack(x, axis=1), [f(2, 3)])
case("delete 1 0", lambda x: jnp.delete(x, 1, axis=0), [f(3, 2)])
case("delete -1 1", lambda x: jnp.delete(x, -1, axis=1), [f(2, 3)])
case("insert 1 0", lambda x, y: jnp.insert(x, 1, y, axis=0), [f(3, 2), f(2)], [i(2), i()])
case("insert -1 1", lambda x, y: jnp.insert(x, -1, y, axis=1), [f(2, 3), f()])
case("broadcast_arrays", lambda *x: jnp.broadcast_arrays(*x), [f(2, 1), f(3)])
case("take_along_axis -1", lambda x, at: jnp.take_along_axis(x, at, -1),
     [f(2, 3), v("i32", 0, 2, -1, 1, shape=(2, 2))], [i(2, 3), v("i32", 3, -4, shape=(1, 2))],
     [f(2, 3), v("i32", 5, -3, 1, -9, shape=(2, 2))], [b(1, 3), v("i32", 3, 1, shape=(1, 2))],
     [u(1, 3), v("u8", 3, 1, shape=(1, 2))])
case("take_along_axis 0", lambda x, at: jnp.take_along_axis(x, at, 0), [f(4, 3), v("i32", 3, 1, 0, shape=(1, 3))])

# Indices.
case("x[a:b, c] 1", lambda x: x[1], [f(3, 2)], [i(4)])
case("x[a:b, c] -1", lambda x: x[..., -1], [f(3, 2)], [i(4)])
case("x[a:b, c] 1:3", lambda x: x[1:3], [f(5, 2)], [i(2)], [f(1, 2)])
case("x[a:b, c] :-1,1:", lambda x: x[:-1, 1:], [f(3, 4)], [f(1, 1)])
case("x[a:b:c] ::-1", lambda x: x[::-1], [f(5)], [f(0)], [i(3, 2)])
case("x[a:b:c] ::2,::-3", lambda x: x[::2, ::-3], [f(5, 8)])
case("x[a:b:c] 5:1:-2", lambda x: x[5:1:-2], [f(8)], [f(4)])
case(f"x[a:b:c] {-2**63}", lambda x: x[::-2**63 + 1], [f(4)])
case("x[a:b, c] -9:9", lambda x: x[-9:9], [f(4)])
case("x[a:b, c] None,...,0,None", lambda x: x[None, ..., 0, None], [f(2, 3)])
case("x[a:b, c] 0,...,1:", lambda x: x[0, ..., 1:], [f(2, 3, 4)], [f(2, 3)])
case("x[a:-b] 3:1", lambda x: x[3:1], [f(5)])
case("x[a:-b] 1:-1", lambda x: x[1:-1, :-1], [f(5, 3)], [i(2, 2)])

# New arrays.
case("arange 5", lambda: jnp.arange(5, dtype=jnp.int32), [])
case("arange 2,9,3", lambda: jnp.arange(2, 9, 3, dtype=jnp.int32), [])
case("arange 1,-2,-.25", lambda: jnp.arange(1, -2, -0.25, dtype=jnp.float32), [])
case("arange 9,1,-3", lambda: jnp.arange(9, 1, -3, dtype=jnp.uint8), [])
case("arange 3,1", lambda: jnp.arange(3, 1, dtype=jnp.int32), [])
case("arange 700 bf16", lambda: jnp.arange(700, dtype=jnp.bfloat16), [])
case("linspace", lambda: jnp.linspace(-1, 2, 7), [])
case("linspace 1", lambda: jnp.linspace(3, 9, 1), [])
case("linspace i32", lambda: jnp.linspace(-4, 5, 6, dtype=jnp.int32), [])
case("logspace", lambda: jnp.logspace(-1, 2, 5), [])
case("geomspace", lambda: jnp.geomspace(1, 64, 7), [])
case("geomspace negative", lambda: jnp.geomspace(-2, -32, 5), [])
case("zeros", lambda: jnp.zeros((2, 3)), [])
case("ones", lambda: jnp.ones((3,), jnp.bool_), [])
case("full", lambda: jnp.full((2, 2), 7, jnp.int32), [])
case("zeros_like", jnp.zeros_like, [f(2, 3)], [b(2)])
case("ones_like", jnp.ones_like, [i(2, 3)], [f(2, dtype="bf16")])
case("full_like", lambda x: jnp.full_like(x, 3), [f(2)], [u(2)])
case("eye", lambda: jnp.eye(3), [])
case("eye 2,4,1", lambda: jnp.eye(2, 4, 1, dtype=jnp.int32), [])
case("identity", lambda: jnp.identity(2), [])
case("tri", lambda: jnp.tri(3, 4, -1), [])
case("tril", jnp.tril, [f(3, 4)], [i(2, 3, 3)], [b(3, 3)])
case("tril -1", lambda x: jnp.tril(x, -1), [f(4, 3)])
case("triu", jnp.triu, [f(3, 4)])
case("triu 2", lambda x: jnp.triu(x, 2), [f(2, 3, 5)])
case("diagonal", jnp.diagonal, [f(3, 4)], [f(2, 3, 4)])
case("diagonal 1", lambda x: jnp.diagonal(x, 1, -1, 0), [f(3, 2, 4)], [f(5, 1, 2)])
case("diagonal -1", lambda x: jnp.diagonal(x, -1), [f(4, 3)])
case("trace", jnp.trace, [f(3, 4)], [i(3, 3)], [u(2, 2)])
case("diag", jnp.diag, [f(3)], [f(3, 4)])
case("diag 1", lambda x: jnp.diag(x, 1), [i(3)], [f(3, 4)])
case("diag -2", lambda x: jnp.diag(x, -2), [f(3)], [f(4, 3)])
case("diagflat", jnp.diagflat, [f(2, 2)])
case("vander", lambda x: jnp.vander(x, 4), [f(3)], [i(2)])
case("meshgrid", lambda *x: jnp.meshgrid(*x), [f(2), f(3)], [f(2), f(3), f(4)])
case("meshgrid ij", lambda *x: jnp.meshgrid(*x, indexing="ij"), [f(2), i(3)])
case("indices", lambda: jnp.indices((2, 3)), [])
for name in "bartlett blackman hamming hanning".split():
    case(name, lambda: named(name)(7), [])
    case(f"{name} 1", lambda: named(name)(1), [])

# Products.
for name in "matmul dot".split():
    case(name, named(name), [f(2, 3), f(3, 4)], [f(3), f(3)], [f(2, 3), f(3)], [i(2, 3), f(3, 2)],
         [f(2, 3, dtype="bf16"), f(3, 2, dtype="bf16")])
case("matmul", jnp.matmul, [f(2, 3, 4), f(4, 5)], [f(2, 1, 3, 4), f(3, 4, 2)], [f(3, 4), f(2, 4, 2)],
     [f(0, 3), f(3, 2)], [f(2, 0), f(0, 2)])
case("dot", jnp.dot, [f(2, 3, 4), f(5, 4, 2)], [f(), f(3)], [f(3), f(2, 3, 2)], [b(2, 3), b(3, 2)])
case("vdot", jnp.vdot, [f(2, 3), f(3, 2)], [i(4), i(4)])
case("inner", jnp.inner, [f(2, 3), f(4, 3)], [f(3), f(3)], [f(), f(2)])
case("outer", jnp.outer, [f(3), f(2)], [f(2, 2), i(3)])
case("matvec", jnp.matvec, [f(2, 3), f(3)], [f(2, 3, 4), f(2, 4)])
case("vecmat", jnp.vecmat, [f(3), f(3, 2)], [f(2, 3), f(2, 3, 4)])
case("vecdot", jnp.vecdot, [f(2, 3), f(3)], [f(2, 1, 3), f(4, 3)])
case("kron", jnp.kron, [f(2, 3), f(3, 2)], [f(2), f(2, 2)])
case("cross", jnp.cross, [f(3), f(3)], [f(2, 3), f(3)])
case("tensordot 1", lambda x, y: jnp.tensordot(x, y, 1), [f(2, 3), f(3, 4)], [f(2, 3, 4), f(4, 5)],
     [f(2, 3), f(3, 2, 2)])
case("tensordot 0,2 2,0", lambda x, y: jnp.tensordot(x, y, ((0, 2), (2, 0))), [f(2, 3, 4), f(4, 5, 2)])
case("tensordot 0", lambda x, y: jnp.tensordot(x, y, 0), [f(2), f(3)])
for text, shapes in [("ij,jk->ik", [(2, 3), (3, 4)]), ("ij,jk", [(2, 3), (3, 4)]), ("ij->ji", [(2, 3)]),
                     ("ij->", [(2, 3)]),
                     ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]), ("i,j->ij", [(2,), (3,)]),
                     ("ij,ij->", [(2, 3), (2, 3)]),
                     ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]), ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
                     ("ij,j->ij", [(2, 3), (3,)]), ("ba", [(2, 3)]), ("ijk,k->ji", [(2, 3, 4), (4,)]),
                     ("ij,kj,lj->ikl", [(2, 3), (3, 3), (4, 3)]), ("ij,k->j", [(2, 3), (4,)]),
                     ("i,i->i", [(3,), (3,)])]:
    case(f"einsum {text}", lambda *x: jnp.einsum(text, *x), [f(*shape) for shape in shapes])
case("einsum ij,jk->ik", lambda *x: jnp.einsum("ij,jk->ik", *x), [i(2, 3), i(3, 2)], [f(2, 3, dtype="bf16"), f(3, 2)])

# jax.nn.
for name in ("relu relu6 sigmoid silu softplus soft_sign log_sigmoid hard_tanh hard_sigmoid hard_silu mish "
             "selu sparse_plus sparse_sigmoid gelu").split():
    case(f"nn.{name}", named("nn." + name), [f(3, 4, low=-5, high=7)], [f(3)])
case("nn.relu", jax.nn.relu, [special()], [i(3)])
case("nn.gelu exact", lambda x: jax.nn.gelu(x, approximate=False), [f(3, 4, low=-5, high=5)])
case("nn.leaky_relu", jax.nn.leaky_relu, [f(5)])
case("nn.elu", jax.nn.elu, [f(5)], [v("f32", 1000, -1000)])
case("nn.celu 2", lambda x: jax.nn.celu(x, 2.0), [f(5)])
case("nn.squareplus", jax.nn.squareplus, [f(5)])
case("nn.log1mexp", jax.nn.log1mexp, [pos(6)], [v("f32", 1e-5, 30)])
case("nn.glu", jax.nn.glu, [f(2, 4)])
case("nn.glu 0", lambda x: jax.nn.glu(x, 0), [f(4, 3)])
case("nn.standardize", jax.nn.standardize, [f(3, 8)])
case("nn.one_hot", lambda x: jax.nn.one_hot(x, 4), [i(3, low=-1, high=4)], [u(2, 2)])
case("nn.tanh", jax.nn.tanh, [f(3)])
case("lax.clamp", lambda x: jax.lax.clamp(-1.0, x, 1.0), [f(5)])
case("lax.stop_gradient", jax.lax.stop_gradient, [f(3)])
case("lax.rsqrt", jax.lax.rsqrt, [pos(4)])
case("lax.fma", lambda x, y, z: x * y + z, [i(3), i(3), i(3)])
case("scipy.special.erf", jax.scipy.special.erf, [f(5)])
case("scipy.special.erfc", jax.scipy.special.erfc, [f(5)])
case("lax.bitcast_convert_type", lambda x: jax.lax.bitcast_convert_type(x, jnp.uint32), [f(4)])

# Elements at positions given by arrays. These numbers do not depend on the cases above.
seeds = iter(range(300001, 400000))
at = lambda *elements, shape=None: v("i32", *elements, shape=shape)
case("take 0", lambda x, i: jnp.take(x, i, axis=0), [f(3, 2), at(0, 2, -1, 5, -9)], [i(3), at(1, 3, shape=(2, 1))],
     [f(3, 2), v("i32", 1, shape=())], [f(3, 2), v("i32", shape=(0,))], [b(3), at(7, 1)], [u(3, 1), v("u8", 2, 200)])
case("take 1", lambda x, i: jnp.take(x, i, axis=1), [f(2, 3, 2), at(2, 0, 1, -4, shape=(2, 2))])
case("take clip", lambda x, i: jnp.take(x, i, axis=0, mode="clip"), [f(3, 2), at(0, 5, -1, -9)])
case("take wrap", lambda x, i: jnp.take(x, i, axis=0, mode="wrap"), [f(3, 2), at(0, 5, -1, -9)])
case("x[i, :, j] i", lambda x, i: x[i], [f(3, 2), at(0, 5, -1, -9)], [f(3), v("i32", -1, shape=())])
case("x[i, :, j] i,:,j", lambda x, i, j: x[i, :, j], [f(3, 4, 2), at(0, 5, -1), at(1, 0, -1)])
case("x[i, :, j] i,0", lambda x, i: x[i, 0], [f(3, 4, 2), at(0, 2, shape=(2, 1))])
case("x[i, :, j] 0,:,i", lambda x, i: x[0, :, i], [f(3, 4, 2), at(0, 1, -1)])
case("x[i, :, j] 1:,i,None,j", lambda x, i, j: x[1:, i, None, j], [f(3, 4, 2), at(0, 3, shape=(2, 1)), at(1, 0, 1)])
case("x[i, :, j] ::-2,i", lambda x, i: x[::-2, i], [f(5, 3), at(2, 0)])
for name in "set add multiply min max".split():
    update = lambda at, y, g=name: getattr(at, g)(y)
    case(f"x.at[i].{name}", lambda x, i, y, g=update: g(x.at[i], y),
         [f(3, 2), at(0, 2, 0, 5, -1, -9), f(6, 2)], [i(3), at(1, 1), i()], [f(2), v("i32", shape=(0,)), f()])
    case(f"x.at[i].{name} ::2,i", lambda x, i, y, g=update: g(x.at[::2, i], y), [f(4, 3), at(2, 2), f(2, 2)])
    case(f"x.at[i].{name} 1:,i", lambda x, i, y, g=update: g(x.at[1:, i], y), [f(4, 3), at(2, 0, 7), f(3, 3)])
    case(f"x.at[i].{name} i,:,j", lambda x, i, j, y, g=update: g(x.at[i, :, j], y),
         [f(3, 4, 2), at(0, 2, 0), at(1, 0, 1), f(3, 4)])
    case(f"x.at[i].{name} 1:3,0", lambda x, y, g=update: g(x.at[1:3, 0], y), [f(4, 3), f()], [i(4, 2), i(2)])
    case(f"x.at[i].{name} mask", lambda x, m, y, g=update: g(x.at[m], y), [f(2, 3), b(2, 3), f()])
case("x.at[i].get", lambda x, i: x.at[i].get(mode="fill"), [f(3, 2), at(0, 5, -1, -9)])
case("x.at[i].set clip", lambda x, i, y: x.at[i].set(y, mode="clip"), [f(4, 2), at(9, -1, -9), f(3, 2)])
case("put_along_axis", lambda x, i, y: jnp.put_along_axis(x, i, y, 1, inplace=False),
     [f(2, 3), at(0, 2, 1, 1, shape=(2, 2)), f(2, 2)])
case("put", lambda x, i, y: jnp.put(x, i, y, inplace=False), [f(2, 3), at(0, 5, -3), f(3)])
case("fill_diagonal", lambda x, y: jnp.fill_diagonal(x, y, inplace=False), [f(3, 3), f()], [i(2, 4), i()])
case("nonzero", lambda x: jnp.nonzero(x, size=4, fill_value=-7), [i(3, 3, low=-1, high=1)], [b(3)])
case("flatnonzero", lambda x: jnp.flatnonzero(x, size=2, fill_value=9), [b(2, 3)])
case("argwhere", lambda x: jnp.argwhere(x, size=5, fill_value=-1), [b(2, 3)])
case("compress", lambda x, m: jnp.compress(m, x, axis=1, size=2, fill_value=0), [f(2, 3), v("bool", 1, 0, 1)],
     [i(2, 3), v("bool", 0, 1)])
case("extract", lambda x, m: jnp.extract(m, x, size=4, fill_value=0), [f(2, 3), b(2, 3)])
case("bincount", lambda x: jnp.bincount(x, length=4), [at(0, 1, 1, 3, 5, -1)], [v("u8", 1, 1, 200)])
case("choose clip", lambda i, x, y: jnp.choose(i, [x, y], mode="clip"), [at(0, 1, 5, -1), f(4), f()])
case("choose wrap", lambda i, x, y: jnp.choose(i, [x, y], mode="wrap"),
     [at(0, 1, 5, -1, shape=(4, 1)), i(3), f(4, 3)])
case("select", lambda a, b, x, y: jnp.select([a, b], [x, y], 7), [b(2, 3), b(3), f(2, 3), f(2, 1)])
for name in "sum prod max min".split():
    case(f"ops.segment_{name}", lambda x, i, g=name: getattr(jax.ops, f"segment_{g}")(x, i, 3),
         [f(5, 2), at(2, 0, 2, -1, 7)], [i(3), at(0, 0, 2)])
# Gradients.
squares = lambda x: (x * x * jnp.arange(1, 1 + x.size, dtype=jnp.float32).reshape(x.shape)).sum()
case("take gradient", jax.grad(lambda x, i: squares(jnp.take(x, i, axis=0, mode="fill", fill_value=0))),
     [f(3, 2), at(0, 2, 2, -1, 5, -9)])
case("take clip gradient", jax.grad(lambda x, i: squares(jnp.take(x, i, axis=0, mode="clip"))),
     [f(3, 2), at(0, 2, 9, -1)])
for name in "set add min max".split():
    case(f"x.at[i].{name} gradient", jax.grad(lambda x, i, y, g=name: squares(getattr(x.at[i], g)(y))),
         [f(3, 2), at(0, 2, 5, -9), f(4, 2)])
case("x.at[i].add gradient of elements", jax.grad(lambda y, i, x: squares(x.at[i].add(y))),
     [f(4, 2), at(0, 0, 5, -1), f(3, 2)])
case("x.at[i].max gradient of elements", jax.grad(lambda y, i, x: squares(x.at[i].max(y))),
     [f(4, 2), at(0, 0, 5, -1), f(3, 2)])
case("take second gradient", jax.grad(lambda x, i: jax.grad(lambda x: squares(jnp.take(x, i, axis=0)))(x).sum()),
     [f(3, 2), at(0, 2, 2)])
# Order.
ties = lambda: v("f32", 2, NAN, -0.0, 0, -INF, INF, -0.0, 2, 0, -1, -NAN, 2)
orders = [[ties()], [f(2, 7)], [i(3, 5, high=2)], [b(2, 6)], [u(1, 4)], [f(2, 0)], [f(2, 1)],
          [f(9, dtype="bf16")], [f(2, 5, dtype="f16")], [i(11, dtype="i8")], [i(300, low=-9, high=9)],
          [v("u32", 4e9, 0, 3, 4e9)], [v("i32", -2**31, 2**31 - 1, 0, -1)], [f(700)]]
case("sort", jnp.sort, *orders)
case("sort 0", lambda x: jnp.sort(x, axis=0), [f(5, 3)], [i(6, 2, 2)])
case("sort descending", lambda x: jnp.sort(x, descending=True), *orders)
case("sort signs", lambda x: jnp.signbit(jnp.sort(x)), [v("f32", 0, -0.0, 0, -0.0, -1)], [v("bf16", 0, -0.0, 1, -0.0)])
case("argsort", jnp.argsort, *orders)
case("argsort 0", lambda x: jnp.argsort(x, axis=0), [i(5, 3)])
case("argsort descending", lambda x: jnp.argsort(x, descending=True), *orders)
case("top_k 3", lambda x: jax.lax.top_k(x, 3), [ties()], [f(2, 7)], [i(2, 9, high=0)], [b(2, 4)], [u(3)],
     [f(9, dtype="bf16")], [f(700)], [v("f32", -0.0, 0, -0.0, 0)])
case("top_k 2 0", lambda x: jax.lax.top_k(x, 2, axis=0), [i(5, 3)])
case("lax.sort 1", lambda *x: jax.lax.sort(x, num_keys=1), [i(9, high=-3), f(9), b(9)])
case("lax.sort 2 0", lambda *x: jax.lax.sort(x, num_keys=2, dimension=0), [b(7, 2), i(7, 2, high=-4), f(7, 2)])
case("lexsort", lambda *x: jnp.lexsort(x), [i(9, high=-4), b(9)], [f(5)], [b(3, 8), b(3, 8), b(3, 8)])
case("partition 2", lambda x: jnp.partition(x, 2), [ties()], [f(3, 6)], [i(5)], [u(4)])
case("partition -1 0", lambda x: jnp.partition(x, -1, axis=0), [f(4, 2)])
case("argpartition 2", lambda x: jnp.argpartition(x, 2), [f(3, 6)], [i(2, 9, high=-2)], [b(5)])
tables = lambda: [[v("f32", -INF, -1, -0.0, 0, 0, 2, INF, NAN, NAN), v("f32", NAN, 0, -0.0, 2, 3, -INF, INF)],
                  [v("i32", 1, 2, 2, 3), i(2, 3, low=0)], [f(0), f(2)], [v("i32", 0, 1, 4), f(4)]]
many = lambda: [v("i32", *[k * k // 37 for k in range(100)]), i(3, 9, low=-2, high=280)]
case("searchsorted left", lambda a, x: jnp.searchsorted(a, x), *tables(), many())
case("searchsorted right", lambda a, x: jnp.searchsorted(a, x, side="right"), *tables(), many())
case("digitize", jnp.digitize, [f(2, 5), v("f32", -1, 0, 0.5)], [i(6), v("i32", 3, 1, -2)], [f(2), f(0)])
case("digitize right", lambda x, e: jnp.digitize(x, e, right=True), [i(9), v("i32", -2, 1, 3)])
case("histogram", lambda x, e: jnp.histogram(x, e)[0], [f(2, 40), v("f32", -1, -0.5, 0, 1)],
     [i(30), v("f32", -5, 0, 0, 2)], [special(), v("f32", -2, 0, 3)])
case("interp", jnp.interp, [f(3, 4), v("f32", -1, -0.25, 0.5, 1), f(4)], [i(5), v("i32", -2, 0, 3), f(3)],
     [f(2), f(1), f(1)])
case("isin", jnp.isin, [i(3, 4), i(3)], [special(), v("f32", 0, NAN, 2.5)], [i(20, high=200), i(70, high=200)],
     [i(4), f(2, 2)], [b(3), b(1)])
sets = lambda: [[i(9), i(6)], [f(5), i(3)], [i(40, high=300), i(70, high=300)]]
case("unique 4", lambda x: jnp.unique(x, size=4), [i(3, 4)], [b(5)], [v("f32", 2, NAN, 1, NAN, 2)], [u(3)])
case("unique 6 9", lambda x: jnp.unique(x, size=6, fill_value=9), [i(3, 4)], [v("f32", 2, NAN, 1, NAN, 2)], [f(0)])
case("union1d", lambda x, y: jnp.union1d(x, y, size=12), *sets())
case("intersect1d", lambda x, y: jnp.intersect1d(x, y, size=3, fill_value=-7), *sets())
case("setdiff1d", lambda x, y: jnp.setdiff1d(x, y, size=5), *sets())
case("setxor1d", lambda x, y: jnp.setxor1d(x, y, size=8, fill_value=-7), *sets())
case("median", jnp.median, [f(3, 5)], [f(4)], [i(6)], [f(7, dtype="bf16")], [special()])
case("median 1", lambda x: jnp.median(x, axis=1), [f(3, 4, 2)])
case("nanmedian", jnp.nanmedian, [special()], [f(3, 5)], [v("f32", NAN, NAN)])
gaps = lambda: v("f32", 1, NAN, 3, -2, NAN, NAN, 0.5, 7, NAN, NAN, NAN, NAN, shape=(3, 4))
for method in "linear lower higher midpoint nearest".split():
    for name, q in [("quantile", 0.3), ("nanquantile", 0.7), ("percentile", 40), ("nanpercentile", 75)]:
        g = getattr(jnp, name)
        case(f"{name} {method}", lambda x: g(x, q, axis=-1, method=method), [f(3, 7)], [gaps()], [i(2, 4)], [f(2, 1)])
case("quantile several", lambda x, q: jnp.quantile(x, q, axis=(0, 2)), [f(2, 3, 4), v("f32", 0, 0.35, 1)])
case("nanquantile several", lambda x, q: jnp.nanquantile(x, q, axis=1, keepdims=True), [gaps(), v("f32", 0.25, 0.9)])
case("dtype= sum", lambda x: jnp.sum(x, axis=0, dtype=jnp.float32), [v("bf16", 256, 1, 1, 1)], [v("i32", 7, -9)])
# Special functions.
scipy = jax.scipy
case("lax.lgamma", jax.lax.lgamma, [f(9, low=0.25, high=9)], [v("f32", 1, 2, 0.5, 30, INF, -0.5, -2.5, 0, -1)], [f(5, low=1, high=5, dtype="bf16")])
case("lax.digamma", jax.lax.digamma, [f(9, low=0.25, high=9)], [v("f32", 1, 30, -0.5, -2.25, 0, -1)])
case("lax.lgamma gradient", jax.grad(lambda x: jax.lax.lgamma(x).sum()), [f(9, low=0.25, high=9)])
case("lax.digamma gradient", jax.grad(lambda x: jax.lax.digamma(x).sum()), [f(9, low=0.75, high=9)])
case("scipy.special.betaln", scipy.special.betaln, [pos(5), pos(5)])
case("scipy.special.entr", scipy.special.entr, [pos(5)], [v("f32", 0, -1, 1)])
case("scipy.special.erfinv", scipy.special.erfinv, [f(9, low=-0.984375, high=0.984375)], [v("f32", 1, -1, 0, 1.5)], [f(5, low=-0.75, high=0.75, dtype="f16")])
case("scipy.special.erfinv gradient", jax.grad(lambda x: scipy.special.erfinv(x).sum()), [f(9, low=-0.75, high=0.75)])
case("scipy.special.factorial", scipy.special.factorial, [f(5, low=0, high=6)], [v("f32", -1.5)])
case("scipy.special.logit", scipy.special.logit, [f(5, low=0.0625, high=0.9375)], [v("f32", 0, 1, -1)])
case("scipy.special.ndtr", scipy.special.ndtr, [f(9)], [v("f32", -INF, INF, -9)])
case("scipy.special.xlogy", scipy.special.xlogy, [f(2, 3), pos(3)], [v("f32", 0, 0, 0, 1), v("f32", 0, NAN, INF, 0)])
case("scipy.special.xlog1py", scipy.special.xlog1py, [f(2, 3), pos(3)], [v("f32", 0, 0, 0, 1), v("f32", -1, NAN, INF, -1)])
for name in "xlogy xlog1py".split():
    case(f"scipy.special.{name} gradient", jax.grad(lambda x, y, g=getattr(scipy.special, name): g(x, y).sum(), (0, 1)),
         [v("f32", 0, 1, -2), pos(3)])
# Windows at positions.
scalar = lambda k, dtype="i32": Operand(dtype, (), f"= {k}", [k])
case("lax.dynamic_slice", lambda x, i, j: jax.lax.dynamic_slice(x, (i, j), (2, 3)),
     *[[f(4, 5), scalar(k), scalar(n)] for k, n in [(0, 0), (1, 2), (3, 9), (-1, -5), (-9, 1)]], [b(2, 3), scalar(1, "u8"), scalar(0, "u8")])
case("lax.dynamic_slice_in_dim", lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 2, axis=1), [i(3, 4), scalar(3)], [f(3, 4), scalar(-3)])
case("lax.dynamic_index_in_dim", lambda x, i: jax.lax.dynamic_index_in_dim(x, i, 1, keepdims=False), [i(3, 4), scalar(3)], [f(3, 4), scalar(-3)])
case("lax.dynamic_update_slice", lambda x, y, i, j: jax.lax.dynamic_update_slice(x, y, (i, j)),
     *[[f(4, 5), f(2, 3), scalar(k), scalar(n)] for k, n in [(0, 0), (1, 2), (3, 9), (-1, -5)]])
case("lax.dynamic_update_slice_in_dim", lambda x, y, i: jax.lax.dynamic_update_slice_in_dim(x, y, i, axis=1), [i(3, 4), i(3, 2), scalar(3)])
case("lax.dynamic_update_index_in_dim", lambda x, y, i: jax.lax.dynamic_update_index_in_dim(x, y, i, axis=1), [i(3, 4), i(3), scalar(-1)])
case("lax.dynamic_slice gradient", jax.grad(lambda x, y, i: (jax.lax.dynamic_slice(x, (i, i), (2, 2)) * jax.lax.dynamic_slice(
    jax.lax.dynamic_update_slice(x, y, (i, i)), (1, 1), (2, 2))).sum(), (0, 1)), [f(3, 3), f(2, 1), scalar(1)])
# Linear algebra, of matrices that are far from singular ones.
near = lambda x: x + 4 * jnp.eye(x.shape[-1])
gram = lambda x: x @ x.swapaxes(-1, -2) + jnp.eye(x.shape[-2])
squares_ = lambda: [[f(4, 4)], [f(2, 3, 3)], [f(1, 1)]]
case("linalg.cholesky", lambda x: jnp.linalg.cholesky(gram(x)), *squares_())
case("linalg.cholesky indefinite", jnp.linalg.cholesky, [v("f32", 1, 2, 2, 1, shape=(2, 2))])
case("linalg.cholesky asymmetric", jnp.linalg.cholesky, [v("f32", 4, 3, 1, 9, shape=(2, 2))])
for name in "det inv slogdet".split():
    case(f"linalg.{name}", lambda x, g=getattr(jnp.linalg, name): g(near(x)), *squares_())
case("linalg.slogdet singular", jnp.linalg.slogdet, [v("f32", 1, 2, 2, 4, shape=(2, 2))])
case("linalg.solve", lambda x, y: jnp.linalg.solve(near(x), y), [f(4, 4), f(4)], [f(2, 3, 3), f(3, 2)], [f(3, 3), f(2, 3, 2)])
case("linalg.lstsq", lambda x, y: jnp.linalg.lstsq(x, y)[0], [f(5, 2), f(5)], [f(2, 4), f(2, 3)])
case("linalg.pinv", jnp.linalg.pinv, [f(5, 2)], [f(2, 2, 4)])
case("linalg.matrix_rank", jnp.linalg.matrix_rank, [f(5, 2)], [v("f32", 1, 2, 2, 4, shape=(2, 2))])
case("linalg.cond", lambda x: jnp.linalg.cond(near(x)), *squares_())
for name, order in [("fro", "fro"), ("nuc", "nuc"), ("1", 1), ("-1", -1), ("2", 2), ("-2", -2), ("inf", jnp.inf), ("-inf", -jnp.inf)]:
    case(f"linalg.matrix_norm {name}", lambda x, o=order: jnp.linalg.matrix_norm(x, ord=o), [f(4, 3)], [f(2, 2, 5)])
for power in (0, 1, 5, -2):
    case(f"linalg.matrix_power {power}", lambda x, p=power: jnp.linalg.matrix_power(near(x) / 4, p), [f(3, 3)])
case("linalg.multi_dot", lambda *x: jnp.linalg.multi_dot(x), [f(2, 5), f(5, 3), f(3, 4)], [f(5), f(5, 3), f(3)])
case("linalg.qr", lambda x: tuple(jnp.linalg.qr(x)), [f(5, 3)], [f(3, 5)], [f(2, 4, 4)])
case("linalg.svdvals", jnp.linalg.svdvals, [f(5, 3)], [f(2, 3, 4)])
case("linalg.svd", lambda x: (lambda u, s, vt: (jnp.abs(u), s, jnp.abs(vt)))(*jnp.linalg.svd(x, full_matrices=False)), [f(5, 3)], [f(2, 2, 4)])
case("linalg.eigvalsh", lambda x: jnp.linalg.eigvalsh(gram(x)), *squares_())
case("linalg.eigh", lambda x: (lambda w, v: (w, jnp.abs(v)))(*jnp.linalg.eigh(gram(x))), [f(4, 4)])
case("scipy.linalg.cho_solve", lambda x, y: scipy.linalg.cho_solve((jnp.linalg.cholesky(gram(x)), True), y), [f(3, 3), f(3, 2)])
case("scipy.linalg.solve_triangular lower", lambda x, y: scipy.linalg.solve_triangular(near(x), y, lower=True), [f(4, 4), f(4)], [f(3, 3), f(3, 2)])
case("scipy.linalg.solve_triangular upper", lambda x, y: scipy.linalg.solve_triangular(near(x), y), [f(4, 4), f(4)], [f(3, 3), f(3, 2)])
case("linalg.det gradient", jax.grad(lambda x: jnp.linalg.det(near(x))), [f(3, 3)])
case("linalg.solve gradient", jax.grad(lambda x, y: (jnp.linalg.solve(near(x), y) ** 2).sum(), (0, 1)), [f(3, 3), f(3, 2)])
case("linalg.cholesky gradient", jax.grad(lambda x: (jnp.linalg.cholesky(gram(x)) ** 3).sum()), [f(3, 3)])
case("linalg.qr gradient", jax.grad(lambda x: sum((y ** 3).sum() for y in jnp.linalg.qr(x))), [f(4, 3)])
case("linalg.svdvals gradient", jax.grad(lambda x: (jnp.linalg.svdvals(x) ** 3).sum()), [f(4, 3)])
case("linalg.eigvalsh gradient", jax.grad(lambda x: (jnp.linalg.eigvalsh(x) ** 3).sum()), [f(3, 3)])
case("linalg.pinv gradient", jax.grad(lambda x: (jnp.linalg.pinv(x + 2 * jnp.eye(4, 3)) ** 3).sum()), [f(4, 3)])
# Operations that are composed of many others.
seeds = iter(range(400001, 500000))
for text, shapes in [("ii->i", [(3, 3)]), ("ii", [(3, 3)]), ("iij->ji", [(3, 3, 2)]), ("iji,j->ji", [(2, 3, 2), (3,)]),
                     ("iii->i", [(2, 2, 2)]), ("...ij,...jk->...ik", [(3, 1, 2, 3), (4, 3, 2)]),
                     ("...i,...j", [(3, 1, 2), (4, 2)]), ("i...->i", [(2, 3, 2)]), ("i...,j...", [(2, 3), (4, 3)]),
                     ("...", [(2, 3)]), ("i->...i", [(2,)]), ("ij,jk", [(2, 1), (3, 4)]), ("ij,ij->ij", [(1, 3), (2, 1)]),
                     ("bA", [(2, 3)]), ("i,i,i->i", [(1,), (3,), (1,)]), ("ij,jk,kl,l->i", [(2, 3), (3, 4), (4, 2), (2,)]),
                     ("ab,bc,cd,de,ef,f->a", [(2, 3), (3, 2), (2, 4), (4, 2), (2, 3), (3,)]), ("i...->...", [(2, 3)]),
                     ("...a->a...", [(2, 3)]), ("...ii,i...->...", [(2, 3, 3), (3, 2)]), (",i", [(), (2,)]),
                     ("b...ij,b...kj->b...ik", [(2, 1, 3, 4), (2, 3, 2, 4)])]:
    case(f"einsum {text}", lambda *x: jnp.einsum(text, *x), [f(*shape) for shape in shapes])
case("einsum gradient", jax.grad(lambda x, y: (jnp.einsum("iij,...j->i...", x, y) ** 3).sum(), (0, 1)), [f(3, 3, 2), f(4, 1, 2)])
case("einsum singleton gradient", jax.grad(lambda x, y: (jnp.einsum("ij,jk", x, y) ** 3).sum(), (0, 1)), [f(2, 1), f(3, 4)])
for name in "cumsum cumprod cummax cummin".split():
    g = getattr(jax.lax, name)
    case(f"reverse= {name}", lambda x: g(x, axis=1, reverse=True), [f(2, 5)], [i(2, 3)], [f(2, 0)], [f(2, 3, 2)])
    case(f"reverse= {name} gradient", jax.grad(lambda x: squares(g(x, axis=0, reverse=True))), [f(4, 3)])
logs = lambda: [[f(2, 5)], [v("f32", 500, 501, -500, 3, -INF, -INF, -INF, 2, shape=(2, 4))], [v("f32", -INF, INF, 1, NAN, 3, 2, shape=(1, 6))],
                [f(2, 0)], [f(2, 7, dtype="bf16")], [f(2, 4, 2)]]
case("lax.cumlogsumexp 1", lambda x: jax.lax.cumlogsumexp(x, axis=1), *logs())
case("lax.cumlogsumexp reverse", lambda x: jax.lax.cumlogsumexp(x, axis=1, reverse=True), *logs())
case("lax.cumlogsumexp gradient", jax.grad(lambda x: squares(jax.lax.cumlogsumexp(x, axis=1))), [f(2, 5)], [v("f32", 300, 1, 2, -200, shape=(1, 4))])
case("lax.cumlogsumexp reverse gradient", jax.grad(lambda x: squares(jax.lax.cumlogsumexp(x, axis=0, reverse=True))), [f(5, 2)])
heads = lambda n=2, k=2, b=(2,), dtype="f32": [f(*b, 4, n, 3, dtype=dtype), f(*b, 5, k, 3, dtype=dtype), f(*b, 5, k, 3, dtype=dtype)]
attend = jax.nn.dot_product_attention
case("nn.dot_product_attention", attend, heads(), heads(4, 2), heads(4, 1), heads(b=()), heads(dtype="bf16"))
case("nn.dot_product_attention causal", lambda *x: attend(*x, is_causal=True), heads(), heads(4, 2))
case("nn.dot_product_attention scale", lambda *x: attend(*x, scale=0.3), heads())
case("nn.dot_product_attention bias", lambda *x: attend(*x), heads() + [f(2, 2, 4, 5)], heads(4, 2) + [f(4, 4, 5)],
     heads(4, 2) + [f(1, 1, 1, 5)])
case("nn.dot_product_attention mask", lambda q, k, v, m: attend(q, k, v, mask=m), heads() + [b(2, 2, 4, 5)], heads(4, 2) + [b(2, 1, 4, 5)],
     heads(4, 2) + [v("bool", 0, 0, 0, 0, 0, shape=(1, 1, 1, 5))])
for left, right in [(1, 0), (0, 2), (9, 1)]:
    case(f"nn.dot_product_attention window {left} {right}", lambda *x: attend(*x, local_window_size=(left, right)), heads(4, 2))
case("nn.dot_product_attention lengths", lambda q, k, v, m, n: attend(q, k, v, query_seq_lengths=m, key_value_seq_lengths=n, is_causal=True),
     heads(4, 2) + [v("i32", 3, 0), v("i32", 1, 4)])
case("nn.dot_product_attention residual", lambda *x: attend(*x, return_residual=True), heads(4, 2), heads(b=()))
case("nn.dot_product_attention gradient", jax.grad(lambda *x: (attend(*x, is_causal=True) ** 3).sum(), (0, 1, 2, 3)), heads(4, 2) + [f(4, 1, 5)])
unit = lambda *shape: f(*shape, low=0.015625, high=0.984375)
case("scipy.special.betainc", scipy.special.betainc, [pos(9), pos(9), unit(9)], [f(7, low=0.25, high=40), f(7, low=0.25, high=40), unit(7)],
     [v("f32", 0, 1, 0, 2, -1, 2, INF, 2), v("f32", 1, 0, 0, 2, 1, 2, 1, 2), v("f32", 0.5, 0.5, 0.5, 0, 0.5, 1, 0.5, 2)], [pos(2, 1), pos(3), unit(3)])
case("scipy.special.betainc gradient", jax.grad(lambda a, b, x: scipy.special.betainc(a, b, x).sum(), 2), [pos(7), pos(7), unit(7)])
edge = lambda: [v("f32", 0, 1, INF, 1, -1, 2, NAN, 2), v("f32", 1, 0, 1, INF, 1, -1, 1, NAN)]
for name in "gammainc gammaincc".split():
    g = getattr(scipy.special, name)
    case(f"scipy.special.{name}", g, [pos(9), pos(9)], [f(9, low=0.25, high=40), f(9, low=0.25, high=40)], edge(), [pos(2, 1), i(3, low=0)])
    case(f"scipy.special.{name} gradient", jax.grad(lambda a, x: g(a, x).sum(), (0, 1)), [pos(9), pos(9)], [f(9, low=3, high=9), f(9, low=3, high=9)])
# Initializers, by their seed.
init = jax.nn.initializers
fans = dict(in_axis=1, out_axis=0)
for name, g in [("zeros", init.zeros), ("ones", init.ones), ("constant", init.constant(2.5)), ("uniform", init.uniform(0.5)), ("normal", init.normal(0.5)),
                ("truncated_normal", init.truncated_normal(0.5, lower=-1.0, upper=3.0)), ("variance_scaling in", init.variance_scaling(0.5, "fan_in", "normal")),
                ("variance_scaling out", init.variance_scaling(0.5, "fan_out", "uniform", batch_axis=0)),
                ("variance_scaling geometric", init.variance_scaling(3.0, "fan_geo_avg", "truncated_normal", in_axis=(0, 1))),
                ("orthogonal", init.orthogonal(2.0)), ("orthogonal column", init.orthogonal(column_axis=0)), ("delta_orthogonal", init.delta_orthogonal(0.5))] + [
                (f"{n}_{m}", getattr(init, f"{n}_{m}")(**fans)) for n in "glorot lecun he".split() for m in "uniform normal".split()]:
    shapes = [(4, 2, 3), (1, 3, 5)] if "delta" in name else [(3, 4), (4, 3, 5)]
    case(f"nn.initializers.{name}", lambda seed: [g(jax.random.key(7), shape) for shape in shapes], [scalar(7)])

"""Functions as data: a small language that our binary, JAX and torch each run with their own operations.

A program is `{"parameters": n, "steps": [[operation, operands, attributes, results]], "results": [value]}`; see
`program.rs`, which has the same operations.
"""


class Value:
    """A value of a program that is being written."""

    def __init__(self, program, number):
        self.program, self.number = program, number

    def __getattr__(self, operation):
        return lambda *operands, **attributes: self.program.step(operation, self, *operands, **attributes)

    def __add__(self, other):
        return self.program.step("add", self, other)

    def __sub__(self, other):
        return self.program.step("sub", self, other)

    def __mul__(self, other):
        return self.program.step("mul", self, other)

    def __truediv__(self, other):
        return self.program.step("div", self, other)

    def __matmul__(self, other):
        return self.program.step("matmul", self, other)


class Program:
    def __init__(self, parameters):
        self.parameters, self.steps, self.count = parameters, [], parameters

    def step(self, operation, *operands, results=1, **attributes):
        written = [x.number if isinstance(x, Value) else {"number": float(x)} for x in operands]
        self.steps.append([operation, written, attributes, results])
        made = [Value(self, self.count + i) for i in range(results)]
        self.count += results
        return made[0] if results == 1 else made


def program(parameters, function):
    """The program of a Python function of `parameters` values and a `Program`, which returns a value or several."""
    made = Program(parameters)
    results = function(made, *(Value(made, i) for i in range(parameters)))
    results = results if isinstance(results, (list, tuple)) else [results]
    return {"parameters": parameters, "steps": made.steps, "results": [x.number for x in results]}


def run(operations, code, arguments):
    """Runs a program with the operations of a library."""
    values = list(arguments)
    for operation, operands, attributes, count in code["steps"]:
        given = [x["number"] if isinstance(x, dict) else values[x] for x in operands]
        made = getattr(operations, operation)(*given, **attributes)
        values.extend(made if isinstance(made, (list, tuple)) else [made])
    return [values[i] for i in code["results"]]


class Jax:
    """Operations of JAX; `wide` ones compute in float64, but draw the same random numbers."""

    def __init__(self, wide=False):
        import jax
        import jax.numpy as jnp

        self.jax, self.jnp, self.drawn = jax, jnp, {"f32": jnp.float32, "bf16": jnp.bfloat16}
        self.dtypes = (dict.fromkeys(self.drawn, jnp.float64) if wide else self.drawn) | {"i32": jnp.int32}

    def loss(self, results):
        jnp = self.jnp
        return sum((jnp.square(x.astype(self.dtypes["f32"])) * 0.5).sum() for x in results if jnp.issubdtype(x.dtype, jnp.floating))

    def gradient(self, code, by):
        def value(varied, rest):
            return self.loss(run(self, code, [*varied, *rest]))

        def gradient(*arguments):
            return self.jax.grad(value)(list(arguments[:by]), list(arguments[by:]))

        return gradient

    def __getattr__(self, operation):
        jax, jnp = self.jax, self.jnp
        plain = {
            "neg": jnp.negative, "abs": jnp.abs, "exp": jnp.exp, "log": jnp.log, "log1p": jnp.log1p, "sin": jnp.sin,
            "cos": jnp.cos, "tanh": jnp.tanh, "sqrt": jnp.sqrt, "rsqrt": jax.lax.rsqrt, "square": jnp.square,
            "erf": jax.scipy.special.erf, "sigmoid": jax.nn.sigmoid, "relu": jax.nn.relu, "silu": jax.nn.silu,
            "gelu": jax.nn.gelu, "softplus": jax.nn.softplus, "stop_gradient": jax.lax.stop_gradient,
            "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
            "maximum": jnp.maximum, "minimum": jnp.minimum, "gt": lambda x, y: x > y, "le": lambda x, y: x <= y,
            "select": jnp.where, "matmul": jnp.matmul, "tril": jnp.tril,
        }
        return plain[operation]

    def cast(self, x, dtype):
        return x.astype(self.dtypes[dtype])

    def fold(self, name, x, axes, keep=False):
        return getattr(self.jnp, name)(x, axis=tuple(axes), keepdims=keep)

    def sum(self, x, **given):
        return self.fold("sum", x, **given)

    def mean(self, x, **given):
        return self.fold("mean", x, **given)

    def max(self, x, **given):
        return self.fold("max", x, **given)

    def min(self, x, **given):
        return self.fold("min", x, **given)

    def prod(self, x, **given):
        return self.fold("prod", x, **given)

    def var(self, x, **given):
        return self.fold("var", x, **given)

    def logsumexp(self, x, axes, keep=False):
        return self.jax.nn.logsumexp(x, axis=tuple(axes), keepdims=keep)

    def softmax(self, x, axes):
        return self.jax.nn.softmax(x, axis=tuple(axes))

    def log_softmax(self, x, axes):
        return self.jax.nn.log_softmax(x, axis=tuple(axes))

    def standardize(self, x, axes):
        return self.jax.nn.standardize(x, axis=tuple(axes), epsilon=1e-5)

    def argmax(self, x, axis):
        return self.jnp.argmax(x, axis)

    def argmin(self, x, axis):
        return self.jnp.argmin(x, axis)

    def cumsum(self, x, axis):
        return self.jnp.cumsum(x, axis)

    def cumprod(self, x, axis):
        return self.jnp.cumprod(x, axis)

    def cummax(self, x, axis):
        return self.jax.lax.cummax(x, axis)

    def sort(self, x, axis):
        return self.jnp.sort(x, axis)

    def argsort(self, x, axis):
        return self.jnp.argsort(x, axis)

    def sort_pairs(self, x, y, axis):
        return self.jax.lax.sort((x, y), axis, num_keys=1)

    def top_k(self, x, k, axis):
        return self.jax.lax.top_k(x, k, axis=axis)

    def reshape(self, x, shape):
        return x.reshape(shape)

    def broadcast(self, x, shape):
        return self.jnp.broadcast_to(x, shape)

    def transpose(self, x, axes):
        return x.transpose(axes)

    def expand_dims(self, x, axis):
        return self.jnp.expand_dims(x, axis)

    def flip(self, x, axis):
        return self.jnp.flip(x, axis)

    def roll(self, x, by, axis):
        return self.jnp.roll(x, by, axis)

    def pad(self, x, widths):
        return self.jnp.pad(x, list(zip(widths[::2], widths[1::2])))

    def slice(self, x, starts, ends):
        return x[tuple(slice(a, b) for a, b in zip(starts, ends))]

    def concatenate(self, *arrays, axis):
        return self.jnp.concatenate(arrays, axis)

    def stack(self, *arrays, axis):
        return self.jnp.stack(arrays, axis)

    def one_hot(self, x, classes, dtype):
        return self.jax.nn.one_hot(x, classes, dtype=self.dtypes[dtype])

    def take(self, x, rows, axis):
        return self.jnp.take(x, rows, axis, mode="clip")

    def take_along_axis(self, x, rows, axis):
        return self.jnp.take_along_axis(x, rows, axis, mode="clip")

    def scatter_add(self, x, rows, by):
        return x.at[rows].add(by)

    def segment_sum(self, x, rows, segments):
        return self.jax.ops.segment_sum(x, rows, segments)

    def einsum(self, *arrays, subscripts):
        return self.jnp.einsum(subscripts, *arrays)

    def conv(self, x, w, layout, strides, padding, groups):
        names = ("NWC", "WIO", "NWC") if layout == "NHWC" else ("NCW", "OIW", "NCW")
        if x.ndim == 4:
            names = ("NHWC", "HWIO", "NHWC") if layout == "NHWC" else ("NCHW", "OIHW", "NCHW")
        return self.jax.lax.conv_general_dilated(
            x, w, strides, padding, dimension_numbers=names, feature_group_count=groups
        )

    def max_pool(self, x, window, strides, padding):
        return self.jax.lax.reduce_window(x, -self.jnp.inf, self.jax.lax.max, window, strides, padding)

    def avg_pool(self, x, window, strides, padding):
        total = self.jax.lax.reduce_window(x, 0.0, self.jax.lax.add, window, strides, padding)
        count = 1
        for extent in window:
            count *= extent
        return total * (1 / count)

    def attention(self, q, k, v, causal):
        scores = self.jnp.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5)
        if causal:
            scores = self.jnp.where(self.jnp.tril(self.jnp.ones(scores.shape[-2:], bool)), scores, -self.jnp.inf)
        return self.jnp.einsum("bhqk,bhkd->bhqd", self.jax.nn.softmax(scores, -1), v)

    def shipped_softmax(self, x):
        return self.jax.nn.softmax(x, -1)

    def shipped_layer_norm(self, x, gamma, beta):
        return self.jax.nn.standardize(x, epsilon=1e-5) * gamma + beta

    def shipped_rms_norm(self, x, gamma):
        return x * self.jax.lax.rsqrt(self.jnp.square(x).mean(-1, keepdims=True) + 1e-5) * gamma

    def random_uniform(self, seed, shape, dtype):
        return self.jax.random.uniform(self.jax.random.key(seed), shape, self.drawn[dtype])

    def random_normal(self, seed, shape, dtype):
        return self.jax.random.normal(self.jax.random.key(seed), shape, self.drawn[dtype])

    def random_bits(self, seed, shape, dtype):
        return self.jax.random.bits(self.jax.random.key(seed), shape, "uint32")

    def random_bernoulli(self, seed, shape, dtype):
        return self.jax.random.bernoulli(self.jax.random.key(seed), 0.5, shape).astype(self.dtypes[dtype])

    def random_permutation(self, seed, shape, dtype):
        count = 1
        for extent in shape:
            count *= extent
        return self.jax.random.permutation(self.jax.random.key(seed), count)

    def scan(self, *arrays, body, carried, divided, reverse=False):
        init, xs, rest = arrays[:carried], arrays[carried : carried + divided], arrays[carried + divided :]

        def step(carry, x):
            results = run(self, body, [*carry, *x, *rest])
            return tuple(results[:carried]), tuple(results[carried:])

        last, stacked = self.jax.lax.scan(step, tuple(init), tuple(xs), reverse=reverse)
        return [*last, *stacked]

    def vmap(self, *arrays, body, batched):
        each, rest = arrays[:batched], arrays[batched:]
        return self.jax.vmap(lambda *each: run(self, body, [*each, *rest]))(*each)

    def grad(self, *arrays, body, by):
        return self.gradient(body, by)(*arrays)

    def checkpoint(self, *arrays, body):
        return self.jax.checkpoint(lambda *arrays: run(self, body, arrays))(*arrays)

    def linear(self, a, b):
        return self.jax.lax.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (a, b))[1]


class Torch:
    """Operations of torch: those that it has under another name only. Programs with others are left to JAX."""

    def __init__(self):
        import torch

        self.torch, self.F = torch, torch.nn.functional
        self.dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "i32": torch.int32}

    def loss(self, results):
        return sum((x.float().square() * 0.5).sum() for x in results if x.is_floating_point())

    def __getattr__(self, operation):
        torch, F = self.torch, self.F
        plain = {
            "neg": torch.neg, "abs": torch.abs, "exp": torch.exp, "log": torch.log, "log1p": torch.log1p,
            "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
            "square": torch.square, "erf": torch.erf, "sigmoid": torch.sigmoid, "relu": torch.relu, "silu": F.silu,
            "gelu": lambda x: F.gelu(x, approximate="tanh"), "softplus": F.softplus,
            "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
            "gt": lambda x, y: x > y, "le": lambda x, y: x <= y, "matmul": torch.matmul, "tril": torch.tril,
        }
        if operation not in plain:
            raise AttributeError(operation)
        return plain[operation]

    def cast(self, x, dtype):
        return x.to(self.dtypes[dtype])

    def maximum(self, x, y):
        return self.torch.maximum(x, y) if self.torch.is_tensor(y) else x.clamp(min=y)

    def minimum(self, x, y):
        return self.torch.minimum(x, y) if self.torch.is_tensor(y) else x.clamp(max=y)

    def select(self, condition, x, y):
        return self.torch.where(condition, x, y)

    def sum(self, x, axes, keep=False):
        return x.sum(axes, keepdim=keep)

    def mean(self, x, axes, keep=False):
        return x.mean(axes, keepdim=keep)

    def max(self, x, axes, keep=False):
        return x.amax(axes, keepdim=keep)

    def min(self, x, axes, keep=False):
        return x.amin(axes, keepdim=keep)

    def var(self, x, axes, keep=False):
        return x.var(axes, correction=0, keepdim=keep)

    def logsumexp(self, x, axes, keep=False):
        return x.logsumexp(axes, keepdim=keep)

    def softmax(self, x, axes):
        return x.softmax(*axes)

    def log_softmax(self, x, axes):
        return x.log_softmax(*axes)

    def argmax(self, x, axis):
        return x.argmax(axis)

    def argmin(self, x, axis):
        return x.argmin(axis)

    def cumsum(self, x, axis):
        return x.cumsum(axis)

    def cumprod(self, x, axis):
        return x.cumprod(axis)

    def sort(self, x, axis):
        return x.sort(axis).values

    def argsort(self, x, axis):
        return x.argsort(axis)

    def top_k(self, x, k, axis):
        return list(x.topk(k, axis))

    def reshape(self, x, shape):
        return x.reshape(shape)

    def broadcast(self, x, shape):
        return x.expand(shape)

    def transpose(self, x, axes):
        return x.permute(axes)

    def expand_dims(self, x, axis):
        return x.unsqueeze(axis)

    def flip(self, x, axis):
        return x.flip(axis)

    def roll(self, x, by, axis):
        return x.roll(by, axis)

    def pad(self, x, widths):
        pairs = list(zip(widths[::2], widths[1::2]))
        return self.F.pad(x, [n for pair in reversed(pairs) for n in pair])

    def slice(self, x, starts, ends):
        return x[tuple(slice(a, b) for a, b in zip(starts, ends))]

    def concatenate(self, *arrays, axis):
        return self.torch.cat(arrays, axis)

    def stack(self, *arrays, axis):
        return self.torch.stack(arrays, axis)

    def take(self, x, rows, axis):
        return x.index_select(axis, rows) if axis == 0 and rows.ndim == 1 else x[rows]

    def take_along_axis(self, x, rows, axis):
        return x.gather(axis, rows.long())

    def scatter_add(self, x, rows, by):
        return x.index_add(0, rows, by)

    def einsum(self, *arrays, subscripts):
        return self.torch.einsum(subscripts, *arrays)

    def conv(self, x, w, layout, strides, padding, groups):
        if layout != "NCHW" or padding != "VALID" or x.ndim != 4:
            raise AttributeError("conv")
        return self.F.conv2d(x, w, stride=strides, groups=groups)

    def attention(self, q, k, v, causal):
        return self.F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def shipped_softmax(self, x):
        return x.softmax(-1)

    def shipped_layer_norm(self, x, gamma, beta):
        return self.F.layer_norm(x, x.shape[-1:], gamma, beta, 1e-5)

    def shipped_rms_norm(self, x, gamma):
        return self.F.rms_norm(x, x.shape[-1:], gamma, 1e-5)

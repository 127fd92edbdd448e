"""Families of cases: each draws a function and its inputs, of about a given number of elements.

A family is a function of a `Draw` that returns `(inputs, program, differentiable inputs)`. An input is `(shape, kind)`;
kinds are `normal`, `positive`, `unit` (between 0.5 and 1), and a number for integers below it. `0` differentiable inputs:
the family has no gradient.
"""
import math

from .programs import program

FAMILIES = {}
# Multiplications and additions of a case's forward pass at most: a tenth of a second on two cores.
WORK = 4e9
# Elements of an array at most, here and where sizes are drawn.
LARGEST = 1 << 24


def family(function):
    FAMILIES[function.__name__] = function
    return function


class Draw:
    """Random choices of one case."""

    def __init__(self, rng, size, dtype):
        self.rng, self.size, self.dtype = rng, size, dtype

    def integer(self, low, high):
        """Log-uniform, both ends included."""
        low, high = max(1, low), max(1, low, high)
        return min(high, int(round(math.exp(self.rng.uniform(math.log(low), math.log(high + 0.5))))))

    def one(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def shape(self, rank, size=None):
        """Extents whose product is about the size, in any proportion."""
        size = self.size if size is None else size
        parts = self.rng.dirichlet([1.0] * rank)
        return [max(1, round(size**part)) for part in parts]

    def within(self, work, extents, arrays=lambda *extents: ()):
        """Halves the largest extent until a product of them is within the work of a case, and every array is small enough."""
        while work * math.prod(extents) > WORK or max(arrays(*extents), default=0) > LARGEST:
            largest = extents.index(max(extents))
            extents[largest] //= 2
        return extents


UNARY = ("neg", "abs", "exp", "sin", "cos", "tanh", "sigmoid", "relu", "silu", "gelu", "softplus", "square", "erf")


@family
def elementwise(draw):
    shape = draw.shape(draw.one(1, 2, 3))
    second = [1 if draw.rng.random() < 0.3 else extent for extent in shape]
    steps = [draw.one(*UNARY, "add", "mul", "sub", "maximum", "scale") for _ in range(draw.integer(1, 8))]

    def function(p, x, y):
        h = x
        for step in steps:
            # Bounded, so that no chain overflows.
            h = h * 0.7 if step == "scale" else getattr(h, step)(y) if step in ("add", "mul", "sub", "maximum") else getattr(h, step)()
            h = h.tanh() if step in ("exp", "square", "mul") else h
        return h + y

    return [(shape, "normal"), (second, "normal")], program(2, function), 2


@family
def reduction(draw):
    shape = draw.shape(draw.one(1, 2, 3, 4))
    axes = sorted(draw.rng.choice(len(shape), draw.rng.integers(1, len(shape) + 1), replace=False).tolist())
    kind = draw.one("sum", "mean", "max", "min", "var", "logsumexp")
    return [(shape, "normal")], program(1, lambda p, x: getattr(x, kind)(axes=axes)), 1


@family
def position(draw):
    shape = draw.shape(draw.one(1, 2, 3))
    kind, axis = draw.one("argmax", "argmin"), int(draw.rng.integers(len(shape)))
    return [(shape, "normal")], program(1, lambda p, x: getattr(x, kind)(axis=axis)), 0


@family
def softmax(draw):
    shape = draw.shape(draw.one(1, 2, 3))
    kind, axis = draw.one("softmax", "log_softmax"), int(draw.rng.integers(len(shape)))
    return [(shape, "normal")], program(1, lambda p, x: getattr(x, kind)(axes=[axis])), 1


@family
def norm(draw):
    shape = draw.shape(draw.one(2, 3))

    def layer(p, x, gamma, beta):
        centred = x - x.mean(axes=[-1], keep=True)
        return centred * (centred.square().mean(axes=[-1], keep=True) + 1e-5).rsqrt() * gamma + beta

    def root(p, x, gamma, beta):
        return x * (x.square().mean(axes=[-1], keep=True) + 1e-5).rsqrt() * gamma + beta

    inputs = [(shape, "normal"), (shape[-1:], "unit"), (shape[-1:], "normal")]
    return inputs, program(3, draw.one(layer, root)), 3


@family
def shipped_rows(draw):
    shape = draw.shape(2)
    kind = draw.one("softmax", "layer_norm", "rms_norm")
    inputs = [(shape, "normal"), (shape[-1:], "unit"), (shape[-1:], "normal")][: {"softmax": 1, "rms_norm": 2}.get(kind, 3)]
    return inputs, program(len(inputs), lambda p, x, *more: getattr(x, f"shipped_{kind}")(*more)), len(inputs)


@family
def loss(draw):
    rows, classes = draw.shape(2)
    classes = max(2, classes)
    if draw.one(True, False):
        def entropy(p, z, labels):
            picked = z.cast(dtype="f32").log_softmax(axes=[-1]).take_along_axis(labels, axis=-1)
            return picked.mean(axes=[0, 1]) * -1.0

        return [([rows, classes], "normal"), ([rows, 1], classes)], program(2, entropy), 1

    def binary(p, z, y):
        return (z.softplus() - z * y).mean(axes=[0, 1])

    return [([rows, classes], "normal"), ([rows, classes], "unit")], program(2, binary), 1


@family
def product(draw):
    m, k, n = draw.within(1, draw.shape(3, draw.size * draw.integer(1, 1024)), lambda m, k, n: (m * k, k * n, m * n))
    return [([m, k], "normal"), ([k, n], "normal")], program(2, lambda p, x, w: x @ w), 2


@family
def product_of_rows(draw):
    rows, k = draw.integer(1, 8), draw.integer(1, 4096)
    n = max(1, min(draw.size, LARGEST) // k)
    return [([rows, k], "normal"), ([k, n], "normal")], program(2, lambda p, x, w: x @ w), 2


@family
def batched_product(draw):
    extents = draw.shape(4, draw.size * draw.integer(1, 64))
    b, m, k, n = draw.within(1, extents, lambda b, m, k, n: (b * m * k, b * k * n, b * m * n))
    return [([b, m, k], "normal"), ([b, k, n], "normal")], program(2, lambda p, x, w: x @ w), 2


@family
def dense_layer(draw):
    rows, k, n = draw.within(1, draw.shape(3, draw.size * draw.integer(1, 256)), lambda m, k, n: (m * k, k * n, m * n))
    kind = draw.one("relu", "gelu", "tanh", "silu")
    inputs = [([rows, k], "normal"), ([k, n], "normal"), ([n], "normal")]
    return inputs, program(3, lambda p, x, w, b: getattr(x @ w + b, kind)()), 3


def heads(draw):
    d = draw.one(16, 32, 64, 128)
    batch, count = draw.integer(1, 8), draw.integer(1, 16)
    positions = max(1, draw.size // (batch * count * d))
    positions, = draw.within(2 * batch * count * d, [positions, positions])[:1]
    return [batch, count, min(positions, 4096), d]


@family
def shipped_attention(draw):
    shape, causal = heads(draw), draw.one(True, False)
    return [(shape, "normal")] * 3, program(3, lambda p, q, k, v: q.attention(k, v, causal=causal)), 3


@family
def composed_attention(draw):
    shape = heads(draw)

    def attend(p, q, k, v):
        scores = p.step("einsum", q, k, subscripts="bhqd,bhkd->bhqk") * (shape[-1] ** -0.5)
        return p.step("einsum", scores.softmax(axes=[-1]), v, subscripts="bhqk,bhkd->bhqd")

    return [(shape, "normal")] * 3, program(3, attend), 3


def convolved(draw, layout):
    features, window = draw.integer(1, 128), draw.one(1, 3, 5)
    batch = draw.integer(1, 16)
    side = max(window, int(math.sqrt(draw.size / (batch * features))))
    outputs, groups = draw.integer(1, 128), 1
    if draw.rng.random() < 0.2:
        outputs, groups = features, features
    batch, side, _, outputs = draw.within(window**2 * features / groups, [batch, side, side, outputs])
    side, outputs = max(side, window), outputs - outputs % groups or groups
    strides, padding = [draw.one(1, 1, 2)] * 2, draw.one("SAME", "VALID")
    x = [batch, side, side, features] if layout == "NHWC" else [batch, features, side, side]
    w = [window, window, features // groups, outputs] if layout == "NHWC" else [outputs, features // groups, window, window]
    given = {"layout": layout, "strides": strides, "padding": padding, "groups": groups}
    return [(x, "normal"), (w, "normal")], program(2, lambda p, x, w: x.conv(w, **given)), 2


@family
def convolution_nhwc(draw):
    return convolved(draw, "NHWC")


@family
def convolution_nchw(draw):
    return convolved(draw, "NCHW")


@family
def pool(draw):
    features, batch, window = draw.integer(1, 64), draw.integer(1, 16), draw.one(2, 3)
    side = max(window, int(math.sqrt(draw.size / (batch * features))))
    stride, last = draw.one(1, 2, window), draw.one(True, False)
    both = lambda n: [1, n, n, 1] if last else [1, 1, n, n]
    kind, padding = draw.one("max_pool", "avg_pool"), draw.one("SAME", "VALID")
    shape = [batch, side, side, features] if last else [batch, features, side, side]
    function = lambda p, x: getattr(x, kind)(window=both(window), strides=both(stride), padding=padding)
    return [(shape, "normal")], program(1, function), 1


@family
def gather(draw):
    rows, width = draw.shape(2)
    picked = draw.integer(1, max(1, draw.size // width))
    return [([rows, width], "normal"), ([picked], rows)], program(2, lambda p, x, i: x.take(i, axis=0)), 1


@family
def gather_along(draw):
    rows, width = draw.shape(2)
    axis = draw.one(0, 1)
    function = lambda p, x, i: x.take_along_axis(i, axis=axis)
    return [([rows, width], "normal"), ([rows, width], [rows, width][axis])], program(2, function), 1


@family
def scatter(draw):
    rows, width = draw.shape(2)
    picked = draw.integer(1, max(1, draw.size // width))
    inputs = [([rows, width], "normal"), ([picked], rows), ([picked, width], "normal")]
    return inputs, program(3, lambda p, x, i, y: x.scatter_add(i, y)), 0


@family
def embedding(draw):
    width = draw.integer(8, 1024)
    vocabulary, tokens = max(1, draw.size // width), draw.integer(1, 4096)

    inputs = [([vocabulary, width], "normal"), ([tokens], vocabulary), ([width], "normal")]
    return inputs, program(3, lambda p, table, ids, w: table.take(ids, axis=0) * w), 1


@family
def order(draw):
    shape = draw.shape(draw.one(1, 2))
    axis, kind = int(draw.rng.integers(len(shape))), draw.one("sort", "argsort")
    return [(shape, "normal")], program(1, lambda p, x: getattr(x, kind)(axis=axis)), int(kind == "sort")


@family
def largest(draw):
    shape = draw.shape(draw.one(1, 2))
    k = draw.integer(1, min(shape[-1], 256))
    return [(shape, "normal")], program(1, lambda p, x: x.top_k(k=k, axis=len(shape) - 1, results=2)), 0


@family
def cumulative(draw):
    shape = draw.shape(draw.one(1, 2, 3))
    axis, kind = int(draw.rng.integers(len(shape))), draw.one("cumsum", "cumsum", "cummax", "cumprod")
    inputs = [(shape, "unit" if kind == "cumprod" else "normal")]
    return inputs, program(1, lambda p, x: getattr(x, kind)(axis=axis)), 1 if kind == "cumsum" else 0


@family
def einsum(draw):
    subscripts = draw.one("ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "bij,bkj->bik", "bij,jk->bik", "bhqd,bkhd->bhqk", "ij,ij->i", "ij,ij->", "i,j->ij", "bi,bj->bij", "ijk,k->ij", "ijk,jl->ikl")
    sides = subscripts.split("->")[0].split(",")
    letters = sorted(set("".join(sides)))

    def arrays(*extents):
        return [math.prod(extents[letters.index(letter)] for letter in side) for side in subscripts.replace("->", ",").split(",")]

    extents = draw.shape(len(letters), draw.size * (draw.integer(1, 64) if len(letters) > 2 else 1))
    extents = draw.within(1, extents, arrays)
    size = dict(zip(letters, extents))
    inputs = [([size[letter] for letter in side], "normal") for side in sides]
    return inputs, program(2, lambda p, x, y: p.step("einsum", x, y, subscripts=subscripts)), 2


@family
def moved(draw):
    shape = draw.shape(3)
    order = draw.rng.permutation(3).tolist()
    half = [max(1, extent // 2) for extent in shape]
    kinds = {
        "transpose": lambda p, x: x.transpose(axes=order) * 2.0,
        "flip": lambda p, x: x.flip(axis=1) + x,
        "roll": lambda p, x: x.roll(by=3, axis=2) - x,
        "pad": lambda p, x: x.pad(widths=[1, 1, 0, 2, 3, 0]),
        "slice": lambda p, x: x.slice(starts=[0, 0, 0], ends=half) * 3.0,
        "concatenate": lambda p, x: p.step("concatenate", x, x * 2.0, axis=1),
        "stack": lambda p, x: p.step("stack", x, x * 2.0, axis=0),
    }
    return [(shape, "normal")], program(1, kinds[draw.one(*kinds)]), 1


@family
def masks(draw):
    shape = draw.shape(2)

    def function(p, x, y):
        return p.step("select", x.gt(y), x * 2.0, y.tanh()) + x.minimum(0.5)

    return [(shape, "normal"), (shape, "normal")], program(2, function), 2


def recurrent(draw, cell, weights):
    """A scan over steps of `[batch, width]` with some matrices."""
    width, batch = draw.integer(4, 256), draw.integer(1, 64)
    steps = min(2048, max(1, draw.size // (width * batch)))
    steps, batch, width = draw.within(weights * width, [steps, batch, width])
    inputs = [([batch, width], "normal"), ([steps, batch, width], "normal")] + [([width, width], "weight")] * weights

    def function(p, h, xs, *w):
        body = program(2 + len(w), cell)
        last, _ = p.step("scan", h, xs, *w, body=body, carried=1, divided=1, results=2)
        return last

    return inputs, program(len(inputs), function), len(inputs)


@family
def rnn(draw):
    def cell(p, h, x, w, v):
        h = (x @ v + h @ w).tanh()
        return h, h

    return recurrent(draw, cell, 2)


@family
def gru(draw):
    def cell(p, h, x, wz, uz, wr, ur, wn, un):
        z, r = (x @ wz + h @ uz).sigmoid(), (x @ wr + h @ ur).sigmoid()
        n = (x @ wn + (r * h) @ un).tanh()
        h = h + z * (n - h)
        return h, h

    return recurrent(draw, cell, 6)


@family
def linear_scan(draw):
    width = draw.integer(1, 1 << 16)
    steps = min(10_000, max(1, draw.size // width))

    def function(p, h, a, xs):
        def cell(p, h, x, a):
            h = h * a + x
            return h, h

        return p.step("scan", h, xs, a, body=program(3, cell), carried=1, divided=1, results=2)[1]

    return [([width], "normal"), ([width], "unit"), ([steps, width], "normal")], program(3, function), 3


@family
def state_space(draw):
    """A selective state space: `h = exp(-d a) h + d b x`, `y = c h`."""
    width, states, batch = draw.integer(4, 256), draw.one(4, 8, 16), draw.integer(1, 8)
    steps = min(2048, max(1, draw.size // (width * states * batch)))

    def function(p, h, x, d, b, c, a):
        def cell(p, h, x, d, b, c, a):
            d = d.softplus().expand_dims(axis=-1)
            h = h * (d * a * -1.0).exp() + d * b.expand_dims(axis=1) * x.expand_dims(axis=-1)
            return h, (h * c.expand_dims(axis=1)).sum(axes=[-1])

        return p.step("scan", h, x, d, b, c, a, body=program(6, cell), carried=1, divided=4, results=2)[1]

    wide, narrow = ([steps, batch, width], "normal"), ([steps, batch, states], "normal")
    inputs = [([batch, width, states], "normal"), wide, wide, narrow, narrow, ([width, states], "unit")]
    return inputs, program(6, function), 6


@family
def associative(draw):
    steps, width = draw.shape(2)
    function = lambda p, a, b: a.linear(b)
    return [([steps, width], "unit"), ([steps, width], "normal")], program(2, function), 2


@family
def per_example_gradients(draw):
    width, classes = draw.integer(4, 256), draw.integer(2, 32)
    batch = min(512, max(1, draw.size // (width * width)))

    def loss(p, x, w, v):
        return (x @ w).tanh() @ v

    def function(p, x, w, v):
        def each(p, x, w, v):
            body = program(3, lambda p, w, v, x: loss(p, x, w, v))
            return p.step("grad", w, v, x, body=body, by=2, results=2)

        gradients = p.step("vmap", x, w, v, body=program(3, each), batched=1, results=2)
        return [(g.square().sum(axes=list(range(1, 3))) + 1.0).sqrt() for g in gradients]

    return [([batch, width], "normal"), ([width, width], "weight"), ([width, classes], "weight")], program(3, function), 0


@family
def batched_function(draw):
    width = draw.integer(4, 256)
    batch = min(4096, max(1, draw.size // width))

    def function(p, x, w, b):
        def each(p, x, w, b):
            return ((x.expand_dims(axis=0) @ w).reshape(shape=[width]) + b).softmax(axes=[-1])

        return p.step("vmap", x, w, b, body=program(3, each), batched=1)

    return [([batch, width], "normal"), ([width, width], "weight"), ([width], "normal")], program(3, function), 3


@family
def adamw(draw):
    count = draw.one(1, 4, 16, 64)
    shapes = [draw.shape(draw.one(1, 2), max(1, draw.size // count)) for _ in range(count)]

    def function(p, *arrays):
        results = []
        for i in range(count):
            w, m, s, g = arrays[4 * i : 4 * i + 4]
            m, s = m * 0.9 + g * 0.1, s * 0.999 + g * g * 0.001
            results += [w - (m / (s.sqrt() + 1e-3) + w * 0.01) * 1e-3, m, s]
        return results

    inputs = [(shape, kind) for shape in shapes for kind in ("normal", "normal", "positive", "normal")]
    return inputs, program(len(inputs), function), 0


@family
def random_numbers(draw):
    shape, kind = draw.shape(2), draw.one("uniform", "normal", "bits", "bernoulli", "permutation")
    given = {"seed": int(draw.rng.integers(1000)), "shape": shape, "dtype": "f32" if kind in ("bits", "permutation") else draw.dtype}
    return [([1], "normal")], program(1, lambda p, x: p.step(f"random_{kind}", **given)), 0


@family
def mlp(draw):
    width, layers = draw.integer(8, 1024), draw.integer(1, 4)
    batch, width, _ = draw.within(layers, [max(1, draw.size // width), width, width])

    def function(p, x, *weights):
        for i in range(layers):
            x = (x @ weights[2 * i] + weights[2 * i + 1]).relu()
        return x

    inputs = [([batch, width], "normal")] + [([width, width], "weight"), ([width], "normal")] * layers
    return inputs, program(len(inputs), function), len(inputs)


@family
def cnn(draw):
    batch, features = draw.integer(1, 16), draw.integer(4, 32)
    side = min(64, max(8, int(math.sqrt(draw.size / (batch * features))) // 4 * 4))

    def function(p, x, w0, w1, w2):
        same = {"layout": "NHWC", "strides": [1, 1], "padding": "SAME", "groups": 1}
        pool = {"window": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
        x = x.conv(w0, **same).relu().max_pool(**pool)
        x = x.conv(w1, **same).relu().max_pool(**pool)
        return x.mean(axes=[1, 2]) @ w2

    inputs = [([batch, side, side, 3], "normal"), ([3, 3, 3, features], "normal"), ([3, 3, features, features], "weight"), ([features, 10], "weight")]
    return inputs, program(4, function), 4


def transformer(draw, causal):
    count, d = draw.integer(1, 8), draw.one(16, 32, 64)
    width = count * d
    batch = draw.integer(1, 8)
    positions = min(512, max(1, draw.size // (batch * width)))
    batch, positions, _ = draw.within(12 * width, [batch, positions, width])

    def function(p, x, qkv, out, up, down, g0, g1):
        def normal(x, g):
            return x * (x.square().mean(axes=[-1], keep=True) + 1e-5).rsqrt() * g

        def split(y, i):
            part = y.slice(starts=[0, 0, i * width], ends=[batch, positions, (i + 1) * width])
            return part.reshape(shape=[batch, positions, count, d]).transpose(axes=[0, 2, 1, 3])

        y = normal(x, g0) @ qkv
        attended = split(y, 0).attention(split(y, 1), split(y, 2), causal=causal)
        x = x + attended.transpose(axes=[0, 2, 1, 3]).reshape(shape=[batch, positions, width]) @ out
        return x + (normal(x, g1) @ up).gelu() @ down

    shapes = [[batch, positions, width], [width, 3 * width], [width, width], [width, 4 * width], [4 * width, width]]
    inputs = [(shapes[0], "normal")] + [(shape, "weight") for shape in shapes[1:]] + [([width], "unit")] * 2
    return inputs, program(7, function), 7


@family
def vit_block(draw):
    return transformer(draw, False)


@family
def gpt_block(draw):
    return transformer(draw, True)

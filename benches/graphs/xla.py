"""The programs of graphs/mod.rs in JAX, with their inputs.

Every entry of `cases` is name -> (inputs, make); `make(*arrays)` gives a function without arguments that runs the program
once and returns its results. A training step goes on from where the last call ended.
"""
import jax
import jax.numpy as jnp
import numpy as np

from graphs import gpt

WIDTHS = [784, 512, 512, 10]
# Measured first calls, each of a script of its own.
FIRST_CALLS = 9
HIDDEN, HEADS, INNER, LAYERS = 384, 12, 1536, 6


def cases():
    rng = np.random.default_rng(1)
    numbers = lambda *shape, scale=1.0: (rng.standard_normal(shape, dtype="float32") * np.float32(scale))
    found = {}

    mlp = {}
    for i, (a, b) in enumerate(zip(WIDTHS, WIDTHS[1:])):
        mlp |= {f"w{i}": numbers(a, b, scale=a**-0.5), f"b{i}": np.zeros(b, "float32")}
    mlp |= {"x": numbers(256, 784), "labels": rng.integers(0, 10, 256, dtype="int32")}
    found["mlp_step/256x784-512-512-10"] = mlp, lambda **x: mlp_step(x, jnp.float32)
    found["mlp_step_bf16/256x784-512-512-10"] = mlp, lambda **x: mlp_step(x, jnp.bfloat16)

    found |= {name: (inputs, lambda dtype=dtype, **x: gpt.jax_step(x, dtype)) for name, (inputs, dtype) in gpt.cases(numbers, rng).items()}

    if jax.device_count() >= 8:
        batch, width, hidden = 64, 128, 512
        fsdp = {name: numbers(batch, width) for name in "xy"}
        for i in range(4):
            fsdp |= {f"up{i}": numbers(width, hidden, scale=width**-0.5), f"down{i}": numbers(hidden, width, scale=hidden**-0.5)}
        found["fsdp_step/64x128x512x4"] = fsdp, lambda **x: fsdp_step(x)

    # The donated one feeds its result back: with y below 0 it would shrink to subnormal numbers, which XLA flushes to 0 and
    # we compute, at a multiple of the time of others.
    chain = {"x": numbers(1 << 24), "y": abs(numbers(1 << 24)) + np.float32(0.1)}
    found["chain_donated/16M"] = chain, chain_donated
    found["chain_dropped/16M"] = chain, chain_dropped
    found["chain_kept/16M"] = chain, chain_kept

    rnn = {"w": numbers(256, 256, scale=0.05), "v": numbers(256, 256, scale=0.05), "xs": numbers(512, 32, 256)}
    found["rnn/512x32x256"] = rnn, lambda **x: repeated(lambda w, v, xs: rnn_states(w, v, xs)[1], x)
    found["rnn_gradient/512x32x256"] = rnn, lambda **x: repeated(jax.value_and_grad(rnn_loss, (0, 1)), x)

    rnn = {"w": numbers(32, 32, scale=0.05), "v": numbers(32, 32, scale=0.05), "xs": numbers(512, 8, 32)}
    found["rnn/512x8x32"] = rnn, lambda **x: repeated(lambda w, v, xs: rnn_states(w, v, xs)[1], x)
    found["rnn_gradient/512x8x32"] = rnn, lambda **x: repeated(jax.value_and_grad(rnn_loss, (0, 1)), x)
    for name, shape in [("10000x64", (10_000, 64)), ("64x1M", (64, 1 << 20))]:
        inputs = {"a": rng.random(shape[1], dtype="float32"), "xs": numbers(*shape)}
        found[f"recurrence/{name}"] = inputs, lambda **x: repeated(recurrence, x)
        found[f"recurrence_gradient/{name}"] = inputs, lambda **x: repeated(jax.grad(recurrence_loss), x)

    # A gradient for each example.
    gru = {"xs": numbers(32, 50, 16)} | {f"w{i}": numbers(16 if i % 2 == 0 else 32, 32, scale=0.2) for i in range(6)}
    found["gru_each/32x50x16x32"] = gru, lambda **x: repeated(gru_each, x)
    found["sinkhorn/50x256x256"] = {"costs": abs(numbers(256, 256))}, lambda **x: repeated(sinkhorn, x)
    space = {"x": numbers(256, 256), "steps": numbers(256, 256), "a": -abs(numbers(256, 16)), "b": numbers(256, 16), "c": numbers(256, 16)}
    found["selective/256x256x16"] = space, lambda **x: repeated(selective, x)
    found["selective_gradient/256x256x16"] = space, lambda **x: repeated(jax.grad(selective_loss, (0, 1, 2, 3, 4)), x)
    both = {"w": numbers(256, 256, scale=0.06), "xs": numbers(256, 256)}
    found["mapped_product/256"] = both, lambda **x: repeated(jax.grad(mapped_product), x)
    ode = {"w": numbers(32, 64, scale=0.2), "v": numbers(64, 32, scale=0.2), "xs": numbers(256, 32)}
    found["mapped_flow/256x32x64"] = ode, lambda **x: repeated(jax.grad(mapped_flow, (0, 1)), x)

    found["encoder_block/4x512x384"] = {"x": numbers(4, 512, HIDDEN)} | block(numbers, "0."), encoder
    model = {"x": numbers(32, 128, HIDDEN)}
    for i in range(LAYERS):
        model |= block(numbers, f"{i}.")
    found["encoder/32x128x384"] = model, encoder

    small = {"x": numbers(16, 16), "y": numbers(16, 16)}
    found["jitted/16x16"] = small, lambda **x: repeated(lambda x, y: x + y, x)
    found["kernels_50/16x16"] = small, lambda **x: repeated(sums, x)
    found["products_50/8x8"] = {"x": numbers(8, 8), "w": numbers(8, 8, scale=0.3)}, lambda **x: repeated(products, x)

    images = {"x": numbers(32, 56, 56, 64), "w": numbers(3, 3, 64, 64, scale=0.05)}
    found["conv/32x56x56x64"] = images, lambda **x: repeated(conv, x)
    square = lambda x, w: (conv(x, w) ** 2).sum() * 1e-3
    found["conv_gradient/32x56x56x64"] = images, lambda **x: repeated(jax.grad(square, (0, 1)), x)
    long = {"x": numbers(1 << 20)}
    found["sort/1M"] = long, lambda **x: repeated(jnp.sort, x)
    found["top_k/1M"] = long, lambda **x: repeated(lambda x: jax.lax.top_k(x, 64)[0], x)
    table = {"x": numbers(50_000, 64), "rows": rng.integers(0, 50_000, 100_000, dtype="int32")}
    found["take/100k"] = table, lambda **x: repeated(lambda x, rows: x.at[rows].get(mode="fill"), x)
    squares = lambda x, rows: (x.at[rows].get(mode="clip") ** 2).sum()
    found["take_gradient/100k"] = table, lambda **x: repeated(jax.grad(squares), x)
    added = table | {"by": numbers(100_000, 64)}
    found["scatter_add/100k"] = added, lambda **x: repeated(lambda x, rows, by: x.at[rows].add(by), x)

    # Positive numbers: the sum of others would be small beside its rounding errors.
    huge, tall, wide = ({"x": abs(numbers(*shape))} for shape in [(1 << 24,), (1_000_000, 64), (64, 1_000_000)])
    found["sum/16M"] = huge, lambda **x: repeated(jnp.sum, x)
    found["sum_squares/16M"] = huge, lambda **x: repeated(lambda x: jnp.sum(x * x), x)
    found["sum_axis0/1Mx64"] = tall, lambda **x: repeated(lambda x: x.sum(0), x)
    found["sum_axis1/64x1M"] = wide, lambda **x: repeated(lambda x: x.sum(1), x)
    plane = {"x": abs(numbers(4096, 1024))}
    found["sum_columns/4096x1024"] = plane, lambda **x: repeated(lambda x: x.sum(0), x)
    found["sum_rows/4096x1024"] = plane, lambda **x: repeated(lambda x: x.sum(1), x)
    found["argmax/16M"] = huge, lambda **x: repeated(lambda x: jnp.argmax(x).astype("float32"), x)
    found["argmax_axis0/1Mx64"] = tall, lambda **x: repeated(lambda x: jnp.argmax(x, 0).astype("float32"), x)

    # One for the comparison of results, and one for each measured call.
    found["first_call/1000"] = {f"script{i}": script(np.random.default_rng(i), 1000) for i in range(1 + FIRST_CALLS)}, first_calls
    return found


def repeated(function, arrays):
    compiled = jax.jit(function)
    return lambda: jax.tree.leaves(compiled(*arrays.values()))


def mlp_step(arrays, dtype):
    x, labels = arrays["x"], arrays["labels"]
    params = [(arrays[f"w{i}"], arrays[f"b{i}"]) for i in range(3)]
    zeros = jax.tree.map(jnp.zeros_like, params)

    def loss(params, x, labels):
        h = x.astype(dtype)
        for i, (w, b) in enumerate(params):
            h = h @ w.astype(dtype) + b.astype(dtype)
            h = jnp.maximum(h, 0) if i < 2 else h
        return -(jax.nn.log_softmax(h.astype(jnp.float32)) * jax.nn.one_hot(labels, 10)).sum(-1).mean()

    def step(state, x, labels):
        params, means, squares, t = state
        value, gradient = jax.value_and_grad(loss)(params, x, labels)
        t = t + 1
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradient)
        squares = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, squares, gradient)
        left = 1 - 0.9**t, 1 - 0.999**t
        update = lambda p, m, s: p - 1e-3 * ((m / left[0]) / (jnp.sqrt(s / left[1]) + 1e-8) + 0.01 * p)
        return (jax.tree.map(update, params, means, squares), means, squares, t), value

    compiled = jax.jit(step, donate_argnums=0)
    state = jax.tree.map(lambda x: x + 0, (params, zeros, zeros, jnp.float32(0)))

    def call():
        nonlocal state
        state, value = compiled(state, x, labels)
        return [value]

    return call


def fsdp_step(arrays):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    arrays = {name: jax.device_put(x, rows) for name, x in arrays.items()}
    sharded = lambda x: jax.lax.with_sharding_constraint(x, rows)

    def loss(layers, x, y):
        for up, down in layers:
            x = sharded(jnp.tanh(sharded(x @ up)) @ down)
        return ((x - y) ** 2).mean()

    def step(layers, x, y):
        value, gradient = jax.value_and_grad(loss)(layers, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g, layers, gradient), value

    compiled = jax.jit(step, donate_argnums=0, out_shardings=(rows, None))
    layers = [(arrays[f"up{i}"], arrays[f"down{i}"]) for i in range(4)]

    def call():
        nonlocal layers
        layers, value = compiled(layers, arrays["x"], arrays["y"])
        return [value]

    return call


def chain(x, y):
    return jnp.tanh(x * y + x)


def chain_donated(x, y):
    compiled, x = jax.jit(chain, donate_argnums=0), x + 0

    def call():
        nonlocal x
        x = compiled(x, y)
        return [x]

    return call


def chain_dropped(x, y):
    compiled = jax.jit(chain)
    return lambda: [compiled(x, y)]


def chain_kept(x, y):
    compiled, kept = jax.jit(chain), []

    def call():
        kept.append(compiled(x, y))
        del kept[:-4]
        return kept[-1:]

    return call


def conv(x, w):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def rnn_states(w, v, xs):
    def step(h, x):
        h = jnp.tanh(x @ v + h @ w)
        return h, h

    return jax.lax.scan(step, jnp.zeros(xs.shape[1:]), xs)


def rnn_loss(w, v, xs):
    return (rnn_states(w, v, xs)[0] ** 2).mean()


def recurrence(a, xs):
    def step(h, x):
        h = a * h + x
        return h, h

    return jax.lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[1]


def recurrence_loss(a, xs):
    return (recurrence(a, xs) ** 2).mean()


def gru_loss(weights, xs):
    a, b, c, d, e, f = weights

    def step(h, x):
        z = jax.nn.sigmoid(x @ a + h @ b)
        r = jax.nn.sigmoid(x @ c + h @ d)
        h = (1 - z) * jnp.tanh(x @ e + r * (h @ f)) + z * h
        return h, (h**2).sum()

    return jax.lax.scan(step, jnp.zeros(b.shape[0]), xs)[1].sum()


def gru_each(xs, *weights):
    return jax.vmap(jax.grad(gru_loss), (None, 0))(list(weights), xs)


def sinkhorn(costs):
    n, m = costs.shape

    def step(fg, _):
        f, g = fg
        f = -jax.nn.logsumexp(g[None] - costs * 10, 1) - jnp.log(n)
        g = -jax.nn.logsumexp(f[:, None] - costs * 10, 0) - jnp.log(m)
        return (f, g), ()

    f, g = jax.lax.scan(step, (jnp.zeros(n), jnp.zeros(m)), length=50)[0]
    return (jnp.exp(f[:, None] + g[None] - costs * 10) * costs).sum()


def selective(x, steps, a, b, c):
    def step(h, at):
        x, d, b, c = at
        d = jax.nn.softplus(d)
        h = jnp.exp(d[:, None] * a) * h + (d * x)[:, None] * b[None]
        return h, (h * c[None]).sum(-1)

    return jax.lax.scan(step, jnp.zeros(a.shape), (x, steps, b, c))[1]


def selective_loss(*arrays):
    return (selective(*arrays) ** 2).mean()


def mapped_product(w, xs):
    return (jax.vmap(lambda x: jnp.tanh(w @ x))(xs) ** 2).sum()


def mapped_flow(w, v, xs):
    def flow(x):
        field = lambda x: jnp.tanh(x @ w) @ v
        return jax.lax.fori_loop(0, 16, lambda _, x: x + field(x + field(x) / 32) / 16, x)

    return (jax.vmap(flow)(xs) ** 2).mean()


def block(numbers, prefix):
    shapes = {"query": (HIDDEN, HIDDEN), "key": (HIDDEN, HIDDEN), "value": (HIDDEN, HIDDEN), "out": (HIDDEN, HIDDEN)}
    shapes |= {"up": (HIDDEN, INNER), "down": (INNER, HIDDEN)}
    found = {}
    for name, shape in shapes.items():
        found |= {f"{prefix}{name}.w": numbers(*shape, scale=0.05), f"{prefix}{name}.b": numbers(shape[1], scale=0.05)}
    for name in ("norm0", "norm1"):
        found |= {f"{prefix}{name}.w": 1 + numbers(HIDDEN, scale=0.05), f"{prefix}{name}.b": numbers(HIDDEN, scale=0.05)}
    return found


def encoder(**arrays):
    x = arrays.pop("x")
    batch, length, _ = x.shape

    def norm(x, w, b):
        d = x - x.mean(-1, keepdims=True)
        return d * jax.lax.rsqrt((d * d).mean(-1, keepdims=True) + 1e-12) * w + b

    def block(x, p):
        dense = lambda x, name: x @ p[name + ".w"] + p[name + ".b"]
        heads = lambda y: y.reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3)
        q, k, v = (heads(dense(x, name)) for name in ("query", "key", "value"))
        weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) * (HIDDEN / HEADS) ** -0.5)
        out = (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(x + dense(out, "out"), p["norm0.w"], p["norm0.b"])
        inner = jax.nn.gelu(dense(x, "up"), approximate=False)
        return norm(x + dense(inner, "down"), p["norm1.w"], p["norm1.b"])

    def model(x, arrays):
        for i in range(len(arrays) // 16):
            x = block(x, {name.split(".", 1)[1]: w for name, w in arrays.items() if name.startswith(f"{i}.")})
        return x

    compiled = jax.jit(model)
    return lambda: [compiled(x, arrays)]


def sums(x, y):
    """Twenty-five sums, each followed by an elementwise kernel."""
    for _ in range(25):
        x = x.sum() * 1e-3 + x * y
    return x


def products(x, w):
    for _ in range(50):
        x = jnp.tanh(x @ w + 1)
    return x


def script(rng, count):
    """A program of `count` operations, a line each, as bytes: `dot N SEED`, `add SEED`, `mul X`, or a function's name.

    Every fourth is a product with a matrix of an own shape, so that no two kernels are alike.
    """
    lines = []
    for i in range(count // 4):
        lines.append(f"dot {rng.integers(16, 64)} {i}")
        lines.append(f"add {i}")
        lines.append(f"mul {rng.integers(1, 100) / 64}")
        lines.append(rng.choice(["tanh", "sin", "cos", "abs", "logistic"]))
    return np.frombuffer("\n".join(lines).encode(), dtype="uint8")


def matrix(rows, columns, seed):
    """Numbers from -0.5 to 0.5 that both sides can make."""
    x = (np.arange(rows * columns, dtype="int64") * 7919 + seed * 104729) % 1009
    return (x.astype("float32") / 1009 - 0.5).reshape(rows, columns)


def parsed(text):
    """The constants of a script, and the function of them."""
    functions = {"tanh": jnp.tanh, "sin": jnp.sin, "cos": jnp.cos, "abs": jnp.abs, "logistic": jax.nn.sigmoid}
    lines = [line.split() for line in bytes(text).decode().splitlines()]
    width, arrays = 32, []
    for line in lines:
        if line[0] == "dot":
            arrays.append(matrix(width, int(line[1]), int(line[2])))
            width = int(line[1])
        elif line[0] == "add":
            arrays.append(matrix(1, width, int(line[1])))

    def function(x, arrays):
        rest = iter(arrays)
        for name, *_, number in [[*line, ""] if len(line) == 1 else line for line in lines]:
            if name == "dot":
                x = x @ next(rest)
            elif name == "add":
                x = x + next(rest)
            elif name == "mul":
                x = x * float(number)
            else:
                x = functions[name](x)
        return x

    return arrays, function


def first_calls(**texts):
    """Each call traces, compiles and runs the next script."""
    programs = [(jax.device_put(arrays), function) for arrays, function in (parsed(t) for t in map(np.asarray, texts.values()))]
    x, at = jnp.asarray(matrix(32, 32, 0)), 0

    def call():
        nonlocal at
        arrays, function = programs[at % len(programs)]
        at += 1
        return [jax.jit(lambda x, arrays: function(x, arrays))(x, arrays)]

    return call

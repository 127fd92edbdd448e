"""Random numbers by JAX, which the tests compare with: `python reference.py > jax.txt`.

Needs jax[cpu]==0.12.0.1. A line is `function seed dtype shape arguments = elements`: the shape is `-` for rank 0, the
elements are their bits in hexadecimal. Of large arrays there are the last four elements, after the sum of the bits of all
modulo 2^64, as `sum:hex`.
"""
import jax
import jax.numpy as jnp
import numpy as np

DTYPES = {
    "f32": jnp.float32, "f64": jnp.float64, "f16": jnp.float16, "bf16": jnp.bfloat16, "bool": jnp.bool_,
    "u8": jnp.uint8, "u16": jnp.uint16, "u32": jnp.uint32, "u64": jnp.uint64,
    "i8": jnp.int8, "i16": jnp.int16, "i32": jnp.int32, "i64": jnp.int64,
}


def text(x):
    x = np.asarray(x)
    bits = x.reshape(-1).view(f"uint{8 * x.dtype.itemsize}")
    if len(bits) <= 40:
        return " ".join(f"{b:x}" for b in bits)
    total = int(bits.astype(np.uint64).sum(dtype=np.uint64))
    return f"sum:{total:x} " + " ".join(f"{b:x}" for b in bits[-4:])


def line(function, seed, dtype, shape, arguments, x):
    shape = ",".join(map(str, shape)) or "-"
    arguments = "".join(f" {a}" for a in arguments)
    print(f"{function} {seed} {dtype} {shape}{arguments} = {text(x)}".rstrip())


def logits(shape, dtype):
    n = int(np.prod(shape))
    return jnp.asarray(((np.arange(n) * 37 % 23) / 8).astype(np.float32).reshape(shape), DTYPES[dtype])


def cases(wide):
    key, name = jax.random.key, ["f64"] if wide else ["f32", "bf16", "f16"]
    shapes = [(), (1,), (7,), (3, 5), (2, 3, 3), (0, 4), (300, 401)]
    for dtype in ["u64"] if wide else ["u8", "u16", "u32"]:
        for seed in [0, 42]:
            for shape in shapes:
                line("bits", seed, dtype, shape, [], jax.random.bits(key(seed), shape, DTYPES[dtype]))
    for dtype in name:
        for seed in [1, 42]:
            for shape in shapes:
                line("uniform", seed, dtype, shape, [], jax.random.uniform(key(seed), shape, DTYPES[dtype]))
            for low, high in [(-0.7, 1.3), (0.1, 0.9), (-3.0, 5.0)]:
                x = jax.random.uniform(key(seed), (5, 70), DTYPES[dtype], low, high)
                line("uniform_between", seed, dtype, (5, 70), [low, high], x)
            for f in ["normal", "exponential", "gumbel", "laplace", "logistic", "cauchy"]:
                for shape in [(), (3, 5), (37,), (0, 4)]:
                    line(f, seed, dtype, shape, [], getattr(jax.random, f)(key(seed), shape, DTYPES[dtype]))
            # All elements, so that rare ones far from the middle are compared too.
            for i in range(25):
                line("normal", seed + 100 + i, dtype, (40,), [], jax.random.normal(key(seed + 100 + i), (40,), DTYPES[dtype]))
            for lower, upper in [(-2.0, 2.0), (-1.0, 3.0), (0.0, 1.5), (-0.5, 4.0), (1.5, 2.5), (-3.0, -2.0), (0.25, np.inf)]:
                x = jax.random.truncated_normal(key(seed), lower, upper, (2, 19), DTYPES[dtype])
                line("truncated_normal", seed, dtype, (2, 19), [lower, upper], x)
            for shape, axis in [((6,), -1), ((12, 5), -1), ((5, 12), 0), ((3, 4, 5), 1)]:
                x = jax.random.categorical(key(seed), logits(shape, dtype), axis).astype(jnp.int32)
                line("categorical", seed, dtype, shape, [axis], x)
            p = logits((4, 1), dtype) / 3
            line("bernoulli_array", seed, dtype, (4, 9), [], jax.random.bernoulli(key(seed), p, (4, 9)))
    integers = ["i64", "u64"] if wide else ["i8", "u8", "i16", "u16", "i32", "u32"]
    for dtype in integers:
        for seed in [0, 42]:
            info = jnp.iinfo(DTYPES[dtype])
            bounds = [(0, 10), (1, 2), (5, 5), (9, 3), (0, 100)]
            bounds += [(-7, 7), (-100, -90)]
            if info.bits < 32:
                bounds += [(int(info.min), int(info.max) + 1), (int(info.min), int(info.max)), (-1000, 100000)]
            elif dtype == "u32":
                bounds += [(0, np.uint32(2**32 - 1)), (7, np.uint32(2**31))]
            elif dtype != "u64":
                bounds += [(int(info.min), int(info.max))]
            if dtype == "i32":
                bounds += [(0, 2**31 - 1), (-(2**31), 0), (0, 1000003)]
            if dtype == "i64":
                bounds += [(0, 10**15), (-(2**40), 2**41)]
            for low, high in bounds:
                x = jax.random.randint(key(seed), (5, 7), low, high, DTYPES[dtype])
                line("randint", seed, dtype, (5, 7), [low, high], x)
    if not wide:
        for seed in [0, 42]:
            for dtype in ["i32", "i8", "f32", "bf16"]:
                line("rademacher", seed, dtype, (3, 11), [], jax.random.rademacher(key(seed), (3, 11), DTYPES[dtype]))
            for p in [0.5, 0.1, 0.0, 1.0]:
                line("bernoulli", seed, "bool", (3, 11), [p], jax.random.bernoulli(key(seed), p, (3, 11)))
            high = jnp.arange(1, 6, dtype=jnp.int32)
            line("randint_array", seed, "i32", (4, 5), [], jax.random.randint(key(seed), (4, 5), -2, high * 3))
            line("randint_array", seed, "i8", (4, 5), [], jax.random.randint(key(seed), (4, 5), -2, high * 100, jnp.int8))
            line("randint_array", seed, "u32", (4, 5), [], jax.random.randint(key(seed), (4, 5), -2, high * 100, jnp.uint32))


def orders():
    key, f32 = jax.random.key, jnp.float32
    counted = lambda shape, dtype: jnp.arange(np.prod(shape)).reshape(shape).astype(DTYPES[dtype])
    for seed in [0, 42]:
        for n in [0, 1, 2, 7, 1625, 1626, 5000]:
            line("permutation", seed, "i32", (n,), [], jax.random.permutation(key(seed), n))
        for dtype, shape, axis in [("f32", (9,), 0), ("i32", (4, 6), 1), ("bf16", (5, 2, 3), -3), ("u8", (2, 0), 1)]:
            x = counted(shape, dtype)
            line("permuted", seed, dtype, shape, [axis], jax.random.permutation(key(seed), x, axis))
            line("shuffled", seed, dtype, shape, [axis], jax.random.permutation(key(seed), x, axis, independent=True))
        line("shuffled", seed, "f32", (40, 50), [0], jax.random.permutation(key(seed), counted((40, 50), "f32"), 0, True))
        for n, shape, replace in [(52, (5,), 0), (10, (2, 5), 0), (3000, (7,), 0), (6, (4, 5), 1), (1, (), 1), (9, (0,), 0)]:
            line("choice", seed, "i32", shape, [n, replace], jax.random.choice(key(seed), n, shape, bool(replace)))
        for replace, axis in [(0, 1), (1, 0), (1, -1)]:
            x = jax.random.choice(key(seed), counted((4, 9, 2), "f32"), (2, 3), bool(replace), axis=axis)
            line("choice_from", seed, "f32", x.shape, [replace, axis], x)
        p = logits((23,), "f32") + f32(0.1)
        for shape, replace in [((4, 5), 1), ((), 1), ((3, 2), 0), ((23,), 0)]:
            x = jax.random.choice(key(seed), 23, shape, bool(replace), p)
            line("weighted_choice", seed, "f32", shape, [replace], x)


def parameters(wide):
    """Distributions with parameters. Arguments are the numbers after the shape; those of arrays are in jax.rs."""
    key, random = jax.random.key, jax.random
    dtype = "f64" if wide else "f32"
    T = DTYPES[dtype]
    scalars = {"gamma": [(0.3,), (1.0,), (2.5,), (40.0,)], "loggamma": [(0.01,), (3.0,)], "beta": [(0.5, 2.0), (3.0, 4.0)],
               "chisquare": [(3.0,)], "f": [(4.0, 7.0)], "t": [(2.5,)], "lognormal": [(0.7,)], "pareto": [(1.5,)], "rayleigh": [(2.0,)],
               "weibull_min": [(1.5, 0.75)], "triangular": [(-1.0, 0.5, 2.0)], "wald": [(1.75,)], "generalized_normal": [(1.5,)],
               "maxwell": [()], "binomial": [(10.0, 0.3), (100.0, 0.6), (3.0, 0.9), (5000.0, 0.25)]}
    for seed in [0] if wide else [0, 42]:
        for name, all in scalars.items():
            # With 64 bits JAX draws the signs of others of other bits.
            if wide and name == "generalized_normal":
                return
            for numbers in all:
                for shape in [(), (3, 5), (37,), (0, 2)]:
                    arguments = [jnp.asarray(x, T) for x in numbers]
                    if name == "weibull_min":
                        arguments = numbers
                    x = getattr(random, name)(key(seed), *arguments, shape=shape, dtype=T)
                    line(name, seed, dtype, shape, numbers, x)
        line("double_sided_maxwell", seed, dtype, (3, 5), [1.0, 2.0], random.double_sided_maxwell(key(seed), 1.0, 2.0, (3, 5), T))
        some = logits((4, 1), dtype) + T(0.2)
        line("gamma_array", seed, dtype, (4, 9), [], random.gamma(key(seed), some, (4, 9), T))
        line("beta_array", seed, dtype, (4, 9), [], random.beta(key(seed), some, logits((9,), dtype) + T(0.5), (4, 9), T))
        line("dirichlet", seed, dtype, (5, 4), [], random.dirichlet(key(seed), some[:, 0], (5,), T))
        line("ball", seed, dtype, (7, 3), [1.5], random.ball(key(seed), 3, 1.5, (7,), T))
        for n, m in [(4, 4), (5, 3), (2, 4)]:
            line("orthogonal", seed, dtype, (2, n, m), [], random.orthogonal(key(seed), n, (2,), T, m))
        cov = jnp.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.25], [0.0, -0.25, 0.5]], T)
        line("multivariate_normal", seed, dtype, (2, 4, 3), [], random.multivariate_normal(key(seed), logits((4, 3), dtype), cov, (2, 4), T))
        line("multinomial", seed, dtype, (2, 3, 4), [20.0], random.multinomial(key(seed), T(20.0), logits((3, 4), dtype) / 10, shape=(2, 3), dtype=T))
        line("binomial_array", seed, dtype, (4, 9), [], random.binomial(key(seed), jnp.arange(9, dtype=T) * 10 - 1, some / 3, (4, 9), T))
        if not wide:
            for lam in [0.0, 0.5, 4.0, 9.75, 10.0, 25.0, 400.0]:
                for shape in [(), (3, 5), (37,)]:
                    line("poisson", seed, "i32", shape, [lam], random.poisson(key(seed), lam, shape))
            line("poisson_array", seed, "i32", (4, 9), [], random.poisson(key(seed), logits((4, 9), "f32") * 10, (4, 9)))
            for p in [0.05, 0.5, 1.0]:
                line("geometric", seed, "i32", (3, 5), [p], random.geometric(key(seed), jnp.float32(p), (3, 5)))


for seed in [0, 1, 42, 2**31, 2**32 - 1, -1, -5, 2**40 + 3, 2**63 - 1, -(2**63)]:
    key = jax.random.key(seed)
    line("key", seed, "u32", (2,), [], jax.random.key_data(key))
    for n in [1, 2, 3, 7]:
        line("split", seed, "u32", (n, 2), [], jax.random.key_data(jax.random.split(key, n)))
    for data in [0, 1, 77, 2**31 + 5, 2**32 - 1]:
        line("fold_in", seed, "u32", (2,), [data], jax.random.key_data(jax.random.fold_in(key, data)))
cases(False)
orders()
with jax.enable_x64(True):
    cases(True)
parameters(False)
for seed in [0, 42]:
    for shape in [(3,), (2, 4), (1, 2, 3)]:
        line("split_batch", seed, "u32", (*shape, 2), [], jax.random.key_data(jax.random.split(jax.random.key(seed), shape)))
with jax.enable_x64(True):
    parameters(True)

"""Numbers of traces in JAX: `python cache.py > cache.txt`."""
import functools

import jax
import jax.numpy as jnp

counts = 0


def counted(f, **options):
    global counts
    counts = 0

    @functools.wraps(f)
    def traced(*args):
        global counts
        counts += 1
        return f(*args)

    return jax.jit(traced, **options)


def show(name, f, calls):
    found = []
    for args in calls:
        f(*args)
        found.append(counts)
    print(f"{name}: {' '.join(map(str, found))}")


one = lambda n: jnp.ones(n, jnp.float32)
f = counted(lambda x: x * 2)
show("arrays", f, [(one(3),), (2 * one(3),), (one(4),), (jnp.array([1, 2, 3]),)])
f = counted(lambda x: x["a"] + x["b"])
show("keys", f, [({"a": one(1), "b": one(1)},), ({"b": one(1), "a": one(1)},), ({"b": 7 * one(1), "a": one(1)},)])
f = counted(lambda x, n: x**n, static_argnums=1)
show("statics", f, [(one(1), n) for n in (2, 3, 2, 3, 4)])
f = counted(lambda x, n: jnp.sum(jnp.where(jnp.arange(len(x)) < n, x, 0)))
bucket = lambda n: next(b for b in (8, 16, 32, 64) if b >= n)
for n in range(1, 65):
    f(jnp.pad(one(n), (0, bucket(n) - n)), jnp.int32(n))
print(f"buckets: {counts}")

"""Associative scans in JAX: `python associative.py > associative.txt`. A line has the length, the number of calls of the
function, and both results: affine maps of integers modulo 2^32, and the same from the end."""
import jax
import jax.numpy as jnp

for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31):
    calls = 0

    def combine(f, g):
        global calls
        calls += 1
        return f[0] * g[0], g[0] * f[1] + g[1]

    maps = jnp.arange(n, dtype=jnp.int32) * 7 - 20, jnp.arange(n, dtype=jnp.int32) * 1001 % 13
    a, b = jax.lax.associative_scan(combine, maps)
    count = calls
    c, d = jax.lax.associative_scan(combine, maps, reverse=True)
    print(n, count, *a, *b, *c, *d)

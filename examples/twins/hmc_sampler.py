"""Hamiltonian Monte Carlo: several chains that sample the mean and the scale of normally distributed data."""
import jax
import jax.numpy as jnp


def energy(q, x):
    d = (x - q[0]) * jnp.exp(-q[1])
    return (0.5 * jnp.square(d) + q[1]).sum() + 0.5 * jnp.square(q).sum()


def total(q, p, x):
    return energy(q, x) + 0.5 * jnp.square(p).sum()


def sample(q, key, x):
    def leap(_, state):
        q, p = state
        p = p - 0.02 * jax.grad(energy)(q, x)
        q = q + 0.04 * p
        return q, p - 0.02 * jax.grad(energy)(q, x)

    a, b = jax.random.split(key)
    p = jax.random.normal(a, (2,))
    new_q, new_p = jax.lax.fori_loop(0, 8, leap, (q, p))
    log_u = jnp.log(jax.random.uniform(b))
    q = jnp.where(log_u < total(q, p, x) - total(new_q, new_p, x), new_q, q)
    return q, q


def chain(key, x):
    keys = jax.random.split(key, 20)
    return jax.lax.scan(lambda q, key: sample(q, key, x), jnp.zeros(2), keys)[1]


def run():
    a, b = jax.random.split(jax.random.key(4))
    x = 1.5 + 0.5 * jax.random.normal(a, (30,))
    chains = jax.jit(jax.vmap(chain, in_axes=(0, None)))
    qs = chains(jax.random.split(b, 4), x)
    return qs, qs.mean((0, 1))

"""A Kalman filter, and the gradient of its likelihood by the variances of the noise."""
import jax
import jax.numpy as jnp


def filtered(noise, zs):
    f = jnp.array([[1.0, 1.0], [0.0, 1.0]])
    h = jnp.array([[1.0, 0.0]])

    def step(state, z):
        m, p = state
        m, p = f @ m, f @ p @ f.T + noise[0] * jnp.eye(2)
        r, s = z - h @ m, h @ p @ h.T + noise[1]
        gain = jnp.linalg.solve(s, h @ p).T
        log_p = -0.5 * (r @ jnp.linalg.solve(s, r) + jnp.linalg.slogdet(s)[1])
        return (m + gain @ r, p - gain @ h @ p), (m[0], log_p)

    _, (positions, log_p) = jax.lax.scan(step, (jnp.zeros(2), jnp.eye(2)), zs)
    return log_p.sum(), positions


def run():
    t = jnp.arange(50.0)
    z = 5 * jnp.sin(0.2 * t) + 0.5 * jax.random.normal(jax.random.key(1), (50,))
    f = jax.jit(jax.value_and_grad(filtered, has_aux=True))
    (value, positions), slope = f(jnp.array([0.1, 0.25]), z[:, None])
    return value, positions, slope

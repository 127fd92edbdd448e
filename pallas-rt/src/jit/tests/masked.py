"""A loop until a limit, as a scan whose later steps change nothing: `python masked.py > masked.txt`.

Each line has the last value, which is that of `lax.while_loop`, the number of steps, and the derivatives of the last value
by the factor and by the start.
"""
import jax
import jax.numpy as jnp


def masked(w, x):
    def step(state, _):
        y, n = state
        going = y < 10
        return (jnp.where(going, jnp.sin(y) + w * y + 0.5, y), n + going), None

    return jax.lax.scan(step, (x, jnp.int32(0)), None, length=20)[0]


def loop(w, x):
    return jax.lax.while_loop(lambda y: y < 10, lambda y: jnp.sin(y) + w * y + 0.5, x)


for w, x in [(1.5, 0.25), (1.25, 1.0), (2.0, 9.5), (1.5, 12.0)]:
    w, x = jnp.float32(w), jnp.float32(x)
    (value, steps), gradient = jax.value_and_grad(masked, (0, 1), has_aux=True)(w, x)
    assert value == loop(w, x) and steps < 20
    print(f"{float(value):.7g} {steps} {float(gradient[0]):.7g} {float(gradient[1]):.7g}")

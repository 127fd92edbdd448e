"""What gradients compute under JAX's policies: `python policies.py > policies.txt`. A line has the policy, and how many
dot_general, tanh, sin and cos the gradient has."""
import jax
import jax.extend.core as core
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

P = jax.checkpoint_policies


def after(w1, w2, x):
    h = checkpoint_name(jnp.tanh(x @ w1), "hidden")
    y = jnp.sin(h @ w2)
    return jnp.sum(y * y)


def before(w1, w2, x):
    h = jnp.tanh(checkpoint_name(x @ w1, "hidden"))
    y = jnp.sin(checkpoint_name(h @ w2, "outer"))
    return jnp.sum(y * y)


def batched(w1, w2, x):
    h = jnp.tanh(jnp.einsum("bi,bij->bj", x, jnp.stack([w1, w1])))
    y = jnp.sin(h @ w2)
    return jnp.sum(y * y)


def count(jaxpr, name):
    found = 0
    is_jaxpr = lambda x: isinstance(x, (core.Jaxpr, core.ClosedJaxpr))
    for e in jaxpr.eqns:
        found += e.primitive.name == name
        for p in filter(is_jaxpr, jax.tree.leaves(e.params, is_leaf=is_jaxpr)):
            found += count(getattr(p, "jaxpr", p), name)
    return found


args = jnp.ones((3, 4)), jnp.ones((4, 5)), jnp.ones((2, 3))
policies = {
    "none": None,
    "nothing": P.nothing_saveable,
    "everything": P.everything_saveable,
    "dots": P.dots_saveable,
    "dots without batch": P.dots_with_no_batch_dims_saveable,
    "only hidden": P.save_only_these_names("hidden"),
    "only outer": P.save_only_these_names("outer"),
    "names except hidden": P.save_any_names_but_these("hidden"),
    "names except outer": P.save_any_names_but_these("outer"),
    "anything except hidden": P.save_anything_except_these_names("hidden"),
    "anything except both": P.save_anything_except_these_names("hidden", "outer"),
}
for f in (after, before, batched):
    for name, policy in policies.items():
        g = jax.checkpoint(f, policy=policy) if policy else f
        jaxpr = jax.make_jaxpr(jax.grad(g, (0, 1)))(*args).jaxpr
        counts = [count(jaxpr, op) for op in ("dot_general", "tanh", "sin", "cos")]
        print(f"{f.__name__} {name}: {' '.join(map(str, counts))}")

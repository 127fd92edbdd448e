"""The training step of gpt.rs in JAX and in torch: each call is a step on the same pieces, and gives the loss and the norm
of the gradient."""
import math

import numpy as np

PIECES, WIDTH, HEADS, LAYERS, BATCH, LENGTH = 97, 192, 6, 4, 8, 256
RATE, LAST_RATE, WARMUP_STEPS, STEPS, DECAY, MAX_GRADIENT_NORM, BETAS = 1e-3, 1e-4, 20.0, 300.0, 0.1, 1.0, (0.9, 0.95)


def cases(numbers, rng):
    """Name -> (inputs, name of the type of activations)."""
    inputs = {name: rng.integers(0, PIECES, (BATCH, LENGTH), dtype="int32") for name in ("tokens", "labels")}
    inputs |= {"table": numbers(PIECES, WIDTH, scale=0.02), "norm": np.ones(WIDTH, "float32")}
    deep = 0.02 / (2 * LAYERS) ** 0.5
    for i in range(LAYERS):
        inputs |= {f"{i}.norm{j}": np.ones(WIDTH, "float32") for j in range(2)}
        inputs |= {f"{i}.qkv": numbers(WIDTH, 3 * WIDTH, scale=0.02), f"{i}.out": numbers(WIDTH, WIDTH, scale=deep)}
        inputs |= {f"{i}.up": numbers(WIDTH, 4 * WIDTH, scale=0.02), f"{i}.down": numbers(4 * WIDTH, WIDTH, scale=deep)}
    shape = f"{BATCH}x{LENGTH}x{WIDTH}x{LAYERS}"
    return {f"gpt_step/{shape}": (inputs, "float32"), f"gpt_step_bf16/{shape}": (inputs, "bfloat16")}


def rotary_tables():
    half = WIDTH // HEADS // 2
    angles = np.arange(LENGTH)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return np.cos(angles).astype("float32"), np.sin(angles).astype("float32")


def jax_step(weights, dtype):
    import jax
    import jax.numpy as jnp

    tokens, labels = weights.pop("tokens"), weights.pop("labels")
    cos, sin = map(jnp.asarray, rotary_tables())
    mask = np.tril(np.ones((LENGTH, LENGTH), bool))

    def norm(x, gamma):
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
        return (wide * scale * gamma.astype(jnp.float32)).astype(x.dtype)

    def rotated(x):
        a, b = jnp.split(x.astype(jnp.float32), 2, -1)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)

    def loss(weights):
        w = {name: x.astype(dtype) for name, x in weights.items()}
        x = w["table"][tokens]
        for i in range(LAYERS):
            qkv = norm(x, w[f"{i}.norm0"]) @ w[f"{i}.qkv"]
            q, k, v = qkv.reshape(BATCH, LENGTH, 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
            scores = (rotated(q) @ rotated(k).swapaxes(2, 3)).astype(jnp.float32) * (WIDTH // HEADS) ** -0.5
            shares = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1).astype(v.dtype)
            x = x + (shares @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ w[f"{i}.out"]
            x = x + jax.nn.gelu(norm(x, w[f"{i}.norm1"]) @ w[f"{i}.up"], approximate=True) @ w[f"{i}.down"]
        logits = (norm(x, w["norm"]) @ w["table"].T).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits, -1), labels[..., None], -1).mean()

    def step(state):
        weights, means, squares, t = state
        value, gradient = jax.value_and_grad(loss)(weights)
        total = jnp.sqrt(sum((g * g).sum() for g in gradient.values()))
        scale = jnp.where(total < MAX_GRADIENT_NORM, 1.0, MAX_GRADIENT_NORM / total)
        gradient = jax.tree.map(lambda g: g * scale, gradient)
        part = jnp.clip((t - WARMUP_STEPS) / (STEPS - WARMUP_STEPS), 0, 1)
        cosine = (jnp.cos(part * np.pi) + 1) * 0.5 * (RATE - LAST_RATE) + LAST_RATE
        rate = jnp.where(t < WARMUP_STEPS, t * RATE / WARMUP_STEPS, cosine)
        t = t + 1
        left = [1 - beta**t for beta in BETAS]
        means = jax.tree.map(lambda m, g: m * BETAS[0] + g * (1 - BETAS[0]), means, gradient)
        squares = jax.tree.map(lambda s, g: s * BETAS[1] + g * g * (1 - BETAS[1]), squares, gradient)

        def updated(w, m, s):
            return w - rate * ((m / left[0]) / (jnp.sqrt(s / left[1]) + 1e-8) + w * (DECAY if w.ndim > 1 else 0.0))

        return (jax.tree.map(updated, weights, means, squares), means, squares, t), value, total

    compiled = jax.jit(step, donate_argnums=0)
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = jax.tree.map(lambda x: x + 0, (weights, zeros, zeros, jnp.float32(0)))

    def call():
        nonlocal state
        state, *values = compiled(state)
        return values

    return call


def torch_step(weights, dtype):
    import torch
    import torch.nn.functional as F

    tokens, labels = (weights.pop(name).long() for name in ("tokens", "labels"))
    weights = {name: torch.nn.Parameter(x.clone()) for name, x in weights.items()}
    cos, sin = map(torch.from_numpy, rotary_tables())
    norm = lambda x, gamma: F.rms_norm(x, (WIDTH,), gamma, 1e-5)

    def rotated(x):
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)

    def loss():
        w = {name: x.to(getattr(torch, dtype)) for name, x in weights.items()}
        x = F.embedding(tokens, w["table"])
        for i in range(LAYERS):
            qkv = norm(x, w[f"{i}.norm0"]) @ w[f"{i}.qkv"]
            q, k, v = qkv.view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            out = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
            x = x + out.transpose(1, 2).reshape(x.shape) @ w[f"{i}.out"]
            x = x + F.gelu(norm(x, w[f"{i}.norm1"]) @ w[f"{i}.up"], approximate="tanh") @ w[f"{i}.down"]
        logits = (norm(x, w["norm"]) @ w["table"].T).float()
        return F.cross_entropy(logits.view(-1, PIECES), labels.reshape(-1))

    groups = [{"params": [w for w in weights.values() if (w.ndim > 1) == decayed], "weight_decay": DECAY * decayed} for decayed in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=1e-8, fused=True)
    t = 0

    def call():
        nonlocal t
        cosine = (math.cos(min((t - WARMUP_STEPS) / (STEPS - WARMUP_STEPS), 1) * math.pi) + 1) * 0.5 * (RATE - LAST_RATE) + LAST_RATE
        for group in optimizer.param_groups:
            group["lr"] = t * RATE / WARMUP_STEPS if t < WARMUP_STEPS else cosine
        t += 1
        optimizer.zero_grad()
        value = loss()
        value.backward()
        total = torch.nn.utils.clip_grad_norm_(weights.values(), MAX_GRADIENT_NORM)
        optimizer.step()
        return value.detach(), total

    return call

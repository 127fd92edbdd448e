"""What JAX computes in the examples of functions: `python reference.py NAME > data/NAME_jax.txt`.

Needs jax[cpu]==0.12.0.1. NAME is that of an example; weights, data and orders are those of its Rust file.
"""
import gzip
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

MASK = (1 << 64) - 1
HERE = os.path.dirname(os.path.abspath(__file__))


class Random:
    """SplitMix64."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def uniform(self):
        return np.float32(self.next() >> 40) / np.float32(1 << 24)

    def matrix(self, rows, columns, scale):
        numbers = [(np.float32(2) * self.uniform() - np.float32(1)) * np.float32(scale) for _ in range(rows * columns)]
        return np.array(numbers, np.float32).reshape(rows, columns)


def digits():
    """Images that are not held out, and their labels."""
    seen, pixels, labels = [0] * 10, [], []
    for line in gzip.open(os.path.join(HERE, "data/digits.csv.gz"), "rt"):
        *x, label = map(int, line.split(","))
        seen[label] += 1
        if seen[label] % 5:
            pixels.append(x)
            labels.append(label)
    return np.array(pixels, np.float32) / 16, np.array(labels, np.int32)


def per_example_gradients():
    random, (pixels, labels) = Random(1), digits()
    network = [(random.matrix(64, 32, 0.3), np.zeros(32, np.float32)), (random.matrix(32, 10, 0.3), np.zeros(10, np.float32))]

    def loss(network, x, label):
        (w, b), (o, c) = network
        return -jax.nn.log_softmax(jax.nn.relu(x @ w + b) @ o + c)[label]

    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(network, pixels, labels)
    squares = sum(jnp.sum(g * g, axis=range(1, g.ndim)) for g in jax.tree.leaves(gradients))
    for norm in jnp.sqrt(squares)[:256]:
        print(f"{float(norm):.7f}")


def newton():
    """The optimum in float64, and its loss; the loss after each step in float32 comes first."""
    pixels, labels = digits()
    signs = np.where(labels % 2 == 1, 1.0, -1.0)

    def loss(w, x, signs):
        return jnp.mean(jnp.logaddexp(0, -signs * (x @ w[:-1] + w[-1]))) + 1e-3 * jnp.sum(w * w)

    for dtype in [jnp.float32, jnp.float64]:
        jax.config.update("jax_enable_x64", dtype is jnp.float64)
        w, x, y = jnp.zeros(65, dtype), jnp.asarray(pixels, dtype), jnp.asarray(signs, dtype)
        for _ in range(8 if dtype is jnp.float32 else 30):
            if dtype is jnp.float32:
                print(f"{float(loss(w, x, y)):.7f}")
            w = w - jnp.linalg.solve(jax.hessian(loss)(w, x, y), jax.grad(loss)(w, x, y))
    print(f"{float(loss(w, x, y)):.10f}")
    print("\n".join(f"{float(weight):.7f}" for weight in w))


def rnn_scan():
    """The losses of the first 30 steps."""
    random, (pixels, labels) = Random(1), digits()
    weights = [random.matrix(8, 64, 0.4), random.matrix(64, 64, 0.2), np.zeros(64, np.float32)]
    weights += [random.matrix(64, 10, 0.2), np.zeros(10, np.float32)]

    def loss(weights, x, labels):
        v, w, b, o, c = weights
        state = lambda h, x: (jnp.tanh(x @ v + h @ w + b), None)
        h, _ = jax.lax.scan(state, jnp.zeros((len(labels), 64)), x.reshape(-1, 8, 8).swapaxes(0, 1))
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(h @ o + c) * jax.nn.one_hot(labels, 10), -1))

    @jax.jit
    def step(weights, speeds, x, labels):
        value, gradient = jax.value_and_grad(loss)(weights, x, labels)
        speeds = [0.9 * m + g for m, g in zip(speeds, gradient)]
        return [w - 0.02 * m for w, m in zip(weights, speeds)], speeds, value

    speeds, order = [np.zeros_like(w) for w in weights], list(range(len(labels)))
    for epoch in range(int(os.environ.get("EPOCHS", 1))):
        for i in range(len(order) - 1, 0, -1):
            j = random.next() % (i + 1)
            order[i], order[j] = order[j], order[i]
        for first in range(0, len(order) - 47, 48):
            batch = order[first : first + 48]
            weights, speeds, value = step(weights, speeds, pixels[batch], labels[batch])
            print(f"{float(value):.7f}")


def sample():
    """Sixteen names, from the counts of which letter follows which two."""
    names = open(os.path.join(HERE, "data/elements.txt")).read().split()
    counts = np.zeros((27, 27, 27), np.float32)
    for name in names:
        a, b = 0, 0
        for c in [*(ord(c) - 96 for c in name), 0]:
            counts[a, b, c] += 1
            a, b = b, c
    logits = jnp.where(counts > 0, jnp.log(counts), -jnp.inf)

    def draw(key):
        def step(state):
            i, letters = state
            letter = jax.random.categorical(jax.random.fold_in(key, i), logits[letters[i], letters[i + 1]])
            return i + 1, letters.at[i + 2].set(letter)

        going = lambda state: (state[0] < 20) & ((state[0] == 0) | (state[1][state[0] + 1] != 0))
        return jax.lax.while_loop(going, step, (0, jnp.zeros(22, jnp.int32)))[1]

    for letters in jax.vmap(draw)(jax.random.split(jax.random.key(7), 16)):
        print("".join(chr(96 + c) for c in letters if c))


{f.__name__: f for f in [per_example_gradients, newton, rnn_scan, sample]}[sys.argv[1]]()

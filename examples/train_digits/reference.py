"""The losses of the first two epochs of train_digits with seed 1, by JAX: `python reference.py > ../data/train_digits_jax.txt`.

Needs jax[cpu]==0.12.0.1. The network, its first weights, the batches and AdamW are those of model.rs.
"""
import gzip
import os

import jax
import jax.numpy as jnp
import numpy as np

EPOCHS, BATCH, RATE, DECAY, B1, B2 = 40, 48, 3e-3, 1e-1, 0.9, 0.999
LAYERS = [(64, 128), (128, 128), (128, 10)]
MASK = (1 << 64) - 1


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


def images():
    """The images that are not held out."""
    seen, pixels, labels = [0] * 10, [], []
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/digits.csv.gz")
    for line in gzip.open(path, "rt"):
        *x, label = map(int, line.split(","))
        seen[label] += 1
        if seen[label] % 5:
            pixels.append(x)
            labels.append(label)
    return np.array(pixels, np.float32) / 16, np.array(labels, np.int32)


def loss(network, x, labels):
    for i, (w, b) in enumerate(network):
        x = x @ w + b
        if i + 1 < len(network):
            x = jax.nn.relu(x)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(x) * jax.nn.one_hot(labels, 10), -1))


@jax.jit
def step(network, means, squares, t, steps, x, labels):
    value, gradient = jax.value_and_grad(loss)(network, x, labels)
    rate = (jnp.cos(t * (np.pi / steps)) + 1) * (RATE / 2)
    corrections = [1 - jnp.exp((t + 1) * np.log(beta)) for beta in (B1, B2)]
    new = [[], [], []]
    for layer, g, m, s in zip(network, gradient, means, squares):
        made = []
        for i in range(2):
            mean, square = m[i] * B1 + g[i] * (1 - B1), s[i] * B2 + g[i] * g[i] * (1 - B2)
            direction = mean / corrections[0] / (jnp.sqrt(square / corrections[1]) + 1e-8)
            direction += layer[i] * (DECAY if i == 0 else 0)
            made.append((layer[i] - direction * rate, mean, square))
        for to, which in zip(new, range(3)):
            to.append((made[0][which], made[1][which]))
    return new, value


random = Random(1)
network, zeros = [], []
for inputs, outputs in LAYERS:
    scale = np.sqrt(np.float32(6 / inputs))
    w = [(np.float32(2) * random.uniform() - np.float32(1)) * scale for _ in range(inputs * outputs)]
    network.append((jnp.array(np.array(w, np.float32).reshape(inputs, outputs)), jnp.zeros(outputs)))
    zeros.append((jnp.zeros((inputs, outputs)), jnp.zeros(outputs)))
pixels, labels = images()
state, t = [network, zeros, zeros], 0
for _ in range(2):
    order = list(range(len(labels)))
    for i in range(len(order) - 1, 0, -1):
        j = random.next() % (i + 1)
        order[i], order[j] = order[j], order[i]
    for first in range(0, len(order) - BATCH + 1, BATCH):
        batch = order[first : first + BATCH]
        steps = np.float32(EPOCHS * (len(labels) // BATCH))
        state, value = step(*state, np.float32(t), steps, pixels[batch], labels[batch])
        print(f"{float(value):.7f}")
        t += 1

#!/usr/bin/env python3
"""Times our kernels against XLA (jax) and torch on the CPU: same inputs, in turn, results compared before timing.

    python3 -m venv .venv && .venv/bin/pip install -r benches/requirements.txt
    .venv/bin/python benches/compare.py [--only PART,..] [--runs 15] [--table] [--returned] [--memory] [--old FOLDER] [--no-peers]

One JSON line a case and peer; `ratio` is the peer's time over ours, so more than 1 is ahead. Every time is the minimum of
at least `--runs` calls, in chunks that alternate between the programs. A peer that is not installed is left out with a
notice. `--table` prints a Markdown table behind the lines. `--memory` times nothing: it prints the bytes of temporaries of
jitted functions, ours over XLA's. `--old` takes the program of another checkout as one more peer, `--no-peers` leaves the
libraries out.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Freed memory stays with the process: results go to pages that were written before, on every side. With `--returned` the
# system gets large blocks back, as it does in a program that does not set these variables.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 28)}
if "--returned" not in sys.argv and any(os.environ.get(name) != value for name, value in KEEP_MEMORY.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)

import numpy as np
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent
# Threads of the last program may spin for a while, waiting for work: a pause before the next one's turn.
PAUSE = 0.25


def numbers(rng, *shape, dtype="float32"):
    return rng.standard_normal(shape, dtype="float32").astype(dtype)


def cases():
    """Name -> (inputs, floating point operations or None, bytes or None)."""
    rng = np.random.default_rng(0)
    found = {}
    for n in (512, 1024, 2048):
        found[f"matmul/{n}"] = ({"a": numbers(rng, n, n), "b": numbers(rng, n, n)}, 2 * n**3, None)
    rows = {"x": numbers(rng, 4096, 1024)}
    affine = {"gamma": numbers(rng, 1024), "beta": numbers(rng, 1024)}
    found["softmax/4096x1024"] = (rows, None, 2 * rows["x"].nbytes)
    found["layer_norm/4096x1024"] = (rows | affine, None, 2 * rows["x"].nbytes)
    for mask in ("full", "causal"):
        for s in (512, 1024, 2048):
            operands = {name: numbers(rng, 1, 8, s, 64) for name in "qkv"}
            pairs = 8 * (s * s if mask == "full" else s * (s + 1) // 2)
            found[f"attention_{mask}/8x{s}x64"] = (operands, 4 * pairs * 64, None)
    for mask in ("full", "causal"):
        operands = {name: numbers(rng, 1, 8, 2048, 64) for name in ("q", "k", "v", "dout")}
        pairs = 8 * (2048 * 2048 if mask == "full" else 2048 * 2049 // 2)
        # Two products forward and five backward.
        found[f"attention_gradients_{mask}/8x2048x64"] = (operands, 14 * pairs * 64, None)
    found["add/16x16"] = ({"x": numbers(rng, 16, 16), "y": numbers(rng, 16, 16)}, None, None)
    return found


class Ours:
    """The bench target `compare`, at the other end of a pipe."""

    name = "old"

    def __init__(self, device, folder=ROOT):
        features = [] if device == "gpu" else ["--no-default-features"]
        command = ["cargo", "bench", "--quiet", *features, "--bench", "compare", "--", "--serve", device]
        self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folder = tempfile.TemporaryDirectory()

    def ask(self, command):
        print(command, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer or answer.startswith("error:"):
            raise RuntimeError(f"{command}: {answer.strip() or 'our program ended'}")
        return answer

    def prepare(self, name, inputs):
        given, result = Path(self.folder.name, "in.safetensors"), Path(self.folder.name, "out.safetensors")
        save_file(inputs, given)
        self.ask(f"case {name} {given} {result}")
        outputs = load_file(result)
        return [outputs[str(i)] for i in range(len(outputs))]

    def times(self, calls):
        return [int(t) / 1e6 for t in self.ask(f"time {calls}").split()]

    def temporary_bytes(self):
        return int(self.ask("memory"))


class Peer:
    """A library called in this process; `calls` has its function for each case."""

    def prepare(self, name, inputs):
        self.call = self.function(name, inputs)
        if self.call is None:
            return None
        return [np.asarray(x) for x in self.call()]

    def times(self, calls):
        took = []
        for _ in range(calls):
            start = time.perf_counter()
            self.call()
            took.append((time.perf_counter() - start) * 1e3)
        return took


class Xla(Peer):
    name = "XLA"

    def __init__(self):
        import jax

        from graphs import xla

        self.jax, self.graphs = jax, xla.cases()

    def cases(self):
        return {name: (inputs, None, None) for name, (inputs, _) in self.graphs.items()}

    def temporary_bytes(self, name, inputs):
        """Of the function that a case of a graph has jitted last."""
        jit, last = self.jax.jit, None

        def recorded(function, **options):
            compiled = jit(function, **options)

            def call(*arrays):
                nonlocal last
                last = compiled.lower(*arrays)
                return compiled(*arrays)

            return call

        self.jax.jit = recorded
        try:
            self.function(name, inputs)()
        finally:
            self.jax.jit = jit
        return last.compile().memory_analysis().temp_size_in_bytes

    def function(self, name, inputs):
        jax, jnp = self.jax, self.jax.numpy
        if name in self.graphs:
            call = self.graphs[name][1](**{name: jnp.asarray(x) for name, x in inputs.items()})
            return lambda: jax.block_until_ready(call())

        def softmax_attention(q, k, v, causal):
            scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5)
            if causal:
                scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
            return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)

        def layer_norm(x, gamma, beta):
            mean = x.mean(-1, keepdims=True)
            variance = ((x - mean) ** 2).mean(-1, keepdims=True)
            return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gamma + beta

        def gradients(q, k, v, dout, causal):
            out, back = jax.vjp(lambda q, k, v: softmax_attention(q, k, v, causal), q, k, v)
            return out, *back(dout)

        function = {
            "matmul": lambda a, b: (a @ b,),
            "softmax": lambda x: (jax.nn.softmax(x, -1),),
            "layer_norm": lambda x, gamma, beta: (layer_norm(x, gamma, beta),),
            "attention_full": lambda q, k, v: (softmax_attention(q, k, v, False),),
            "attention_causal": lambda q, k, v: (softmax_attention(q, k, v, True),),
            "attention_gradients_full": lambda q, k, v, dout: gradients(q, k, v, dout, False),
            "attention_gradients_causal": lambda q, k, v, dout: gradients(q, k, v, dout, True),
            "add": lambda x, y: (x + y,),
        }[name.split("/")[0]]
        operands = [jnp.asarray(x) for x in inputs.values()]
        compiled = jax.jit(function).lower(*operands).compile()
        return lambda: jax.block_until_ready(compiled(*operands))


class Torch(Peer):
    name = "torch"

    def __init__(self):
        import torch

        self.torch = torch

    def function(self, name, inputs):
        case = name.split("/")[0]
        torch, F = self.torch, self.torch.nn.functional
        attend = F.scaled_dot_product_attention
        x = {name: torch.from_numpy(x) for name, x in inputs.items()}
        if case.startswith("attention_gradients"):
            operands = [x[name].requires_grad_() for name in "qkv"]

            def gradients():
                out = attend(*operands, is_causal=case.endswith("causal"))
                return out.detach(), *torch.autograd.grad(out, operands, x["dout"])

            return gradients
        if case.startswith("gpt_step"):
            from graphs import gpt

            return gpt.torch_step(x, "bfloat16" if case.endswith("bf16") else "float32")
        function = {
            "matmul": lambda: (x["a"] @ x["b"],),
            "softmax": lambda: (F.softmax(x["x"], -1),),
            "layer_norm": lambda: (F.layer_norm(x["x"], (x["x"].shape[-1],), x["gamma"], x["beta"], 1e-5),),
            "attention_full": lambda: (attend(x["q"], x["k"], x["v"]),),
            "attention_causal": lambda: (attend(x["q"], x["k"], x["v"], is_causal=True),),
            "add": lambda: (x["x"] + x["y"],),
        }.get(case)
        if function is None:
            return None

        def inference():
            with torch.no_grad():
                return function()

        return inference


def installed(kind):
    try:
        return [kind()]
    except ImportError as error:
        print(f"{kind.name} is left out: {error}", file=sys.stderr)
        return []


def best_times(programs, runs, once=False):
    """Minima of at least `runs` calls each, and of a quarter of a second; or, if asked for, of as many, in as many rounds."""
    times = [[] for _ in programs]
    rounds = runs if once else 3
    for _ in range(rounds):
        for program, taken in zip(programs, times):
            time.sleep(PAUSE)
            start = time.perf_counter()
            chunk = program.times(-(-runs // rounds))
            while not once and time.perf_counter() - start < 0.25 / rounds:
                chunk += program.times(max(1, len(chunk)))
            taken += chunk
    return [min(taken) for taken in times]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="", help="cases whose name has one of these parts")
    arguments.add_argument("--runs", type=int, default=15, help="calls of each program, at least")
    arguments.add_argument("--returned", action="store_true", help="give freed memory back to the system")
    arguments.add_argument("--memory", action="store_true", help="compare bytes of temporaries with XLA's instead")
    arguments.add_argument("--table", action="store_true", help="print a Markdown table as well")
    arguments.add_argument("--old", help="another checkout of the repository, whose program is a peer")
    arguments.add_argument("--no-peers", action="store_true", help="leave XLA and torch out")
    given = arguments.parse_args()
    if "fsdp" in given.only:
        # Its case is there with this alone, since it would divide the threads of others.
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    ours, peers = Ours("cpu"), installed(Xla) + installed(Torch)
    # Inputs of functions of arrays come with JAX's side.
    graphs = {name: case for peer in peers[:1] if peer.name == "XLA" for name, case in peer.cases().items()}
    if given.memory:
        for name, (inputs, *_) in graphs.items():
            if any(part in name for part in given.only.split(",")):
                ours.prepare(name, inputs)
                row = {"case": name, "ours_bytes": ours.temporary_bytes()}
                row["xla_bytes"] = peers[0].temporary_bytes(name, inputs)
                print(json.dumps(row | {"ratio": round(row["ours_bytes"] / max(row["xla_bytes"], 1), 3)}), flush=True)
        return
    peers = ([] if given.no_peers else peers) + ([Ours("cpu", given.old)] if given.old else [])
    flops_peak, bytes_peak = map(float, ours.ask("peak").split())
    rows = []
    for name, (inputs, flops, size) in (cases() | graphs).items():
        if not any(part in name for part in given.only.split(",")):
            continue
        results, present = ours.prepare(name, inputs), []
        for peer in peers:
            try:
                answers = peer.prepare(name, inputs)
            except RuntimeError as error:
                print(f"{name}: {peer.name} is left out: {error}", file=sys.stderr)
                continue
            if answers is None:
                continue
            present.append(peer)
            for found, expected in zip(results, answers, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3, err_msg=f"{name}: ours against {peer.name}")
        once = name.startswith("first_call")
        ours_ms, *peer_ms = best_times([ours, *present], len(inputs) - 1 if once else given.runs, once)
        share = None
        if flops:
            share = round(flops / ours_ms / 1e-3 / flops_peak, 3)
        elif size:
            share = round(size / ours_ms / 1e-3 / bytes_peak, 3)
        for peer, ms in zip(present, peer_ms):
            row = {"case": name, "device": "cpu", "ours_ms": round(ours_ms, 4), "peer": peer.name, "peer_ms": round(ms, 4)}
            row |= {"ratio": round(ms / ours_ms, 3), "share_of_peak": share}
            print(json.dumps(row), flush=True)
        rows.append((name, ours_ms, peer_ms, share))
    if given.table:
        print("\n| case | ours, ms | " + " | ".join(f"{p.name}, ms" for p in peers) + " | ratio to the better | share of peak |")
        print("|---|---|" + "---|" * len(peers) + "---|---|")
        for name, ours_ms, peer_ms, share in rows:
            times = [f"{ms:.3g}" for ms in peer_ms] + [""] * (len(peers) - len(peer_ms))
            cells = [name, f"{ours_ms:.3g}", *times, f"{min(peer_ms, default=0) / ours_ms:.2f}"]
            print("| " + " | ".join([*cells, "" if share is None else f"{share:.2f}"]) + " |")


if __name__ == "__main__":
    main()

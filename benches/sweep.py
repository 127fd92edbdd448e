#!/usr/bin/env python3
"""Draws cases by a seed and times our functions against XLA's on one and on two threads, and against torch's.

    python3 -m venv .venv && .venv/bin/pip install -r benches/requirements.txt
    .venv/bin/python benches/sweep.py [--seed 0] [--cases 400] [--only FAMILY,..] [--case N] [--out FILE] [--old FOLDER]

Families, sizes from 1 to 16M elements, f32 or bf16, forward or gradient are drawn for each case (`sweep/families.py`);
`--case` repeats one. A line a case: the better of XLA's times over ours is more than 1 where we are ahead. At the end
quantiles by family and the ten worst cases. Results are compared with XLA's before anything is timed; where they differ,
ours may be off from float64's as much as they may differ, or by twice as much as XLA's, with or without its leave to keep
more digits of 16-bit floats than they have. The exit status is 1 if one differs, or if a case fails. `--out` writes a line of JSON a case.
`--old` compares with the program of another checkout, an earlier commit's, instead.

Every time is a minimum of at least 15 calls (9 of slow cases), in chunks that alternate between the programs. Programs
with one thread have one processor.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Freed memory stays with the process, as in compare.py.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 28)}
ROOT = Path(__file__).resolve().parent.parent
# Greatest difference, as a share of the largest element of a result.
TOLERANCE = {"f32": 2e-3, "bf16": 6e-2}


def save(path, arrays):
    """Writes a safetensors file with arrays `0`, `1`, .."""
    names = {"float32": "F32", "bfloat16": "BF16", "int32": "I32", "uint32": "U32"}
    header, at = {}, 0
    for i, array in enumerate(arrays):
        header[str(i)] = {"dtype": names[str(array.dtype)], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays:
            file.write(array.tobytes())


def load(path):
    import ml_dtypes
    import numpy as np

    dtypes = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "I32": np.int32, "U32": np.uint32}
    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    arrays = {}
    for name, entry in json.loads(data[8:start]).items():
        part = data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]]
        arrays[int(name)] = np.frombuffer(part, dtypes[entry["dtype"]]).reshape(entry["shape"])
    return [arrays[i] for i in range(len(arrays))]


def answer(library, request, state):
    """What a peer says to a request; see `sweep/main.rs`."""
    if "time" in request:
        took = []
        for _ in range(request["time"]):
            start = time.perf_counter_ns()
            state["call"]()
            took.append(time.perf_counter_ns() - start)
        return {"nanoseconds": took}
    state.clear()
    call, to_numpy = library(request, load(request["inputs"]))
    start = time.perf_counter()
    results = call()
    seconds = time.perf_counter() - start
    state["call"] = call
    save(request["outputs"], [to_numpy(x) for x in results])
    return {"seconds": seconds}


def xla():
    import jax
    import numpy as np
    from sweep.programs import Jax, run

    def exact(code, by, inputs):
        with jax.enable_x64(True):
            wide = Jax(wide=True)
            operands = [x.astype(np.float64) if x.dtype.kind not in "iu" else x for x in map(np.asarray, inputs)]
            function = wide.gradient(code, by) if by else lambda *x: run(wide, code, x)
            results = [np.asarray(x) for x in jax.jit(function)(*operands)]
        return [x.astype(np.float32) if x.dtype == np.float64 else x.astype(np.int32) if x.dtype == np.int64 else x for x in results]

    operations = Jax()

    def prepare(request, inputs):
        code, by = request["program"], request["gradient"]
        if request.get("exact"):
            return lambda: exact(code, by, inputs), np.asarray
        operands = [jax.numpy.asarray(x) for x in inputs]
        function = operations.gradient(code, by) if by else lambda *x: run(operations, code, x)
        options = {"xla_allow_excess_precision": False} if request.get("rounded") else None
        compiled = jax.jit(function).lower(*operands).compile(options)
        return lambda: jax.block_until_ready(compiled(*operands)), np.asarray

    return prepare


def torch():
    import ml_dtypes
    import numpy as np
    import torch
    from sweep.programs import Torch, run

    operations = Torch()

    def tensor(x):
        if x.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(x.view(np.uint16).copy()).view(torch.bfloat16)
        return torch.from_numpy(x.copy())

    def to_numpy(x):
        x = x.detach()
        return (x.float() if x.is_floating_point() else x.int()).numpy()

    def prepare(request, inputs):
        code, by = request["program"], request["gradient"]
        operands = [tensor(x) for x in inputs]

        def gradient():
            varied = [x.requires_grad_() for x in operands[:by]]
            return torch.autograd.grad(operations.loss(run(operations, code, operands)), varied)

        def forward():
            with torch.no_grad():
                return run(operations, code, operands)

        return (gradient if by else forward), to_numpy

    return prepare


def serve(name):
    library, state = {"xla": xla, "torch": torch}[name](), {}
    # Libraries print; answers alone go to the script.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            made = answer(library, json.loads(line), state)
        except Exception as error:
            made = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(made), file=answers, flush=True)


class Program:
    """A process that answers requests, on some processors."""

    def __init__(self, name, command, processors):
        self.name, self.command, self.processors = name, command, processors
        self.start()

    def start(self):
        environment = os.environ | KEEP_MEMORY
        if len(self.processors) == 1:
            environment |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
            preexec_fn=lambda: os.sched_setaffinity(0, self.processors),
        )

    def ask(self, request):
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self.process.wait()
            self.start()
            return {"error": f"the process ended with status {status}"}
        return json.loads(line)


def draw(seed, number, families):
    """The case of a number: name, type, whether its gradient is asked for, inputs, program."""
    import numpy as np
    from sweep.families import FAMILIES, LARGEST, Draw

    rng = np.random.default_rng([seed, number])
    name = families[number % len(families)]
    size = int(round(math.exp(rng.uniform(0, math.log(LARGEST)))))
    dtype = "f32" if rng.random() < 0.6 else "bf16"
    inputs, program, differentiable = FAMILIES[name](Draw(rng, size, dtype))
    gradient = differentiable if rng.random() < 0.5 else 0
    return name, dtype, gradient, inputs, program


def arrays(seed, number, inputs, dtype):
    import ml_dtypes
    import numpy as np

    rng = np.random.default_rng([seed, number, 1])
    made = []
    for shape, kind in inputs:
        if isinstance(kind, int):
            made.append(rng.integers(0, kind, shape, dtype=np.int32))
            continue
        x = rng.standard_normal(shape, dtype=np.float32)
        if kind == "weight":
            x /= math.sqrt(shape[0])
        elif kind == "positive":
            x = np.abs(x) + 0.01
        elif kind == "unit":
            x = rng.random(shape, dtype=np.float32) / 2 + 0.5
        made.append(np.asarray(x, np.float32 if dtype == "f32" else ml_dtypes.bfloat16))
    return made


def largest(x):
    """The largest finite element."""
    import numpy as np

    return float(np.abs(np.nan_to_num(x.astype(np.float32), posinf=0, neginf=0)).max(initial=0))


def errors(found, exact):
    """The greatest error of each result."""
    import numpy as np

    return [largest(a.astype(np.float32) - b.astype(np.float32)) for a, b in zip(found, exact)]


def difference(found, expected, dtype):
    """What differs, as a text; none if results agree."""
    import numpy as np

    if len(found) != len(expected):
        return f"{len(found)} results, expected {len(expected)}"
    # A gradient that is 0 but for rounding is small beside the others.
    least = max([1e-6, *(1e-3 * largest(b) for b in expected)])
    for i, (a, b) in enumerate(zip(found, expected)):
        if a.shape != b.shape:
            return f"result {i} has shape {a.shape}, expected {b.shape}"
        if a.dtype != b.dtype:
            return f"result {i} is {a.dtype}, expected {b.dtype}"
        if a.dtype.kind in "iu":
            if (a != b).any():
                return f"result {i} differs in {(a != b).sum()} of {a.size} integers"
            continue
        a, b = a.astype(np.float32), b.astype(np.float32)
        if (np.isfinite(a) != np.isfinite(b)).any() or (np.isnan(a) != np.isnan(b)).any():
            return f"result {i} is not finite in other places"
        a, b = np.nan_to_num(a), np.nan_to_num(b)
        error = float(np.abs(a - b).max(initial=0)) / max(largest(b), least)
        if error > TOLERANCE[dtype]:
            return f"result {i} differs by {error:.1e} of its largest element"
    return None


def times(programs, first):
    """Milliseconds of the fastest call of each; infinitely many of a program that ended."""
    best, rounds = [math.inf] * len(programs), 5 if max(first) < 0.1 else 3
    for _ in range(rounds):
        for i, program in enumerate(programs):
            # Threads of the program before may spin for a while.
            time.sleep(0.01)
            calls = max(3, min(100, int(0.01 / first[i])))
            best[i] = min(best[i], *program.ask({"time": calls}).get("nanoseconds", [math.inf]))
    return [x / 1e6 for x in best]


def binary(dev, folder=ROOT):
    """The program of a checkout, built as `cargo bench` does, or as `cargo test` does."""
    command = ["cargo", "test"] if dev else ["cargo", "bench", "--no-default-features", "-p", "pallas-benches"]
    command += ["--no-run", "--bench", "sweep"]
    built = subprocess.run([*command, "--message-format=json"], cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    return next(m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "sweep")


def quantiles(ratios):
    ratios = sorted(ratios)
    at = lambda q: ratios[min(len(ratios) - 1, int(q * len(ratios)))]
    return [ratios[0], at(0.05), at(0.25), at(0.5), at(0.75)]


def tables(rows, peer):
    """Prints quantiles of the ratios to a peer (`xla` or `old`) by family, and the worst cases."""
    timed = [row for row in rows if "error" not in row]
    for threads in ("2", "1"):
        print(f"\ntime of {peer} over ours, {threads} thread{'s' if threads == '2' else ''}")
        print(f"{'family':24}{'cases':>6}{'least':>8}{'5%':>8}{'25%':>8}{'median':>8}{'75%':>8}")
        of = {name: [row[f"{peer}_{threads}"] / row[f"ours_{threads}"] for row in timed if name in (row["family"], "all")] for name in ["all", *sorted({row["family"] for row in timed})]}
        for name, ratios in of.items():
            if ratios:
                print(f"{name:24}{len(ratios):>6}" + "".join(f"{q:>8.2f}" for q in quantiles(ratios)))
        if of["all"]:
            print(f"geometric mean {math.exp(sum(map(math.log, of['all'])) / len(of['all'])):.3f}")
            above = lambda bound: sum(r >= bound for r in of["all"]) / len(of["all"])
            print("at least " + ", ".join(f"{bound}: {above(bound):.1%}" for bound in (0.4, 0.7, 0.8, 0.9, 1.0)))
    torch = [row["torch"] / row["ours_2"] for row in timed if row.get("torch")]
    if torch:
        print(f"\ntorch's time over ours, {len(torch)} cases: " + ", ".join(f"{q:.2f}" for q in quantiles(torch)) + " (least, 5%, 25%, median, 75%)")
    print("\nthe ten worst")
    worst = lambda row: min(row[f"{peer}_2"] / row["ours_2"], row[f"{peer}_1"] / row["ours_1"])
    for row in sorted(timed, key=worst)[:10]:
        print(f"{worst(row):6.2f}  {row['case']}")
    for row in rows:
        if "error" in row:
            print(f"error   {row['case']}: {row['error']}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--cases", type=int, default=400)
    arguments.add_argument("--first", type=int, default=0, help="number of the first case")
    arguments.add_argument("--case", type=int, help="the number of the only case")
    arguments.add_argument("--only", default="", help="families, by a part of their names; numbers of cases stay")
    arguments.add_argument("--out", help="a file of JSON lines")
    arguments.add_argument("--binary", help="our program, if it is built")
    arguments.add_argument("--old", help="another checkout of the repository, or its program, in place of XLA and torch")
    arguments.add_argument("--dev", action="store_true", help="build our program as tests are built: its times are of no use")
    arguments.add_argument("--results", action="store_true", help="compare results alone")
    arguments.add_argument("--peer", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.peer:
        serve(given.peer)
        return 0
    from sweep.families import FAMILIES

    ours, served = [given.binary or binary(given.dev), "--serve"], [sys.executable, __file__, "--peer"]
    peer, theirs = ("xla", [*served, "xla"])
    if given.old:
        peer, theirs = "old", [given.old if os.path.isfile(given.old) else binary(given.dev, given.old), "--serve"]
    two, one = f"{peer}_2", f"{peer}_1"
    processors = sorted(os.sched_getaffinity(0))
    programs = {"ours_2": Program("ours", ours, processors[:2]), two: Program(peer, theirs, processors[:2])}
    if not given.results:
        if not given.old:
            programs["torch"] = Program("torch", [*served, "torch"], processors[:2])
        programs |= {"ours_1": Program("ours", ours, processors[:1]), one: Program(peer, theirs, processors[:1])}
    rows, families = [], list(FAMILIES)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        numbers = range(given.first, given.first + given.cases) if given.case is None else [given.case]
        for number in numbers:
            name, dtype, gradient, inputs, program = draw(given.seed, number, families)
            if not any(part in name for part in given.only.split(",")):
                continue
            shapes = " ".join("x".join(map(str, shape)) or "1" for shape, _ in inputs[:4])
            row = {"case": f"{number} {name} {dtype}{' gradient' if gradient else ''} {shapes}", "family": name}
            kinds = {operation for operation, *_ in program["steps"]}
            row["case"] += " " + ",".join(sorted(kinds))[:60]
            save(f"{folder}/in", arrays(given.seed, number, inputs, dtype))
            request = {"program": program, "gradient": gradient, "inputs": f"{folder}/in"}
            present, first = {}, []
            for key, process in programs.items():
                answered = process.ask(request | {"outputs": f"{folder}/{key}"})
                if "error" not in answered:
                    present[key] = process
                elif key != "torch":
                    row["error"] = f"{key}: {answered['error']}"
                    break
            if "error" not in row:
                ours, theirs = load(f"{folder}/ours_2"), load(f"{folder}/{two}")
                found = difference(ours, theirs, dtype)
                if found and "differs by" in found:
                    # Whose rounding is it? XLA adds up 16-bit numbers in 16 bits here and there, and rounds fewer results.
                    answered = programs[two].ask(request | {"exact": True, "outputs": f"{folder}/exact"})
                    exact = load(f"{folder}/exact") if "error" not in answered else theirs
                    answered = programs[two].ask(request | {"rounded": True, "outputs": f"{folder}/rounded"})
                    rounded = load(f"{folder}/rounded") if "error" not in answered else theirs
                    # Each result is as near as XLA's, or near.
                    bounds = map(max, errors(theirs, exact), errors(rounded, exact))
                    bounds = [max(2 * b, TOLERANCE[dtype] * largest(x)) for b, x in zip(bounds, exact)]
                    if all(a <= b for a, b in zip(errors(ours, exact), bounds)):
                        found = None
                    # The function to be timed.
                    programs[two].ask(request | {"outputs": f"{folder}/{two}"})
                if found:
                    row["error"] = found
            if "error" not in row and not given.results:
                first = [process.ask({"time": 2}).get("nanoseconds", [math.inf])[-1] / 1e9 for process in present.values()]
                took = dict(zip(present, times(list(present.values()), first)))
                ended = [key for key, ms in took.items() if ms == math.inf]
                row |= {key: ms for key, ms in took.items() if key not in ended}
                if ended and ended != ["torch"]:
                    row["error"] = f"{', '.join(ended)} ended while it was timed"
            if "error" not in row and not given.results:
                ratios = row[two] / row["ours_2"], row[one] / row["ours_1"]
                torch = f"{row['torch'] / row['ours_2']:7.2f}" if "torch" in row else "      -"
                print(f"{ratios[0]:7.2f}{ratios[1]:7.2f}{torch}  {row['ours_2']:9.3f} ms  {row['case']}", flush=True)
            if "error" in row:
                print(f"error  {row['case']}: {row['error']}", flush=True)
            rows.append(row)
            if given.out:
                with open(given.out, "a") as file:
                    print(json.dumps(row), file=file)
    if not given.results:
        tables(rows, peer)
    failed = sum("error" in row for row in rows)
    print(f"{len(rows)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

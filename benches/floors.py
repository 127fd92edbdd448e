#!/usr/bin/env python3
"""Measures every floor of the project and prints what was measured beside its bound.

    python3 -m venv .venv && .venv/bin/pip install -r benches/requirements.txt
    .venv/bin/python benches/floors.py [--only PART,..] [--list] [--old COMMIT] [--cubek] [--whole] [--runs 15]

A floor is a line of `FLOORS`: its name, the measurement that it is read from, the figure's name there, and the bound.
Measurements are the other benches and tests of the repository; each runs once, however many floors are read from it. The
exit status is 1 if a floor is missed or could not be measured. Measured on an idle machine, all of it takes about an hour.

`--old COMMIT` adds what is compared with an earlier commit, in the same run: processor time of README's first command, and
each case of `compare.py`. `--cubek` adds the comparison with CubeK, which builds it; `--whole` adds `cargo bench`, all of it.
"""
import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GIVEN = None


def output(command, cwd=ROOT, environment=(), check=True):
    """What a command prints, its errors among it; it is shown as well if it fails."""
    ended = subprocess.run(command, cwd=cwd, env=os.environ | dict(environment), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if check and ended.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: status {ended.returncode}\n{ended.stdout[-2000:]}")
    return ended.stdout


def rows(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def compare(only, *options):
    """The time of the best peer over ours, of cases of `compare.py`."""
    found = {}
    for row in rows(output([sys.executable, "benches/compare.py", "--only", only, "--runs", str(GIVEN.runs), *options])):
        found[row["case"]] = min(row["ratio"], found.get(row["case"], float("inf")))
    return found


def microseconds():
    """Our time of the smallest calls."""
    text = output([sys.executable, "benches/compare.py", "--only", "add/,jitted/", "--runs", "1000"])
    return {row["case"]: row["ours_ms"] * 1e3 for row in rows(text)}


def expansion():
    """Milliseconds that `#[kernel]` takes for flash attention in a build for debugging."""
    command = ["cargo", "test", "-p", "pallas-macros", "--lib", "--", "--ignored", "--nocapture", "time_of_flash_attention"]
    text = output(command, environment={"CARGO_PROFILE_TEST_OPT_LEVEL": "0"})
    value, unit = re.search(r"expands in ([\d.]+)(ms|µs)", text).groups()
    return {"ms": float(value) * {"ms": 1, "µs": 1e-3}[unit]}


def benches():
    """1 if all benches run to their end."""
    output(["cargo", "bench"])
    return {"holds": 1}


def worst(found, pick):
    """The least or greatest (`pick` is `min` or `max`) of these figures, with its name."""
    name = pick(found, key=found.get)
    return found[name], name


def half_operands():
    """Time with operands in f16 over that in f32, of the bench `kernels`."""
    text = output(["cargo", "bench", "--no-default-features", "--bench", "kernels", "--", "matmul|attention"])
    took = {(name, shape): float(ms) for name, shape, ms in re.findall(r"^ +(\S.*?) (\S+) on \S+: ([\d.]+) ms", text, re.M)}
    found = {}
    for (name, shape), ms in took.items():
        if name.endswith(" f16") and (name[:-4], shape) in took:
            found[f"{name[:-4]} {shape}"] = ms / took[name[:-4], shape]
    return found


def ratios(table):
    """1 if the table of the bench `ratios` holds all of its own floors."""
    output(["cargo", "bench", "--no-default-features", "--bench", "ratios", "--", table])
    return {"holds": 1}


def reads():
    """Share of the limit, a sum's bandwidth or the peak of f32, of each line of the table `reads`."""
    text = output(["cargo", "bench", "--no-default-features", "--bench", "ratios", "--", "reads"])
    return {line[:44].strip(): float(line.split()[-1]) for line in text.splitlines() if re.search(r" \d\.\d\d$", line)}


def plain():
    """Time of plain operations over that of the shipped function, and of convolutions NHWC over those of images NCHW."""
    text = output(["cargo", "bench", "--no-default-features", "--features", "graph", "--bench", "plain"])
    found = {line[:32].strip(): float(line.split()[-1]) for line in text.splitlines() if re.search(r" \d+\.\d+$", line)}
    layouts = {name: ratio for name, ratio in found.items() if re.search("NCHW|by images|by the window", name)}
    shipped = {name: ratio for name, ratio in found.items() if name not in layouts}
    return found | {"least": worst(shipped, min), "layouts": worst(layouts, min)}


def batches():
    """Time of the gradient of `mean(vmap(loss))` over that of the loss written for a batch, of 60 drawn losses."""
    text = output(["cargo", "bench", "--no-default-features", "--bench", "batches"])
    found = {line[:52].strip(): float(line.split()[-1]) for line in text.splitlines() if re.search(r" \d+\.\d+$", line[52:])}
    return found | {"most": worst(found, max)}


def memory():
    """Bytes of temporaries of jitted functions over XLA's."""
    text = output([sys.executable, "benches/compare.py", "--memory", "--only", "mlp,rnn,encoder"])
    return {"most": worst({row["case"]: row["ratio"] for row in rows(text)}, max)}


def partition():
    """Milliseconds to propagate and partition 80 layers for 64 x 64 devices."""
    text = output(["cargo", "bench", "--bench", "partition"])
    return {"80 layers": float(re.search(r"^80 layers.*partitioned in ([\d.]+) ms", text, re.M)[1])}


def adapter():
    """CubeK's time of all processors over ours, and of first results; on a software adapter."""
    text = output(["cargo", "bench", "--bench", "adapter", "--", "--cubek", "--json"])
    found = {}
    for row in rows(text):
        if row["peer"].startswith("CubeK"):
            found |= {row["case"]: row["cpu_ratio"], f"{row['case']} first": row["first_ratio"]}
    return found


def drawn(*options):
    """The rows of `sweep.py`, one a drawn case."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows")
        output([sys.executable, "benches/sweep.py", "--seed", str(GIVEN.seed), "--out", out, *options], check=False)
        return [json.loads(line) for line in out.read_text().splitlines()]


def sweep():
    """Quantiles of XLA's time over ours, of 400 drawn cases."""
    made = drawn()
    found = {"failed": sum("error" in row for row in made)}
    for threads in "12":
        timed = sorted((row[f"xla_{threads}"] / row[f"ours_{threads}"], row["case"]) for row in made if "error" not in row)
        found |= {f"median {threads}": timed[len(timed) // 2], f"5% {threads}": timed[len(timed) // 20], f"least {threads}": timed[0]}
    return found


def tests(*arguments, required=()):
    """1 if tests pass; those of a name that nothing has do not."""
    text = output(["cargo", "test", *arguments], environment=dict.fromkeys(required, "1"))
    if not re.search(r"test result: ok\. [1-9]", text):
        raise RuntimeError(f"cargo test {' '.join(arguments)}: there is no such test")
    return {"pass": 1}


def processor_seconds(command, cwd):
    with tempfile.TemporaryDirectory() as target:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        output(command, cwd, {"CARGO_TARGET_DIR": target})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_command(folder):
    """README's first command."""
    return re.search(r"^cargo run .*$", Path(folder, "README.md").read_text(), re.M)[0].split()


def earlier():
    """Processor time of README's first command over the earlier commit's, and the earlier time over ours of other cases: those
    of `compare.py`, and 100 of the sweep on two threads."""
    folder = Path(tempfile.mkdtemp())
    try:
        output(["git", "worktree", "add", "--detach", folder, GIVEN.old])
        seconds = [processor_seconds(first_command(at), at) for at in (ROOT, folder)]
        found = compare("", "--old", str(folder), "--no-peers")
        cases = {row["case"]: row["old_2"] / row["ours_2"] for row in drawn("--cases", "100", "--old", str(folder)) if "error" not in row}
        means = {"mean": statistics.geometric_mean(found.values()), "drawn mean": statistics.geometric_mean(cases.values())}
        return {"first command": seconds[0] / seconds[1], "least": worst(found, min), "drawn least": worst(cases, min)} | means
    finally:
        output(["git", "worktree", "remove", "--force", folder], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def crates():
    output([".ci/crates"])
    return {"holds": 1}


# Name -> what is run. A measurement gives figures by name, some with the name of the case that they are of.
MEASUREMENTS = {
    "crates": crates,
    "compare": lambda: compare("matmul,softmax,layer_norm,attention,mlp,gpt,rnn,encoder,chain,kernels_50,products_50,conv,sort,top_k,take,scatter"),
    "small": microseconds,
    "first calls": lambda: compare("first_call"),
    "half": half_operands,
    "masks": lambda: ratios("masks"),
    "dropout": lambda: ratios("dropout"),
    "fusion": lambda: ratios("fusion"),
    "compile": lambda: ratios("compile"),
    "nested": lambda: ratios("nested"),
    "reads": reads,
    "plain": plain,
    "batches": batches,
    "memory": memory,
    "fsdp": lambda: compare("fsdp"),
    "partition": partition,
    "adapter": adapter,
    "sweep": sweep,
    "earlier": earlier,
    "expansion": expansion,
    "benches": benches,
    "launches": lambda: tests("-p", "pallas-rt", "--lib", "jit::tests::launches"),
    "long": lambda: tests("-p", "pallas-rt", "--lib", "jit::tests::long"),
    "structure": lambda: tests("--test", "product", "structure::"),
    "matrices": lambda: tests("--test", "product", "matrices::"),
    "shardy": lambda: tests("-p", "pallas-graph", "--test", "shardy"),
    "mpi": lambda: tests("-p", "pallas-rt", "--no-default-features", "--features", "mpi", "--test", "mpi", required=["PALLAS_REQUIRE_MPI"]),
    "audit": lambda: tests("-p", "pallas-rt", "--lib", "audit"),
    "retraces": lambda: tests("-p", "pallas-rt", "--lib", "sharded::retraces"),
}
# Need an option.
ASKED = {"earlier": "old", "adapter": "cubek", "benches": "whole"}

LEAST, MOST = "at least", "at most"
FLOORS = [
    ("README's first command builds the crates on its list alone", "crates", "holds", LEAST, 1),
    ("README's first command, processor time against an earlier commit's", "earlier", "first command", MOST, 0.55),
    ("no case slower than at an earlier commit", "earlier", "least", LEAST, 0.95),
    ("cases against an earlier commit, geometric mean", "earlier", "mean", LEAST, 0.98),
    ("no drawn case slower than at an earlier commit", "earlier", "drawn least", LEAST, 0.93),
    ("drawn cases against an earlier commit, geometric mean", "earlier", "drawn mean", LEAST, 0.98),
    *[(f"matmul {n}", "compare", f"matmul/{n}", LEAST, 0.92) for n in (512, 1024, 2048)],
    ("softmax 4096x1024", "compare", "softmax/4096x1024", LEAST, 1.15),
    ("layer norm 4096x1024", "compare", "layer_norm/4096x1024", LEAST, 1.0),
    *[(f"attention 8x{n}x64", "compare", f"attention_full/8x{n}x64", LEAST, 0.95) for n in (512, 1024, 2048)],
    *[(f"causal attention 8x{n}x64", "compare", f"attention_causal/8x{n}x64", LEAST, 1.15) for n in (512, 1024, 2048)],
    *[(f"gradients of {mask} attention 8x2048x64", "compare", f"attention_gradients_{mask}/8x2048x64", LEAST, 0.9) for mask in ("full", "causal")],
    ("matmul 1024 of f16, time of f32 = 1", "half", "matmul 1024x1024", MOST, 1.3),
    ("attention 8x1024x64 of f16, time of f32 = 1", "half", "attention 1x8x1024x64", MOST, 1.3),
    ("MLP step", "compare", "mlp_step/256x784-512-512-10", LEAST, 0.9),
    ("MLP step of bf16", "compare", "mlp_step_bf16/256x784-512-512-10", LEAST, 0.9),
    ("step of a GPT", "compare", "gpt_step/8x256x192x4", LEAST, 1.0),
    ("step of a GPT in bf16", "compare", "gpt_step_bf16/8x256x192x4", LEAST, 1.0),
    ("RNN", "compare", "rnn/512x32x256", LEAST, 1.0),
    ("gradient of an RNN", "compare", "rnn_gradient/512x32x256", LEAST, 0.9),
    ("encoder block", "compare", "encoder_block/4x512x384", LEAST, 0.9),
    ("encoder MiniLM", "compare", "encoder/32x128x384", LEAST, 0.9),
    ("chain of 16M, donated", "compare", "chain_donated/16M", LEAST, 0.9),
    ("chain of 16M, dropped", "compare", "chain_dropped/16M", LEAST, 3),
    ("chain of 16M, kept", "compare", "chain_kept/16M", LEAST, 0.9),
    ("50 small kernels", "compare", "kernels_50/16x16", LEAST, 1.2),
    ("50 small products", "compare", "products_50/8x8", LEAST, 0.6),
    ("convolution NHWC", "compare", "conv/32x56x56x64", LEAST, 0.5),
    ("sort of 1M", "compare", "sort/1M", LEAST, 1.0),
    ("top-k of 1M", "compare", "top_k/1M", LEAST, 1.0),
    ("take", "compare", "take/100k", LEAST, 1.0),
    ("scatter-add", "compare", "scatter_add/100k", LEAST, 1.0),
    ("launch of an addition 16x16, µs", "small", "add/16x16", MOST, 2),
    ("jitted call of an addition 16x16, µs", "small", "jitted/16x16", MOST, 3),
    ("1,000 operations in 250 unlike kernels, first result", "first calls", "first_call/1000", LEAST, 50),
    ("attention under masks, time a live block", "masks", "holds", LEAST, 1),
    ("dropout of attention, at most twice the time", "dropout", "holds", LEAST, 1),
    ("a fused chain, a third of its operations' time", "fusion", "holds", LEAST, 1),
    ("compile time, prepared launches", "compile", "holds", LEAST, 1),
    ("compile time of nested functions, a level", "nested", "holds", LEAST, 1),
    *[(f"reading once: {name}", "reads", name, LEAST, bound) for name, bound in [
        ("matmul f32, 1 rows", 0.7), ("matmul f32, 4 rows", 0.7), ("matmul f32, 8 rows", 0.7), ("matmul f16, 1 row", 0.7), ("matmul bf16, 1 row", 0.7),
        ("matmul int8 weights, 1 rows", 0.6), ("matmul int4 weights, 1 rows", 0.6), ("matmul int8 weights, 8 rows", 0.6), ("matmul int4 weights, 8 rows", 0.6),
        ("decode f32, 1 queries", 0.7), ("decode f32, 4 queries", 0.7), ("decode f16, 1 queries", 0.7), ("paged i8, pages of 16", 0.6)]],
    ("shipped functions against plain operations, the worst", "plain", "least", LEAST, 0.95),
    ("convolutions of images NCHW against NHWC, the worst", "plain", "layouts", LEAST, 0.87),
    ("gradients of 60 mapped losses, time of the batch = 1, the worst", "batches", "most", MOST, 1.15),
    ("temporaries over XLA's: MLP step, RNN, encoder", "memory", "most", MOST, 1.1),
    ("FSDP step on 8 virtual devices", "fsdp", "fsdp_step/64x128x512x4", LEAST, 0.67),
    ("80 layers on 64 x 64 devices, ms", "partition", "80 layers", MOST, 1000),
    ("CubeK on lavapipe: matmul 1024", "adapter", "matmul/1024", LEAST, 1.0),
    ("CubeK on lavapipe: attention 8x512x64", "adapter", "attention_full/8x512x64", LEAST, 0.75),
    ("CubeK on lavapipe: first result of attention", "adapter", "attention_full/8x512x64 first", LEAST, 5),
    *[(f"sweep, {threads} threads: {name}", "sweep", f"{name} {threads}", LEAST, bound) for threads in "12" for name, bound in [("median", 1.2), ("5%", 0.8), ("least", 0.4)]],
    ("sweep: cases that fail", "sweep", "failed", MOST, 0),
    ("expansion of flash attention, ms", "expansion", "ms", MOST, 50),
    ("`cargo bench`, all of it", "benches", "holds", LEAST, 1),
    ("launches of MLP step, encoder block, softmax(q kᵀ)", "launches", "pass", LEAST, 1),
    ("10,000 operations; chain of 100,000; trees 10,000 deep", "long", "pass", LEAST, 1),
    ("shaders on the profile `gpu`: barriers, words, banks", "structure", "pass", LEAST, 1),
    ("products on the profile `gpu`: 4 fma a word", "matrices", "pass", LEAST, 1),
    ("propagation and bytes against Shardy", "shardy", "pass", LEAST, 1),
    ("MPI: bits of lockstep, killed ranks named", "mpi", "pass", LEAST, 1),
    ("altered annotations named by the audit", "audit", "pass", LEAST, 1),
    ("one trace of steps that are alike", "retraces", "pass", LEAST, 1),
]


def main():
    global GIVEN
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="", help="floors or measurements whose name has one of these parts")
    arguments.add_argument("--list", action="store_true", help="print floors and their bounds, measure nothing")
    arguments.add_argument("--old", help="an earlier commit")
    arguments.add_argument("--cubek", action="store_true", help="compare with CubeK")
    arguments.add_argument("--whole", action="store_true", help="run `cargo bench`, all of it")
    arguments.add_argument("--runs", type=int, default=15)
    arguments.add_argument("--seed", type=int, default=0, help="of the sweep")
    GIVEN = arguments.parse_args()
    chosen = [f for f in FLOORS if any(part in text for part in GIVEN.only.split(",") for text in f[:2])]
    chosen = [f for f in chosen if f[1] not in ASKED or getattr(GIVEN, ASKED[f[1]])]
    if GIVEN.list:
        for name, source, figure, relation, bound in chosen:
            print(f"{name:64}{relation} {bound:<8} {source}: {figure}")
        return 0
    figures, missed = {}, 0
    print(f"{'floor':64}{'measured':>10}  {'bound':16}")
    for name, source, figure, relation, bound in chosen:
        if source not in figures:
            try:
                figures[source] = MEASUREMENTS[source]()
            except (RuntimeError, subprocess.SubprocessError, ValueError, TypeError) as error:
                print(f"{source}: {error}", file=sys.stderr)
                figures[source] = {}
        measured, case = figures[source].get(figure), ""
        if isinstance(measured, tuple):
            measured, case = measured
        holds = measured is not None and (measured >= bound if relation == LEAST else measured <= bound)
        missed += not holds
        shown = "-" if measured is None else f"{measured:.3g}"
        print(f"{name:64}{shown:>10}  {relation} {bound:<8}{'' if holds else 'NOT MEASURED ' if measured is None else 'MISSED '}{case}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} floors hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

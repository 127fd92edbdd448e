#!/usr/bin/env python3
"""Compiles and runs StableHLO and HLO modules by XLA on the CPU, and compares what they return with given numbers.

  stablehlo.py FOLDER
The folder has for each case NAME.mlir and NAME.hlo, which XLA's own parser reads, NAME.txt with a line for each operand and each expected result in order
(`in f32 2,3` and `out f32 2,3 TOLERANCE`), and NAME.bin with their bytes, one after the other. A line of the output says
what is wrong with a case; the last one is `agreement: N of M`."""
import glob, os, subprocess, sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The simplifier replaces x / x of integers by 1 also where x is 0, and ends the process in some programs.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_enable_fast_math=false --xla_disable_hlo_passes=algsimp",
)
import jax
import ml_dtypes
import numpy as np
from jax._src import xla_bridge
from jax._src.interpreters import mlir
from jaxlib import _hlo, _jax, xla_client
from jaxlib.mlir import ir

jax.config.update("jax_enable_x64", True)
NAMES = dict(f64=np.float64, f32=np.float32, f16=np.float16, bf16=ml_dtypes.bfloat16, bool=np.bool_)
NAMES |= {f"{kind}{n}": np.dtype(f"{name}{n}") for n in (8, 16, 32, 64) for kind, name in (("i", "int"), ("u", "uint"))}
backend = xla_bridge.get_backend("cpu")
device = xla_client.DeviceList(tuple(backend.local_devices()[:1]))


def cases(name):
    data, offset, ins, outs = open(name + ".bin", "rb").read(), 0, [], []
    for line in open(name + ".txt"):
        kind, dtype, shape, *tolerance = line.rstrip("\n").split(" ")
        shape = [int(n) for n in shape.split(",") if n]
        count = int(np.prod(shape, dtype=int))
        array = np.frombuffer(data, NAMES[dtype], count, offset).reshape(shape)
        offset += array.nbytes
        (ins if kind == "in" else outs).append((array, float(tolerance[0])) if tolerance else array)
    return ins, outs


def run(path):
    name, kind = os.path.splitext(path)
    ins, outs = cases(name)
    text = open(path).read()
    if kind == ".hlo":
        # The client compiles MLIR alone; XLA itself translates what it has parsed.
        text = _jax.mlir.hlo_to_stablehlo(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        module.operation.verify()
        program = backend.compile_and_load(module, executable_devices=device, compile_options=xla_client.CompileOptions())
    results = program.execute_sharded([jax.device_put(x) for x in ins]).disassemble_into_single_device_arrays()
    for i, ((want, tolerance), found) in enumerate(zip(outs, results, strict=True)):
        found = np.asarray(found[0])
        if found.shape != want.shape or found.dtype != want.dtype:
            return f"result {i} is {found.dtype}{found.shape}, not {want.dtype}{want.shape}"
        if not found.size:
            continue
        a, b = (x.astype(np.float64) if x.dtype.kind not in "iub" else x for x in (want, found))
        is_equal = (a == b) | ((a != a) & (b != b))
        if a.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                is_equal |= np.abs(a - b) <= tolerance * (1 + np.abs(a))
        if not is_equal.all():
            at = tuple(int(n) for n in np.argwhere(~is_equal)[0])
            return f"result {i} at {at} is {found[at]}, not {want[at]} ({(~is_equal).sum()} of {want.size} differ)"


def child(names):
    """A line for each case: empty if it agrees."""
    for name in names:
        try:
            wrong = run(name)
        except Exception as error:
            wrong = " ".join(str(error).split())[:300]
        print(wrong or "", flush=True)


if len(sys.argv) > 2:
    child(sys.stdin.read().split("\n"))
    sys.exit()
names = sorted(path for kind in ("mlir", "hlo") for path in glob.glob(f"{sys.argv[1]}/*.{kind}"))
agree, rest = 0, names
while rest:
    # A case may end XLA's process; the next one goes on behind it.
    made = subprocess.run([sys.executable, __file__, sys.argv[1], "child"], input="\n".join(rest), capture_output=True, text=True)
    lines = made.stdout.split("\n")[:-1]
    if len(lines) < len(rest):
        lines.append("XLA's process ended: " + " ".join(made.stderr.split())[:300])
    for name, wrong in zip(rest, lines):
        agree += not wrong
        if wrong:
            print(os.path.basename(name) + ":", wrong)
    rest = rest[len(lines) :]
print(f"agreement: {agree} of {len(names)}")

#!/usr/bin/env python3
"""Compiles and runs StableHLO and HLO modules by XLA on the CPU, and compares what they return with given numbers.

  stablehlo.py FOLDER
The folder has for each case NAME.mlir and NAME.hlo, of which XLA's own parser reads the second, NAME.txt, and NAME.bin with
the bytes of all operands and expected results, one after the other. The first line of NAME.txt is `devices N KIND`, then
there is one for each operand and each expected result in order (`in f32 2,3` and `out f32 2,3 TOLERANCE`). The kind `blocks`
is a program that each device runs on blocks: with several devices, arrays have a first axis of these. The kind `whole` is one
on whole arrays, which XLA divides as the text says. A line of the output says what is wrong with a case; the last one is
`agreement: N of M`."""
import glob, os, re, subprocess, sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The simplifier replaces x / x of integers by 1 also where x is 0, and ends the process in some programs.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=16 --xla_backend_optimization_level=0 --xla_cpu_enable_fast_math=false --xla_disable_hlo_passes=algsimp",
)
import jax
import ml_dtypes
import numpy as np
from jax._src import xla_bridge
from jax._src.sharding_impls import GSPMDSharding
from jax._src.interpreters import mlir
from jaxlib import _hlo, _jax, xla_client
from jaxlib.mlir import ir

jax.config.update("jax_enable_x64", True)
NAMES = dict(f64=np.float64, f32=np.float32, f16=np.float16, bf16=ml_dtypes.bfloat16, bool=np.bool_)
NAMES |= {f"{kind}{n}": np.dtype(f"{name}{n}") for n in (8, 16, 32, 64) for kind, name in (("i", "int"), ("u", "uint"))}
backend = xla_bridge.get_backend("cpu")


def cases(name):
    data, offset, ins, outs = open(name + ".bin", "rb").read(), 0, [], []
    devices, *lines = open(name + ".txt").read().split("\n")[:-1]
    for line in lines:
        kind, dtype, shape, *tolerance = line.split(" ")
        shape = [int(n) for n in shape.split(",") if n]
        count = int(np.prod(shape, dtype=int))
        array = np.frombuffer(data, NAMES[dtype], count, offset).reshape(shape)
        offset += array.nbytes
        (ins if kind == "in" else outs).append((array, float(tolerance[0])) if tolerance else array)
    return int(devices.split(" ")[1]), devices.split(" ")[2], ins, outs


# XLA refuses partitions that it has not made itself, but runs replicas, whose exchanges have no channels.
REPLICAS = [
    (r"channel_handle = #stablehlo.channel_handle<[^>]*>, |channel_id=\d+, ", ""),
    (r", use_global_device_ids(=true)?", ""),
    (r"stablehlo.partition_id", "stablehlo.replica_id"),
    (r"partition-id\(", "replica-id("),
]


def compiled(text, count, kind):
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    devices = np.arange(count)
    if kind == "blocks":
        options.num_replicas = build.num_replicas = count
        build.device_assignment = xla_client.DeviceAssignment.create(devices.reshape(count, 1))
    else:
        options.num_partitions = build.num_partitions = count
        build.use_spmd_partitioning = build.use_shardy_partitioner = True
        build.device_assignment = xla_client.DeviceAssignment.create(devices.reshape(1, count))
    devices = xla_client.DeviceList(tuple(backend.local_devices()[:count]))
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        module.operation.verify()
        return backend.compile_and_load(module, executable_devices=devices, compile_options=options)


def executed(program, count, kind, ins, shapes):
    """The results on the host."""
    devices = backend.local_devices()[:count]
    # All devices have arrays of one shape; blocks have their own elements in it.
    same = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(devices), "d"), jax.sharding.PartitionSpec())
    if kind == "blocks":
        put = lambda x: [jax.device_put(block, device) for block, device in zip(x, devices)]
        blocks = [x if count > 1 else x[None] for x in ins]
        args = [jax.make_array_from_single_device_arrays(x.shape[1:], same, put(x)) for x in blocks]
    else:
        placed = lambda protos, n: [GSPMDSharding(devices, p) for p in protos] if protos else [same] * n
        args = [jax.device_put(x, s) for x, s in zip(ins, placed(program.get_parameter_shardings(), len(ins)))]
    results = program.execute_sharded(args).disassemble_into_single_device_arrays()
    if kind == "blocks":
        return [np.stack([np.asarray(x) for x in all]) if count > 1 else np.asarray(all[0]) for all in results]
    shardings = placed(program.get_output_shardings(), len(results))
    of = jax.make_array_from_single_device_arrays
    return [np.asarray(of(shape, s, all)) for shape, s, all in zip(shapes, shardings, results)]


def run(path):
    name, form = os.path.splitext(path)
    count, kind, ins, outs = cases(name)
    text = open(path).read()
    for pattern, other in REPLICAS if kind == "blocks" else []:
        text = re.sub(pattern, other, text)
    if form == ".hlo":
        # The client compiles MLIR alone; XLA itself translates what it has parsed.
        text = _jax.mlir.hlo_to_stablehlo(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    shapes = [want.shape for want, _ in outs]
    results = executed(compiled(text, count, kind), count, kind, ins, shapes)
    for i, ((want, tolerance), found) in enumerate(zip(outs, results, strict=True)):
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

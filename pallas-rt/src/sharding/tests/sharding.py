"""What JAX 0.12.0.1 says about meshes, specs and pictures: a JSON object a line in, one a line out."""
import contextlib
import io
import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"
os.environ["JAX_TRACEBACK_FILTERING"] = "off"
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P


def mesh_of(case):
    sizes = [size for _, size in case["mesh"]]
    devices = np.array([jax.devices()[i] for i in case["devices"]]).reshape(sizes)
    return Mesh(devices, [name for name, _ in case["mesh"]])


def spec_of(case):
    entry = lambda e: None if e is None else tuple(e)
    return P(*[entry(e) for e in case["spec"]])


def kind(error):
    parts = {
        "is not found in mesh": "unknown",
        "duplicate entries": "twice",
        "is only valid for values of rank": "rank",
        "should evenly divide": "divides",
        "Expected shard shape": "block shape",
        "matching dtypes": "block type",
        "within a traced context": "traced",
    }
    text = str(error)
    return next((name for part, name in parts.items() if part in text), f"{type(error).__name__}: {text}")


def place(case):
    shape, sharding = tuple(case["shape"]), NamedSharding(mesh_of(case), spec_of(case))
    x = jax.device_put(np.zeros(shape, np.float32), sharding)
    bounds = lambda index: [[s.start or 0, n if s.stop is None else s.stop] for s, n in zip(index, shape)]
    # JAX lists shards in an order of its own.
    shards = {s.device.id: [bounds(s.index), s.replica_id] for s in x.addressable_shards}
    hlo = str(sharding._to_xla_hlo_sharding(len(shape)))
    return {"shards": [shards[i] for i in case["devices"]], "hlo": hlo, "local": list(sharding.shard_shape(shape))}


def callback(case):
    sharding = NamedSharding(mesh_of(case), spec_of(case))
    calls = []

    def block(index):
        calls.append(index)
        wrong = len(calls) > 1
        shape = [s.stop - s.start for s in index] if not (wrong and case["fault"] == "block shape") else [1, 1, 1]
        return np.zeros(shape, np.int32 if wrong and case["fault"] == "block type" else np.float32)

    if case["fault"] == "traced":
        jax.jit(lambda x: jax.make_array_from_callback(tuple(case["shape"]), sharding, lambda _: x))(np.zeros(4))
    jax.make_array_from_callback(tuple(case["shape"]), sharding, block)
    return {}


def picture(case):
    from jax._src.debugging import visualize_sharding

    sharding = NamedSharding(mesh_of(case), spec_of(case))
    palette = [tuple(c / 255 for c in color) for color in case["palette"]]
    colors = lambda x: palette[min(int(x * len(palette)), len(palette) - 1)]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        visualize_sharding(tuple(case["shape"]), sharding, use_color=case["color"], color_map=colors)
    return {"text": out.getvalue()}


# JAX prints lines of the program while it makes some of its errors.
answers = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for line in sys.stdin:
    case = json.loads(line)
    try:
        answer = {"place": place, "callback": callback, "picture": picture}[case["ask"]](case)
    except Exception as error:
        answer = {"error": kind(error)}
    print(json.dumps(answer), file=answers, flush=True)

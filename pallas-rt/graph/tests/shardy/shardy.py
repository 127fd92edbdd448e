#!/usr/bin/env python3
"""Runs passes of the Shardy in jaxlib on StableHLO modules, and prints what they found, a line for each operation.

    shardy.py MODE < MODULES        modules are separated by lines `// -----`

    rules        the sharding rule of each operation
    propagate    shardings after propagation, before anything is closed
    insert       reshards and all-reduces that make operations compatible
    reshards     the collectives of each `sdy.reshard`
    collectives  all collectives of the partitioned program
    xla          the number of each collective in what XLA compiles for the devices of the mesh, in place of the rank

    MODULE k
    ARG i sharding / RESULT i sharding
    OP location name rank | attribute; ..
    FAIL message                        in place of the lines of a module that Shardy does not take

The location is the number of the equation. Values without a sharding have the text `none`.
"""
import os
import re
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=64")
import numpy
from jax._src import xla_bridge
from jax._src.interpreters import mlir
from jaxlib import xla_client
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy, stablehlo  # noqa: F401

IMPORT = (
    "symbol-dce,sdy-lift-inlined-meshes,sdy-remove-size-one-axes,sdy-constant-or-scalar-splitter,symbol-dce,"
    "sdy-manual-axes-cleanup,sdy-add-data-flow-edges,sdy-apply-sharding-constraints,sdy-sharding-group-import"
)
EXPORT = "sdy-export-pipeline{enable-insert-explicit-collectives=true inline-meshes=false}"
PASSES = {
    "rules": "func.func(sdy-populate-op-sharding-rules)",
    "propagate": IMPORT + ",sdy-user-priority-propagate",
    "insert": "sdy-propagation-pipeline,func.func(sdy-insert-explicit-reshards{enable-full-version=true}),"
    "canonicalize{enable-patterns=sdy-reshard}",
    "reshards": "func.func(sdy-reshard-to-collectives)",
    "collectives": "sdy-propagation-pipeline," + EXPORT,
}
SHOWN = [
    "sdy.sharding_rule", "sdy.sharding", "sharding", "out_sharding", "gathering_axes", "slicing_axes", "reduction_axes",
    "reduce_scatter_axes", "params",
]


def location(op):
    found = re.findall(r'"v(\d+)"', str(op.location))
    return found[0] if found else "-"


def sharding(value):
    """The text of a value's sharding, `none` without one."""
    if isinstance(value.owner, ir.Block):
        function, number = value.owner.owner, ir.BlockArgument(value).arg_number
        all = function.attributes["arg_attrs"] if "arg_attrs" in function.attributes else None
        own = ir.DictAttr(all[number]) if all is not None else {}
        return str(own["sdy.sharding"]) if "sdy.sharding" in own else "none"
    op = value.owner
    found = [str(op.attributes[name]) for name in ("sdy.sharding", "sharding", "out_sharding") if name in op.attributes]
    each = re.findall(r"<@mesh, [^>]*>", found[0]) if found else []
    return each[ir.OpResult(value).result_number] if each else "none"


def show(op):
    shown = [f"{name}={op.attributes[name]}" for name in SHOWN if name in op.attributes]
    if op.name == "sdy.reshard":
        shown.append(f"from={sharding(op.operands[0])}")
    if op.name.startswith("sdy.") and len(op.results) == 1:
        shown.append(f"type={op.results[0].type}")
    rank = -1
    if len(op.results) > 0 and isinstance(op.results[0].type, ir.RankedTensorType):
        rank = op.results[0].type.rank
    print("OP", location(op), op.name, rank, "|", "; ".join(shown) or "none")


def walk(op):
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                show(inner.operation)
                if inner.operation.name in ("stablehlo.while", "stablehlo.case", "func.func"):
                    walk(inner.operation)


COLLECTIVES = ["all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"]


def compile(text):
    """Prints the number of each collective in what XLA makes of a module."""
    axes = re.search(r"sdy.mesh @mesh = <\[(.*?)\]", text).group(1)
    count = int(numpy.prod([int(n) for n in re.findall(r"=(\d+)", axes)], dtype=int))
    backend = xla_bridge.get_backend("cpu")
    options = xla_client.CompileOptions()
    options.num_partitions = count
    build = options.executable_build_options
    build.num_partitions, build.use_spmd_partitioning, build.use_shardy_partitioner = count, True, True
    options.device_assignment = xla_client.DeviceAssignment.create(numpy.arange(count).reshape(1, count))
    devices = xla_client.DeviceList(tuple(backend.local_devices()[:count]))
    program = backend.compile_and_load(ir.Module.parse(text), executable_devices=devices, compile_options=options)
    text = program.hlo_modules()[0].to_string()
    for name in COLLECTIVES:
        print("OP -", name, len(re.findall(rf" {name}(-start)?\(", text)), "| none")


def run(mode, text):
    messages = []
    with mlir.make_ir_context() as context:
        context.attach_diagnostic_handler(lambda d: messages.append(str(d.message)) or True)
        try:
            if mode == "xla":
                compile(text)
                return
            module = ir.Module.parse(text)
            passmanager.PassManager.parse(f"builtin.module({PASSES[mode]})").run(module.operation)
        except Exception as error:
            print("FAIL", " ".join([str(error), *messages]).replace("\n", " ")[:400])
            return
        for function in module.body.operations:
            if function.operation.name != "func.func":
                continue
            kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
            for what, key, count in (
                ("ARG", "arg_attrs", len(kind.inputs)),
                ("RESULT", "res_attrs", len(kind.results)),
            ):
                all = function.attributes[key] if key in function.attributes else None
                for i in range(count):
                    own = ir.DictAttr(all[i]) if all is not None else {}
                    print(what, i, str(own["sdy.sharding"]) if "sdy.sharding" in own else "none")
            walk(function.operation)


for number, text in enumerate(sys.stdin.read().split("// -----\n")):
    print("MODULE", number)
    run(sys.argv[1], text)

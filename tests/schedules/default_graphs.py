"""Relax graphs that the default CPU rule schedules, and the loops that it makes."""

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir.dlight import ApplyDefaultSchedule

from tvm_blislike.hardware.machine import listed_info
from tvm_blislike.model.marks import DEFAULT_RULE
from tvm_blislike.schedules.default.rule import DefaultCPU, TargetFacts

RNG = np.random.default_rng(7)


def native_target():
    """LLVM target with the vector width that this machine runs."""
    host = tvm.target.Target("llvm")
    fields = {"kind": "llvm", "mtriple": str(host.attrs["mtriple"]), "num-cores": 2}
    if "x86_64" not in fields["mtriple"]:
        return tvm.target.Target(fields)
    flags = set(listed_info()["flags"])
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"} <= flags:
        return tvm.target.Target({**fields, "mcpu": "x86-64-v4", "mattr": ["-prefer-256-bit"]})
    level = "x86-64-v3" if {"avx2", "fma"} <= flags else "x86-64-v2"
    return tvm.target.Target({**fields, "mcpu": level})


TARGET = native_target()
LANES = TargetFacts.of(TARGET).vector_bits // 32


def graph(function, *shapes, dtypes=None):
    """Build a Relax module with one dataflow block around `function`."""
    builder = relax.BlockBuilder()
    dtypes = dtypes or ["float32"] * len(shapes)
    variables = [
        relax.Var(f"x{i}", relax.TensorType(shape, dtype))
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(function(*variables)))
        builder.emit_func_output(result)
    return builder.get()


def scheduled(module):
    """Legalize, fuse and apply the rule, as the pipeline does."""
    passes = relax.transform
    with TARGET:
        return tvm.transform.Sequential(
            [
                passes.LegalizeOps(),
                passes.AnnotateTIROpPattern(),
                passes.FoldConstant(),
                passes.FuseOps(),
                passes.FuseTIR(),
                passes.DeadCodeElimination(),
                ApplyDefaultSchedule(DefaultCPU()),
            ]
        )(module)


def kernels(module):
    return [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]


def run(module, *arrays):
    machine = relax.VirtualMachine(tvm.compile(module, TARGET), tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


def check(function, expected, *arrays, rtol=1e-6, atol=1e-6):
    """Compile `function` through the rule and compare with numpy; return the kernels."""
    shapes, dtypes = [a.shape for a in arrays], [str(a.dtype) for a in arrays]
    module = scheduled(graph(function, *shapes, dtypes=dtypes))
    np.testing.assert_allclose(run(module, *arrays), expected, rtol=rtol, atol=atol)
    for kernel in kernels(module):
        assert not str(kernel.attrs[DEFAULT_RULE]).startswith("unscheduled")
    return kernels(module)


def data(*shape):
    return RNG.standard_normal(shape).astype("float32")


def loops(kernel, kind):
    found = []
    tvm_ffi.structural_walk(kernel.body, (tirx.For, lambda x: found.append(x) or 0), order="pre")
    return [x for x in found if x.kind == kind]


def vector_lengths(kernel):
    return {int(x.extent) for x in loops(kernel, tirx.ForKind.VECTORIZED)}


def pool(x, kernel, stride, padding, how):
    """Pool the axes 2 and 3 of `x`; padding (top, left, bottom, right) is not counted."""
    top, left, bottom, right = padding
    width = [(0, 0), (0, 0), (top, bottom), (left, right)] + [(0, 0)] * (x.ndim - 4)
    padded = np.pad(x, width, constant_values=np.nan)
    oh = (padded.shape[2] - kernel[0]) // stride[0] + 1
    ow = (padded.shape[3] - kernel[1]) // stride[1] + 1
    rows = []
    for i in range(oh):
        row = []
        for j in range(ow):
            h, w = i * stride[0], j * stride[1]
            row.append(how(padded[:, :, h : h + kernel[0], w : w + kernel[1]], axis=(2, 3)))
        rows.append(np.stack(row, axis=2))
    return np.stack(rows, axis=2)

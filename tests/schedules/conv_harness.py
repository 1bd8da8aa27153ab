"""Build one convolution with an epilogue as the pipeline would, run it, compare with numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import reference
import tvm
from tvm import s_tir, te, tirx

from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.marks import CHOICE
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.passes.plan import Plan, note_of
from tvm_blislike.passes.schedule import schedule_chosen
from tvm_blislike.schedules import get_implementation
from tvm_blislike.schedules.common import stages
from tvm_blislike.schedules.lowering import lower as lowering


def _clip(x: Any, low: float, high: float) -> Any:
    return te.max(te.min(x, tirx.const(high, str(x.ty))), tirx.const(low, str(x.ty)))


def _hard_sigmoid(x: Any) -> Any:
    return _clip(x * tirx.const(1 / 6, str(x.ty)) + tirx.const(0.5, str(x.ty)), 0.0, 1.0)


# name: (of a value in TE, of an array in numpy)
ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "relu": (lambda x: te.max(x, tirx.const(0.0, str(x.ty))), reference.relu),
    "clip": (lambda x: _clip(x, -0.5, 0.75), lambda x: reference.clip(x, -0.5, 0.75)),
    "hard_swish": (lambda x: x * _hard_sigmoid(x), reference.hard_swish),
    "silu": (lambda x: x * te.sigmoid(x), reference.silu),
    "sigmoid": (te.sigmoid, reference.sigmoid),
}
# Operands that an epilogue reads besides the convolution.
OPERANDS = ("bias", "residual", "residual_first", "scale")
STEPS = (*ACTIVATIONS, *OPERANDS)


def in_layout(x: np.ndarray, layout: str) -> np.ndarray:
    """Return NCHW data in another layout."""
    block = Layout(layout).block
    if block:
        return reference.pack_nchwc(x, block)
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if layout == "NHWC" else x


def nchw(x: np.ndarray, layout: str, channels: int) -> np.ndarray:
    """Return data in `layout` as NCHW."""
    if Layout(layout).block:
        return reference.unpack_nchwc(x, channels)
    return x.transpose(0, 3, 1, 2) if layout == "NHWC" else x


def operand_shape(step: str, workload: Conv2dWorkload) -> tuple[int, int, int, int]:
    """NCHW shape of what a step reads."""
    w = workload
    if step == "bias":
        return (1, w.co, 1, 1)
    return (w.od, w.co, 1, 1) if step == "scale" else w.result_shape


# Shape of one more operand, and what it and the result become.
Reader = tuple[tuple[int, ...], Callable[[te.Tensor, te.Tensor], te.Tensor]]


def primfunc(
    workload: Conv2dWorkload,
    config: Config,
    steps: Sequence[str] = (),
    reader: Reader | None = None,
) -> tirx.PrimFunc:
    """Return the unscheduled PrimFunc (data, packed, operand of each step ..., result)."""
    w, layout = workload, config.out_layout
    data = te.placeholder(
        Layout(config.data_layout).shape(w.n, w.ci, w.h, w.w), w.types.a, name="data"
    )
    implementation = get_implementation(config.implementation)
    weights = np.zeros(w.operands["weights"], w.types.b)
    packed = implementation.pack(w, config, weights)
    packed = te.placeholder(packed.shape, str(packed.dtype), name="packed")
    value = implementation.compute(w, config, data, packed)
    params = [data, packed]
    for number, step in enumerate(steps):
        operand = None
        if step in OPERANDS:
            shape = Layout(layout).shape(*operand_shape(step, w))
            operand = te.placeholder(shape, w.types.out, name=f"{step}_{number}")
            params.append(operand)
        value = _step(step, value, operand, f"step_{number}")
    if reader is not None:
        params.append(te.placeholder(reader[0], name="read_with"))
        value = reader[1](value, params[-1])
    sch = s_tir.Schedule(te.create_prim_func([*params, value]))
    sch.annotate(stages(sch)["unpack"], CHOICE, note_of(w, config))
    return sch.mod["main"].with_attr("tirx.noalias", True)


def _step(step: str, value: te.Tensor, operand: te.Tensor | None, name: str) -> te.Tensor:
    if operand is None:
        function = ACTIVATIONS[step][0]
        return te.compute(value.shape, lambda *i: function(value(*i)), name=name)

    def at(index: tuple[Any, ...]) -> Any:
        where = [0 if int(e) == 1 else i for i, e in zip(index, operand.shape, strict=True)]
        return operand(*where)

    if step == "scale":
        return te.compute(value.shape, lambda *i: value(*i) * at(i), name=name)
    if step == "residual_first":
        return te.compute(value.shape, lambda *i: at(i) + value(*i), name=name)
    return te.compute(value.shape, lambda *i: value(*i) + at(i), name=name)


def lowered(func: tirx.PrimFunc, core: Core, threads: int = 1) -> tvm.IRModule:
    """Return the scheduled and lowered module with one function, `main`."""
    func = schedule_chosen(func, Plan(core, threads))
    return lowering.lower(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))


def compiled(func: tirx.PrimFunc, core: Core, threads: int = 1) -> tvm.runtime.Executable:
    """Schedule, lower and compile a PrimFunc of `primfunc`."""
    return tvm.compile(lowered(func, core, threads), tvm.target.Target(core.target_config(threads)))


def build(
    workload: Conv2dWorkload,
    config: Config,
    core: Core,
    threads: int = 1,
    steps: Sequence[str] = (),
) -> tvm.runtime.Executable:
    """Compile one convolution."""
    return compiled(primfunc(workload, config, steps), core, threads)


def arrays(workload: Conv2dWorkload, steps: Sequence[str] = ()) -> list[np.ndarray]:
    """Random NCHW data, OIHW weights and one operand for each step that has one."""
    w, rng = workload, np.random.default_rng(5)
    depth = w.extents["depth"]
    shapes = [operand_shape(step, w) for step in steps if step in OPERANDS]
    data = rng.standard_normal((w.n, w.ci, w.h, w.w), dtype=np.float32)
    weights = rng.standard_normal(w.operands["weights"], dtype=np.float32)
    values = [
        data,
        weights / np.float32(math.sqrt(depth)),
        *(rng.standard_normal(shape, dtype=np.float32) for shape in shapes),
    ]
    return [value.astype(w.types.a) for value in values]


def expected(
    workload: Conv2dWorkload, steps: Sequence[str], values: Sequence[np.ndarray]
) -> np.ndarray:
    """Return the result by the reference, NCHW in float32."""
    w = workload
    data, weights, *operands = (value.astype(np.float32) for value in values)
    out = _convolved(w, data, weights)
    for step in steps:
        if step in ACTIVATIONS:
            out = ACTIVATIONS[step][1](out)
        else:
            operand = operands.pop(0)
            out = out * operand if step == "scale" else out + operand
    return out


def _convolved(workload: Conv2dWorkload, data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the convolution, of volumes as a sum over the slices of the kernel."""
    w = workload
    whole = (None, w.stride, w.padding, w.dilation, w.groups)
    if w.kd == 1:
        return reference.conv2d(data, weights.reshape(w.co, -1, w.kh, w.kw), *whole)
    total = np.zeros(w.result_shape, np.float32)
    for image, tap in np.ndindex(w.od, w.kd):
        met = w.image_met(image, tap)
        if 0 <= met < w.n:
            part = reference.conv2d(data[met : met + 1], weights[:, :, tap], *whole)
            total[image : image + 1] += part
    return total


def placed(
    workload: Conv2dWorkload,
    config: Config,
    steps: Sequence[str],
    values: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """Arguments of the compiled function: in their layouts, packed, the result full of NaN."""
    w = workload
    data, weights, *operands = values
    implementation = get_implementation(config.implementation)
    out = np.full(Layout(config.out_layout).shape(*w.result_shape), np.nan, w.types.out)
    return [
        in_layout(data, config.data_layout),
        implementation.pack(w, config, weights),
        *(in_layout(operand, config.out_layout) for operand in operands),
        out,
    ]


def error(
    workload: Conv2dWorkload,
    config: Config,
    core: Core,
    threads: int = 1,
    steps: Sequence[str] = (),
) -> float:
    """Build and run; return the largest error over the largest value of the convolution.

    Values before the epilogue count, too: a clip does not make errors any smaller.
    """
    library = build(workload, config, core, threads, steps)
    values = arrays(workload, steps)
    arguments = [tvm.runtime.tensor(a) for a in placed(workload, config, steps, values)]
    library["main"](*arguments)
    actual = nchw(arguments[-1].numpy(), config.out_layout, workload.co)
    wanted = expected(workload, steps, values)
    assert actual.shape == wanted.shape
    before = expected(workload, (), values) if steps else wanted
    largest = max(np.abs(before).max(), np.abs(wanted).max(), 1.0)
    return float(np.abs(actual - wanted).max() / largest)

"""Each convolution and matrix product becomes the TE definition of its implementation.

The choice travels as an annotation of the "unpack" block, which survives operator fusion.
"""

from __future__ import annotations

import json
from typing import Any

import tvm
from tvm import relax, s_tir, te, topi

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.workload import Workload
from tvm_blislike.passes.concat import lower_concat
from tvm_blislike.passes.layout import Image, transformed
from tvm_blislike.passes.moves import lower_interleave
from tvm_blislike.passes.not_finite import NAMES, lower_not_finite
from tvm_blislike.passes.workloads import (
    CONVOLUTIONS,
    conv2d_workload,
    described,
    gemm_workload,
    why_not,
)
from tvm_blislike.schedules.common import STAGE, stages
from tvm_blislike.tvm_seams import constant, constant_array, dtype_name, is_constant, static_shape

# Annotation of the "unpack" block: {"workload": ..., "config": ...} as JSON.
CHOICE = "blislike.choice"
# Relax pattern kind: elementwise operators and broadcasts behind it are fused into it.
_OUT_ELEMENTWISE_FUSABLE = 4


def legalize(strategy: Strategy) -> tvm.transform.Pass:
    """Return the pass that lowers what the strategy has an implementation for."""

    def left(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        strategy.leave(described(call), why_not(call))
        return call

    def conv2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        workload = conv2d_workload(call)
        if workload is None:
            return left(builder, call)
        given, wanted = Layout(call.attrs.data_layout), Layout(call.attrs.out_layout)
        choice = strategy.choose_in(workload, given, wanted)
        if choice.config is None:
            return call
        config, w = choice.config, choice.workload
        sizes = (w.n, w.ci, w.h, w.w)
        data = _moved(builder, call.args[0], sizes, given, Layout(config.data_layout))
        result = _lower(builder, choice, data, call.args[1], "conv2d")
        out = (w.n, w.co, w.oh, w.ow)
        return _moved(builder, result, out, Layout(config.out_layout), wanted)

    def matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        workload = gemm_workload(call)
        if workload is None:
            return left(builder, call)
        choice = strategy.choose(workload)
        if choice.config is None:
            return call
        rows = (workload.batch, workload.m) if workload.batch > 1 else (workload.m,)
        b_shape = (workload.k, workload.n)
        b_shape = (workload.batch, *b_shape) if workload.batch > 1 else b_shape
        a = _reshaped(builder, call.args[0], (*rows, workload.k))
        result = _lower(builder, choice, a, _reshaped(builder, call.args[1], b_shape), "matmul")
        return _reshaped(builder, builder.normalize(result), static_shape(call))

    def layout_transform(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        interleave = lower_interleave(builder, call)
        return call if interleave is None else interleave

    def concat(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        in_place = lower_concat(builder, call)
        return call if in_place is None else in_place

    def take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        # By default TVM reads whatever lies at an index out of range, and warns of it each time.
        data, indices = call.args
        axis = call.attrs.axis
        if axis is not None and axis < 0:  # its clipping takes an axis from behind for another
            axis = int(axis) + data.ty.ndim
        return builder.call_te(topi.take, data, indices, axis, mode="clip")

    def not_finite(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        lowered = lower_not_finite(builder, call)
        return call if lowered is None else lowered

    own = {
        **dict.fromkeys(NAMES, not_finite),
        **dict.fromkeys(CONVOLUTIONS, left),
        "relax.nn.conv2d": conv2d,
        "relax.matmul": matmul,
        "relax.concat": concat,
        "relax.layout_transform": layout_transform,
        "relax.take": take,
    }
    return tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(own),
            relax.transform.LegalizeOps(),
        ],
        name="blislike.Legalize",
    )


def _moved(
    builder: relax.BlockBuilder,
    value: relax.Expr,
    sizes: tuple[int, int, int, int],
    source: Layout,
    target: Layout,
) -> relax.Expr:
    """Return a value in the layout that its reader wants, where the layout pass left another."""
    if source == target:
        return value
    image = Image(builder.emit(value), source, sizes)
    return builder.normalize(transformed(image, target))


def _reshaped(builder: relax.BlockBuilder, value: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    """Return a value with another shape; no copy where it has that shape already."""
    if static_shape(value) == shape:
        return value
    if is_constant(value):
        return constant(constant_array(value).reshape(shape), dtype_name(value))
    return builder.normalize(relax.op.reshape(builder.emit(value), shape))


def _lower(
    builder: relax.BlockBuilder,
    choice: Choice,
    data: relax.Expr,
    operand: relax.Expr,
    name: str,
) -> relax.Expr:
    """Emit the call of the implementation's PrimFunc; pack the operand now if it is constant."""
    implementation, workload, config = choice.implementation, choice.workload, choice.config
    if is_constant(operand):
        packed = relax.const(implementation.pack(workload, config, constant_array(operand)))
    else:
        packed = builder.emit_te(
            lambda t: implementation.pack_te(workload, config, t),
            operand,
            primfunc_name_hint=f"{config.implementation}_pack",
        )
    func = primfunc(choice, static_shape(data), static_shape(packed))
    gvar = builder.add_func(func, f"{config.implementation}_{name}")
    shape = [int(extent) for extent in func.params[-1].shape]
    return relax.call_tir(gvar, [data, packed], relax.TensorType(shape, workload.types.out))


def primfunc(
    choice: Choice, data_shape: tuple[int, ...], packed_shape: tuple[int, ...]
) -> tvm.tirx.PrimFunc:
    """Return the unscheduled PrimFunc (data, packed operand, result) of a choice."""
    workload, config = choice.workload, choice.config
    data = te.placeholder(data_shape, workload.types.a, name="data")
    packed = te.placeholder(packed_shape, workload.types.b, name="packed")
    result = choice.implementation.compute(workload, config, data, packed)
    sch = s_tir.Schedule(te.create_prim_func([data, packed, result]))
    (output,) = sch.get_output_blocks(sch.get_sblock("root"))
    if "unpack" not in stages(sch):
        sch.annotate(output, STAGE, "unpack")
    sch.annotate(output, CHOICE, note_of(workload, config))
    return (
        sch.mod["main"]
        .without_attr("global_symbol")
        .with_attr({"op_pattern": _OUT_ELEMENTWISE_FUSABLE, "tirx.noalias": True})
    )


def note_of(workload: Workload, config: Config) -> str:
    """Return what `read_choice` reads."""
    return json.dumps({"workload": workload.to_json(), "config": config.to_json()})


def read_choice(annotations: Any) -> tuple[Workload, Config]:
    """Return the workload and config noted on an "unpack" block."""
    note = json.loads(str(annotations[CHOICE]))
    return Workload.from_json(note["workload"]), Config.from_json(note["config"])

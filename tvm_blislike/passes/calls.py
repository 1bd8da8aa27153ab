"""The calls that take the place of layers: an implementation's PrimFunc on a packed operand."""

from __future__ import annotations

import tvm
from tvm import relax, s_tir, te

from tvm_blislike.model.choice import Choice
from tvm_blislike.model.marks import CHOICE, STAGE
from tvm_blislike.schedules.common import stages
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)
from tvm_blislike.tvm_seams.attributes import FUSES_WHAT_FOLLOWS, NO_ALIAS


def reshaped(builder: relax.BlockBuilder, value: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    """Return a value with another shape; no copy where it has that shape already."""
    if static_shape(value) == shape:
        return value
    if is_constant(value):
        return constant(constant_array(value).reshape(shape), dtype_name(value))
    return builder.normalize(relax.op.reshape(builder.emit(value), shape))


def emit_call(
    builder: relax.BlockBuilder,
    choice: Choice,
    note: str,
    data: relax.Expr,
    operand: relax.Expr,
    layer: relax.Call,
) -> relax.Expr:
    """Emit the call of the implementation's PrimFunc; pack the operand now if it is constant.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit.
    choice : Choice
        What computes the layer.
    note : str
        By which the plan knows it.
    data, operand : relax.Expr
        In the shapes and layouts of the choice, the operand not yet packed.
    layer : relax.Call
        What the call takes the place of, for the name.

    Returns
    -------
    relax.Expr
        Not yet emitted.
    """
    implementation, workload, config = choice.implementation, choice.workload, choice.config
    if is_constant(operand):
        packed = relax.const(implementation.pack(workload, config, constant_array(operand)))
    else:
        packed = builder.emit_te(
            lambda t: implementation.pack_te(workload, config, t),
            operand,
            primfunc_name_hint=f"{config.implementation}_pack",
        )
    func = primfunc(choice, note, static_shape(data), static_shape(packed))
    gvar = builder.add_func(func, f"{config.implementation}_{op_name(layer).rpartition('.')[2]}")
    shape = [int(extent) for extent in func.params[-1].shape]
    return relax.call_tir(gvar, [data, packed], relax.TensorType(shape, workload.types.out))


def primfunc(
    choice: Choice, note: str, data_shape: tuple[int, ...], packed_shape: tuple[int, ...]
) -> tvm.tirx.PrimFunc:
    """Return the unscheduled PrimFunc (data, packed operand, result) , which notes its choice."""
    workload, config = choice.workload, choice.config
    data = te.placeholder(data_shape, workload.types.a, name="data")
    packed = te.placeholder(packed_shape, workload.types.b, name="packed")
    result = choice.implementation.compute(workload, config, data, packed)
    sch = s_tir.Schedule(te.create_prim_func([data, packed, result]))
    (output,) = sch.get_output_blocks(sch.get_sblock("root"))
    if "unpack" not in stages(sch):
        sch.annotate(output, STAGE, "unpack")
    sch.annotate(output, CHOICE, note)
    return (
        sch.mod["main"].without_attr("global_symbol").with_attr({**FUSES_WHAT_FOLLOWS, **NO_ALIAS})
    )

"""Operators become PrimFuncs: implementations' own for planned layers, TVM's for nearly all others.

All index with 32 bits: the library's own tensor expressions do, operators lowered from Relax shapes
index with 64, and TVM fuses functions of one width only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import tvm
from tvm import relax, s_tir, te, tirx, topi

from tvm_blislike.hardware import Core, dtype_bits
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.marks import CHOICE, STAGE, WORDS_OF_SIGNS
from tvm_blislike.passes.binary.operators import (
    CODES,
    lower_codes,
    lower_product,
    lower_words,
)
from tvm_blislike.passes.concat import lower_concat
from tvm_blislike.passes.image_operators import lower_interleave
from tvm_blislike.passes.lookups import is_lookup, lower_lookup
from tvm_blislike.passes.not_finite import NAMES, lower_not_finite
from tvm_blislike.schedules.common import stages
from tvm_blislike.schedules.lowering.rewrite import collect
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)
from tvm_blislike.tvm_seams.attributes import (
    BEGINS_A_KERNEL,
    FUSES_WHAT_FOLLOWS,
    NEVER_FUSED,
    NO_ALIAS,
)
from tvm_blislike.tvm_seams.schedules import Schedule

Lower = Callable[[relax.BlockBuilder, relax.Call], relax.Expr | None]
_MOST_ELEMENTS = 2**31 - 1
_BYTE = 8


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
    made: dict[str, tirx.PrimFunc],
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
    made : dict of str to tirx.PrimFunc
        PrimFuncs by note, those of this plan; layers of the same choice share one.

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
    func = made.get(note)
    if func is None:
        shapes = static_shape(data), static_shape(packed)
        func = primfunc(choice, note, *shapes, dtype_name(packed))
    made[note] = func
    gvar = builder.add_func(func, f"{config.implementation}_{op_name(layer).rpartition('.')[2]}")
    shape = [int(extent) for extent in func.params[-1].shape]
    return relax.call_tir(gvar, [data, packed], relax.TensorType(shape, workload.types.out))


def primfunc(
    choice: Choice,
    note: str,
    data_shape: tuple[int, ...],
    packed_shape: tuple[int, ...],
    packed_dtype: str,
) -> tvm.tirx.PrimFunc:
    """Return the unscheduled PrimFunc (data, packed operand, result) , which notes its choice."""
    workload, config = choice.workload, choice.config
    data = te.placeholder(data_shape, workload.types.a, name="data")
    packed = te.placeholder(packed_shape, packed_dtype, name="packed")
    result = choice.implementation.compute(workload, config, data, packed)
    sch = Schedule(te.create_prim_func([data, packed, result]))
    (output,) = sch.get_output_blocks(sch.get_sblock("root"))
    if "unpack" not in stages(sch):
        sch.annotate(output, STAGE, "unpack")
    sch.annotate(output, CHOICE, note)
    return (
        sch.mod["main"].without_attr("global_symbol").with_attr({**FUSES_WHAT_FOLLOWS, **NO_ALIAS})
    )


def legalize(core: Core) -> tvm.transform.Pass:
    """Return the pass that lowers all operators, for a core."""
    own = {
        **dict.fromkeys(NAMES, _or_itself(lower_not_finite)),
        "relax.concat": _or_itself(lower_concat),
        "relax.layout_transform": _or_itself(lower_interleave),
        "relax.astype": _or_itself(_from_few_bits),
        "relax.take": partial(_take, core),
        **dict.fromkeys(CODES, lower_codes),
        WORDS_OF_SIGNS: lower_words,
        **dict.fromkeys(("relax.matmul", "relax.nn.conv2d"), _or_itself(lower_product)),
    }
    return tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(own),
            relax.transform.LegalizeOps(),
        ],
        name="blislike.Legalize",
    )


def _or_itself(lower: Lower) -> Lower:
    """Return the function that leaves a call to TVM where another one returns None."""

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        lowered = lower(builder, call)
        return call if lowered is None else lowered

    return legalized


def _from_few_bits(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Return 8-bit integers and bfloat16 as wider numbers, None for another cast.

    A kernel ends with such values: with what becomes of them it would write several times as many
    bytes.
    """
    (data,), dtype = call.args, dtype_name(call)
    bits = dtype_bits(dtype_name(data))
    is_few = bits <= _BYTE or dtype_name(data) == "bfloat16"
    if not is_few or dtype_bits(dtype) <= bits:
        return None
    return builder.call_te(
        topi.cast, data, dtype, primfunc_name_hint="cast", primfunc_attrs=dict(BEGINS_A_KERNEL)
    )


def _take(core: Core, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if is_lookup(call):
        return lower_lookup(builder, call, core)
    # By default TVM reads whatever lies at an index out of range, and warns of it each time.
    data, indices = call.args
    axis = call.attrs.axis
    if axis is not None and axis < 0:  # its clipping takes an axis from behind for another
        axis = int(axis) + data.ty.ndim
    return builder.call_te(topi.take, data, indices, axis, mode="clip")


@tvm.transform.module_pass(opt_level=0, name="blislike.NarrowIndices")
class NarrowIndices:
    """Module pass that makes PrimFuncs index with 32 bits, and keeps the others out of fusion."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the module with its functions narrowed where that is possible."""
        result = mod.clone()
        wide = {}
        for gvar, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            buffers = _buffers(func)
            # TVM's pass breaks functions of scalars only, and blocks that compute a scalar.
            is_broken = not any(len(b.shape) for b in buffers) or _has_bare_blocks(func)
            if not is_broken and all(map(_is_narrow, buffers)):
                wide[gvar] = func
            else:
                result.update_func(gvar, func.with_attr(NEVER_FUSED))
        narrowed = tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule(wide))
        for gvar in wide:
            result.update_func(gvar, narrowed[gvar])
        return result


def _buffers(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    """Return every buffer of a function: parameters, temporaries and views."""
    # They are variables of a type that has a shape.
    return [variable for variable in collect(func, tirx.Var) if hasattr(variable, "shape")]


def _has_bare_blocks(func: tirx.PrimFunc) -> bool:
    """Whether a block is in no loop, as those are that compute a scalar."""
    realized = collect(func, s_tir.SBlockRealize)
    return any(
        block.iter_values and all(isinstance(value, tirx.IntImm) for value in block.iter_values)
        for block in realized
    )


def _is_narrow(buffer: tirx.Buffer) -> bool:
    """Whether 32 bits reach every element, and no element would be taken for an index."""
    # TVM's pass narrows a variable size, but not everything that is computed from it.
    is_known = all(isinstance(extent, tirx.IntImm) for extent in buffer.shape)
    if str(buffer.dtype) == "int64" or not is_known:
        return False
    return math.prod(map(int, buffer.shape)) <= _MOST_ELEMENTS

"""Operators become PrimFuncs: implementations' own for planned layers, TVM's for nearly all others.

All index with 32 bits: the library's own tensor expressions do, operators lowered from Relax shapes
index with 64, and TVM fuses functions of one width only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import tvm
from tvm import relax, s_tir, tirx, topi

from tvm_blislike.hardware import Core, dtype_bits
from tvm_blislike.model.layouts import NCHW
from tvm_blislike.model.marks import VOLUME_CONVOLUTION, WORDS_OF_SIGNS
from tvm_blislike.passes.binary.operators import (
    CODES,
    lower_codes,
    lower_product,
    lower_words,
)
from tvm_blislike.passes.concat import lower_concat
from tvm_blislike.passes.folds import lower_fold
from tvm_blislike.passes.image_operators import RESIZED, lower_interleave
from tvm_blislike.passes.lookups import is_lookup, lower_lookup
from tvm_blislike.passes.not_finite import NAMES, lower_not_finite
from tvm_blislike.passes.resizes import lower_resize
from tvm_blislike.passes.shuffles import shuffle_of, shuffled
from tvm_blislike.passes.volumes import lower_volume
from tvm_blislike.schedules.lowering.rewrite import collect
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    is_constant,
    static_shape,
)
from tvm_blislike.tvm_seams.attributes import (
    BEGINS_A_KERNEL,
    NEVER_FUSED,
)

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
    func: tirx.PrimFunc,
    name: str,
    data: relax.Expr,
    packed: relax.Expr,
    dtype: str,
) -> relax.Expr:
    """Return the call of an implementation's PrimFunc, not yet emitted.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to put the PrimFunc.
    func : tirx.PrimFunc
        See `definitions.primfunc`.
    name : str
        Of the PrimFunc, until it is fused.
    data, packed : relax.Expr
        In the shapes and layouts of the choice.
    dtype : str
        Of the result.
    """
    gvar = builder.add_func(func, name)
    shape = [int(extent) for extent in func.params[-1].shape]
    return relax.call_tir(gvar, [data, packed], relax.TensorType(shape, dtype))


def legalize(core: Core, is_for_many: bool = False) -> tvm.transform.Pass:
    """Return the pass that lowers all operators.

    Parameters
    ----------
    core : Core
        The target.
    is_for_many : bool
        Whether the functions serve smaller images, too: none with tables of one size.
    """
    own = {
        **dict.fromkeys(NAMES, _or_itself(lower_not_finite)),
        "relax.concat": _or_itself(lower_concat),
        "relax.layout_transform": _or_itself(lower_interleave, lower_fold),
        "relax.astype": _or_itself(_from_few_bits),
        "relax.take": partial(_take, core),
        **dict.fromkeys(CODES, lower_codes),
        WORDS_OF_SIGNS: lower_words,
        VOLUME_CONVOLUTION: lower_volume,
        **dict.fromkeys(("relax.matmul", "relax.nn.conv2d"), _or_itself(lower_product)),
    }
    if not is_for_many:
        own[RESIZED] = _or_itself(lower_resize)
    return tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(own),
            relax.transform.LegalizeOps(),
        ],
        name="blislike.Legalize",
    )


def _or_itself(*lowerings: Lower) -> Lower:
    """Return the function that leaves a call to TVM where all others return None."""

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        found = (lower(builder, call) for lower in lowerings)
        return next((lowered for lowered in found if lowered is not None), call)

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
    if shuffle_of(call) is not None:
        return shuffled(builder, call, [call.args[0]], NCHW)
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
    """Return every buffer of a function, once: parameters, temporaries and views."""
    # They are variables of a type that has a shape; each occurs in all of its accesses.
    variables = dict.fromkeys(collect(func, tirx.Var))
    return [variable for variable in variables if hasattr(variable, "shape")]


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

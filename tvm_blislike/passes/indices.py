"""One index width for everything that is fused: 32 bits.

The library's own tensor expressions index with 32 bits, operators lowered from Relax shapes with
64, and TVM fuses functions of one width only.
"""

from __future__ import annotations

import math

import tvm
from tvm import s_tir, tirx

from tvm_blislike.schedules.lowering.rewrite import collect
from tvm_blislike.tvm_seams.attributes import NEVER_FUSED

_MOST_ELEMENTS = 2**31 - 1


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

"""Casts between bfloat16 and float32 as arithmetic on bits, where TVM's own go wrong.

TVM moves a cast to bfloat16 to where its value is stored, lowers it to such arithmetic there, and
writes the value down each time that needs it: an `exp` would be computed three times, and names
bound in it bound again, which its vectorizer refuses. A cast there and back is nothing to it. In
the value of a name it forgets the cast from bfloat16, and converts the bits as an integer.

This is for functions of the default rule, before their loops are vectors; `words` for templates.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_blislike.schedules.lowering.vector_functions import Expr, let
from tvm_blislike.schedules.lowering.vector_math import apart

_BRAIN, _WIDE, _BITS = "bfloat16", "float32", "uint32"
_NAN = 0x7FC0


def through_bits(node: Any) -> Any:
    """Return scalar code that converts to and from bfloat16 by arithmetic on bits.

    It rounds to nearest, ties to even, as ONNX's Cast; what is no number stays none. Arithmetic
    that is bfloat16's own is left to TVM.

    Parameters
    ----------
    node : tirx.Stmt or tirx.PrimFunc
        What to rewrite, before TVM lowers its types.
    """
    if isinstance(node, tirx.PrimFunc):
        return node.with_body(through_bits(node.body))
    node = tvm_ffi.structural_map(node, [(tirx.Cast, _widened)], order="post")
    node = apart(node, _by_a_buffer)
    return tvm_ffi.structural_map(node, [(tirx.BufferStore, _stored)], order="post")


def _by_a_buffer(
    store: tirx.BufferStore, extent: Expr | int, lane: Expr, buffers: list[tirx.Buffer]
) -> tirx.Stmt:
    """Put what is computed and then rounded into a buffer in between.

    It is used several times, where names would be bound inside of names; and where loops are
    divided only a constant may be left of it, a padding: TVM would repeat its rounded value as a
    whole, and then not recognize the bits that it stores.
    """
    if not _is_rounded(store.value) or isinstance(store.value.value, ir.TensorLoad):
        return store
    buffer = tirx.decl_buffer((extent,), _WIDE, "wide")
    buffers.append(buffer)
    rounded = tirx.Cast(_BRAIN, tirx.BufferLoad(buffer, [lane]))
    return tirx.SeqStmt(
        [
            tirx.BufferStore(buffer, store.value.value, [lane]),
            tirx.BufferStore(store.buffer, rounded, store.indices),
        ]
    )


def _is_rounded(node: Any) -> bool:
    """Whether a node is a cast of float32 to bfloat16."""
    is_cast = isinstance(node, tirx.Cast) and str(node.ty) == _BRAIN
    return is_cast and str(node.value.ty) == _WIDE


def _widened(cast: tirx.Cast) -> Expr:
    """Return what was bfloat16 as float32: an element, or one just rounded."""
    if str(cast.ty) != _WIDE or str(cast.value.ty) != _BRAIN:
        return cast
    if isinstance(cast.value, ir.TensorLoad):
        return _of_upper(tirx.Cast(_BITS, tirx.reinterpret("uint16", cast.value)))
    if _is_rounded(cast.value):
        return let(cast.value.value, lambda x: _of_upper(_upper(x)))
    return cast


def _of_upper(upper: Expr) -> Expr:
    return tirx.reinterpret(_WIDE, upper << _word(16))


def _stored(store: tirx.BufferStore) -> tirx.BufferStore:
    if not _is_rounded(store.value):
        return store
    wide = store.value.value
    bits = let(wide, lambda x: tirx.reinterpret(_BRAIN, tirx.Cast("uint16", _upper(x))))
    return tirx.BufferStore(store.buffer, bits, store.indices)


def _upper(x: Expr) -> Expr:
    """Return the upper half of the bits of x, rounded."""
    bits = tirx.reinterpret(_BITS, x)
    is_odd = (bits >> _word(16)) & _word(1)
    # The bits of a NaN could be rounded to those of a number.
    return tirx.Select(x == x, (bits + is_odd + _word(0x7FFF)) >> _word(16), _word(_NAN))


def _word(value: int) -> Expr:
    return tirx.IntImm(_BITS, value)

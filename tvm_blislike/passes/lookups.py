"""Lookups: tensors of 8 bits whose every element is replaced by that of a table of 256.

In a graph a lookup is `relax.take` of a constant table by integers of 8 bits, or of 16 that hold
those of uint8. The table is indexed by their bytes: that of -1 is the last one. It is computed in
any layout, by a kernel of its own that passes over the bytes once: a vector of them takes a few
instructions (`microkernels.lookups`), where such a core has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Lookup, lookup_for
from tvm_blislike.microkernels.lookups import ENTRIES
from tvm_blislike.tvm_seams import constant, dtype_name, is_constant, op_name, static_shape
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED, NEVER_FUSED, NO_ALIAS

_BYTES, _WORDS = ("uint8", "int8"), "int16"
# Elements that a thread takes at once, and from how many on there is more than one thread: byte by
# byte they take as long as fork and join.
_PART = 4096
_LEAST_SHARED = 8 * _PART


def looked_up(data: relax.Expr, results: np.ndarray) -> relax.Call:
    """Return a lookup, not yet emitted.

    Parameters
    ----------
    data : relax.Expr
        Integers in a type of activations in memory.
    results : numpy.ndarray
        (256,): of the least number of that type first; in 16 bits, of 0.
    """
    table = np.roll(results, ENTRIES // 2) if dtype_name(data) == "int8" else results
    return relax.op.take(constant(table, str(table.dtype)), data, axis=0)


def is_lookup(call: relax.Expr) -> bool:
    """Whether a call is a lookup."""
    if op_name(call) != "relax.take" or not is_constant(call.args[0]):
        return False
    table, data = call.args
    small = dtype_name(data) in (*_BYTES, _WORDS) and dtype_name(table) == dtype_name(data)
    return small and static_shape(table) == (ENTRIES,) and static_shape(data) is not None


def lower_lookup(builder: relax.BlockBuilder, call: relax.Call, core: Core) -> relax.Expr:
    """Return the call of a lookup's kernel."""
    dtype, shape = dtype_name(call), static_shape(call)
    func = kernel(shape, dtype, core).without_attr("global_symbol")
    gvar = builder.add_func(func.with_attr({**IS_SCHEDULED, **NEVER_FUSED}), "lookup")
    return relax.call_tir(gvar, list(call.args), relax.TensorType(shape, dtype))


def kernel(shape: tuple[int, ...], dtype: str, core: Core) -> tirx.PrimFunc:
    """Return the function (table, data, result), scheduled, for tensors of a shape."""
    by_vectors = lookup_for(core) if dtype in _BYTES else None
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"global_symbol": "main", **NO_ALIAS})
            table = T.arg("table", T.buffer((ENTRIES,), dtype))
            data, result = (T.arg(n, T.buffer(shape, dtype)) for n in ("data", "result"))
            with T.sblock("root"):
                T.reads()
                T.writes()
                count = math.prod(shape)
                flat = [T.decl_buffer((count,), dtype, data=b.data) for b in (data, result)]
                if by_vectors is not None and count >= by_vectors.lanes:
                    _over(count, by_vectors.lanes, lambda at: _vector(by_vectors, table, *flat, at))
                else:
                    _over(count, 1, lambda at: _element(table, *flat, at))
    return builder.get()


def _over(count: int, lanes: int, emit: Callable[[Any], None]) -> None:
    """Emit what is done at the beginning of each vector; the last one may overlap another."""
    parts, rest = divmod(count, _PART) if count >= _LEAST_SHARED else (0, count)
    if parts:
        with T.parallel(0, parts) as part, T.serial(0, _PART // lanes) as vector:
            emit(part * _PART + vector * lanes)
    if rest // lanes:
        with T.serial(0, rest // lanes) as vector:
            emit(parts * _PART + vector * lanes)
    if rest % lanes:
        emit(T.int32(count - lanes))


def _element(table: Any, data: Any, result: Any, at: Any) -> None:
    value = tirx.BufferLoad(data, [at])
    byte = value if str(data.dtype) == _WORDS else T.reinterpret("uint8", value)
    T.buffer_store(result, tirx.BufferLoad(table, [T.Cast("int32", byte)]), [at])


def _vector(by_vectors: Lookup, table: Any, data: Any, result: Any, at: Any) -> None:
    lanes, dtype = by_vectors.lanes, str(data.dtype)

    def loaded(buffer: Any, first: Any) -> Any:
        value = tirx.BufferLoad(buffer, [T.ramp(first, 1, lanes)])
        return value if dtype == "uint8" else T.reinterpret(f"uint8x{lanes}", value)

    vectors = [loaded(table, T.int32(first)) for first in range(0, ENTRIES, lanes)]
    found = by_vectors.looked_up(vectors, loaded(data, at))
    if dtype != "uint8":
        found = T.reinterpret(f"{dtype}x{lanes}", found)
    T.buffer_store(result, found, [T.ramp(at, 1, lanes)])

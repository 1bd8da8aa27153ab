"""Conditions in kernels on where an image ends, which is not where its canvas does.

A convolution with padding reads its margin. But what is fused behind a layer may pad its result,
`y < 66 ? value : 0` of 66 rows of a canvas, and an average may count how much of its window is
inside. The first one asks the extent at run time, the second one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_blislike.errors import SizesMeetError
from tvm_blislike.model.marks import STAGE
from tvm_blislike.schedules.lowering.rewrite import collect, constant, substitute

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
# Borders at the beginning of an image are at such numbers, at any size.
_FEW = 8


def with_open_ends(
    func: tirx.PrimFunc, sizes: tirx.Buffer, numbers: Sequence[Mapping[int, int]]
) -> tirx.PrimFunc:
    """Return a function whose conditions behind its layer ask for extents.

    Parameters
    ----------
    sizes : Buffer
        All extents.
    numbers : sequence of mapping
        For each open size, the numbers of the canvas to their places among the extents.

    Raises
    ------
    SizesMeetError
        When a condition is on another place than the end of an image.
    """

    def visit(block: s_tir.SBlock) -> Any:
        if STAGE in block.annotations or not collect(block.body, _COMPARISONS):
            return block
        extents = {each.var: int(each.dom.extent) for each in block.iter_vars}

        def asked(comparison: Any) -> Any:
            return _asked(comparison, extents, sizes, numbers)

        body = tvm_ffi.structural_map(block.body, [(kind, asked) for kind in _COMPARISONS])
        return _with_body(block, body)

    return func.with_body(tvm_ffi.structural_map(func.body, [(s_tir.SBlock, visit)]))


def _asked(
    comparison: Any,
    extents: Mapping[tirx.Var, int],
    sizes: tirx.Buffer,
    numbers: Sequence[Mapping[int, int]],
) -> Any:
    bound = constant(comparison.b)
    used = [var for var in collect(comparison.a, tirx.Var) if var in extents]
    opened = [each for var in used for each in numbers if extents[var] in each]
    if not opened or bound is None or bound < _FEW:
        return comparison
    for each in opened:
        # Rows of padding in front of the image count.
        for more in range(_FEW):
            if bound - more in each:
                at = tirx.IntImm("int32", each[bound - more])
                size = tirx.Cast(str(comparison.b.ty), tirx.BufferLoad(sizes, [at]))
                return type(comparison)(comparison.a, size + more)
    raise SizesMeetError(f"a condition on row {bound} of an image")


def _with_body(block: s_tir.SBlock, body: Any) -> s_tir.SBlock:
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def with_open_counts(
    func: tirx.PrimFunc, sizes: tirx.Buffer, numbers: Sequence[Mapping[int, int]]
) -> tirx.PrimFunc:
    """Return a function of the default rule that counts what is inside an image, not its canvas.

    An average counts the pixels of its window as `min(2 y + 1, 65) - 2 y + 1` of 66 rows.

    Raises
    ------
    SizesMeetError
        When what it computes depends on the place of a pixel in another way.
    """

    def visit(block: s_tir.SBlock) -> Any:
        extents = {each.var: int(each.dom.extent) for each in block.iter_vars}

        def last(limited: tirx.Min) -> Any:
            used = [v for v in collect(limited, tirx.Var) if v in extents]
            opened = [each for v in used for each in numbers if extents[v] in each]

            def end(number: tirx.IntImm) -> Any:
                bound = int(number.value)
                if bound < _FEW:
                    return number
                for each in opened:
                    if bound + 1 in each and bound not in each:
                        at = tirx.IntImm("int32", each[bound + 1])
                        return tirx.Cast(str(number.ty), tirx.BufferLoad(sizes, [at])) - 1
                raise SizesMeetError(f"row {bound} of an image is not its last one")

            if not opened:
                return limited
            ends = [tvm_ffi.structural_map(e, [(tirx.IntImm, end)]) for e in (limited.a, limited.b)]
            return tirx.Min(*ends)

        def counted(store: tirx.BufferStore) -> Any:
            loads: list[Any] = []
            value = _without_places(store.value, loads)
            if not collect(value, tirx.Min):
                return store
            value = tvm_ffi.structural_map(value, [(tirx.Min, last)])
            restored = substitute(value, {var: load for var, load in loads})
            return tirx.BufferStore(store.buffer, restored, store.indices)

        return _with_body(block, tvm_ffi.structural_map(block.body, [(tirx.BufferStore, counted)]))

    return func.with_body(tvm_ffi.structural_map(func.body, [(s_tir.SBlock, visit)]))


def _without_places(value: Any, loads: list[Any]) -> Any:
    """Return a value with variables for what it loads, which are listed with the loads."""

    def named(load: ir.TensorLoad) -> Any:
        loads.append((tirx.Var("loaded", str(load.ty)), load))
        return loads[-1][0]

    return tvm_ffi.structural_map(value, [(ir.TensorLoad, named)], order="pre")

"""Conditions in kernels on where an image ends, which is not where its canvas does.

A convolution with padding reads its margin. But what is fused behind a layer may pad its result,
`y < 66 ? value : 0` of 66 rows of a canvas, and an average may count how much of its window is
inside. Both ask the extent at run time. What goes through an image otherwise than from its
beginning on, such as backwards, is refused (`require_in_place`), and so is a sum along it of what a
kernel keeps to itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from tvm_blislike.errors import SizesMeetError
from tvm_blislike.model.marks import STAGE
from tvm_blislike.passes.canvas.axes import OpenKernel
from tvm_blislike.schedules.lowering.canvas_sizes import extent_at
from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    constant,
    innermost,
    is_if,
    substitute,
    uses_any,
)

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
# Borders at the beginning of an image are at such numbers, at any size.
_FEW = 8
_FLOOR = "tirx.floor"
# What lies around an image for a maximum.
_LOWEST = -3.4e38


def require_in_place(kernel: OpenKernel, name: str) -> None:
    """Raise SizesMeetError where a kernel reads an image in a way that depends on the canvas.

    Parameters
    ----------
    kernel : OpenKernel
        The stages of a layer are left out, which know what they do.
    """
    params, samples = set(kernel.func.params), kernel.model.samples
    for block in innermost(kernel.func):
        if STAGE in block.annotations:
            continue
        opened = kernel.variables(block)
        for load in collect(block.body, ir.TensorLoad):
            for axis, (_, size) in kernel.inside(load.source).items():
                _require_from_the_beginning(load.indices[axis], size, block, name, samples)
        _require_plain_sums(block, params, name, opened)
        _require_margin_values(block, name, opened)


def _require_from_the_beginning(
    index: Any, size: int, block: s_tir.SBlock, name: str, samples: Mapping[int, Sequence[int]]
) -> None:
    """Raise where an index is not near 0 at first and near the last row in the end, at any size."""
    extents = {each.var: int(each.dom.extent) for each in block.iter_vars}
    used = [var for var in collect(index, tirx.Var) if var in extents]
    if collect(index, ir.TensorLoad) or any(map(is_if, collect(index, ir.Call))):
        raise SizesMeetError(f"{name} chooses rows of an image")
    is_open = any(extents[var] in samples for var in used)
    first = value_at(index, dict.fromkeys(used, 0))
    right = first is not None and abs(first) <= _FEW
    for number, last in enumerate(samples[size] if is_open and right else ()):
        end = value_at(index, ends_of(used, extents, samples, number))
        right = right and end is not None and abs(end - last + 1) <= 2 * _FEW
    if not right:
        raise SizesMeetError(f"{name} does not go through an image from its beginning on")


def ends_of(
    used: Sequence[tirx.Var],
    extents: Mapping[tirx.Var, int],
    samples: Mapping[int, Sequence[int]],
    number: int,
) -> dict[tirx.Var, int]:
    """Return the last values of variables at one of the samples."""
    return {
        var: (samples[extents[var]][number] if extents[var] in samples else extents[var]) - 1
        for var in used
    }


def value_at(index: Any, values: Mapping[tirx.Var, int]) -> int | None:
    """Return the value of an index; None where it is none by itself."""
    analyzer = sym.Analyzer()

    def rounded(call: ir.Call) -> Any:
        # TVM's analyzer leaves it, but making it anew works it out.
        return tirx.floor(call.args[0]) if str(getattr(call.op, "name", "")) == _FLOOR else call

    known = analyzer.simplify(substitute(index, values))
    return constant(analyzer.simplify(tvm_ffi.structural_map(known, [(ir.Call, rounded)])))


def _require_plain_sums(
    block: s_tir.SBlock, params: set[Any], name: str, opened: Collection[tirx.Var]
) -> None:
    """Raise where a sum along an image is of what a kernel keeps, or begins elsewhere."""
    for each in block.iter_vars:
        if each.iter_type != tirx.IterVar.CommReduce or each.var not in opened:
            continue
        for load in collect(block.body, ir.TensorLoad):
            if not uses_any(load.indices, [each.var]):
                continue
            if load.source not in params or not any(i.same_as(each.var) for i in load.indices):
                raise SizesMeetError(f"{name} goes along an image more than once")


def _require_margin_values(block: s_tir.SBlock, name: str, opened: Collection[tirx.Var]) -> None:
    """Raise where something else than a margin has is to lie around an image."""
    for call in collect(block.body, ir.Call):
        if is_if(call) and uses_any(call.args[0], opened) and collect(call.args[1], ir.TensorLoad):
            value = call.args[2]
            number = float(value.value) if isinstance(value, tirx.FloatImm) else None
            if number != 0 and not (number is not None and number <= _LOWEST):
                raise SizesMeetError(f"{name} puts other numbers than zeros around an image")


def with_open_ends(
    kernel: OpenKernel, sizes: tirx.Buffer, numbers: Sequence[Mapping[int, int]]
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
        opened = kernel.variables(block)

        def asked(comparison: Any) -> Any:
            return _asked(comparison, opened, sizes, numbers)

        body = tvm_ffi.structural_map(block.body, [(kind, asked) for kind in _COMPARISONS])
        return _with_body(block, body)

    return kernel.func.with_body(tvm_ffi.structural_map(kernel.func.body, [(s_tir.SBlock, visit)]))


def _asked(
    comparison: Any,
    opened: Mapping[tirx.Var, int],
    sizes: tirx.Buffer,
    numbers: Sequence[Mapping[int, int]],
) -> Any:
    bound = constant(comparison.b)
    used = [numbers[opened[v]] for v in collect(comparison.a, tirx.Var) if v in opened]
    if not used or bound is None or bound < _FEW:
        return comparison
    for each in used:
        # Rows of padding in front of the image count.
        for more in range(_FEW):
            if bound - more in each:
                size = extent_at(sizes, each[bound - more], str(comparison.b.ty))
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
    kernel: OpenKernel, sizes: tirx.Buffer, numbers: Sequence[Mapping[int, int]]
) -> tirx.PrimFunc:
    """Return a function of the default rule that counts what is inside an image, not its canvas.

    An average counts the pixels of its window as `min(2 y + 1, 65) - 2 y + 1` of 66 rows.

    Raises
    ------
    SizesMeetError
        When what it computes depends on the place of a pixel in another way.
    """

    def visit(block: s_tir.SBlock) -> Any:
        opened = kernel.variables(block)

        def last(limited: tirx.Min) -> Any:
            used = [numbers[opened[v]] for v in collect(limited, tirx.Var) if v in opened]

            def end(number: tirx.IntImm) -> Any:
                bound = int(number.value)
                if bound < _FEW:
                    return number
                for each in used:
                    if bound + 1 in each and bound not in each:
                        return extent_at(sizes, each[bound + 1], str(number.ty)) - 1
                raise SizesMeetError(f"row {bound} of an image is not its last one")

            if not used:
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

    return kernel.func.with_body(tvm_ffi.structural_map(kernel.func.body, [(s_tir.SBlock, visit)]))


def _without_places(value: Any, loads: list[Any]) -> Any:
    """Return a value with variables for what it loads, which are listed with the loads."""

    def named(load: ir.TensorLoad) -> Any:
        loads.append((tirx.Var("loaded", str(load.ty)), load))
        return loads[-1][0]

    return tvm_ffi.structural_map(value, [(ir.TensorLoad, named)], order="pre")

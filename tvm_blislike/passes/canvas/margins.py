"""What kernels read beyond an image: padding, the edge of a tile, the neighbour of a last pixel."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_blislike.errors import SizesMeetError
from tvm_blislike.model.canvas import EDGE, LOWEST, ZERO
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.registry import Implementation
from tvm_blislike.passes.canvas.axes import HEIGHT, WIDTH, OpenKernel
from tvm_blislike.passes.canvas.conditions import ends_of, value_at
from tvm_blislike.schedules.lowering.rewrite import collect, innermost

# Rows beyond an image that a kernel reads at most where nothing says how many.
UNKNOWN_REACH = 8


@dataclass(frozen=True)
class Beyond:
    """Rows and columns beyond an image that a kernel reads.

    Parameters
    ----------
    rows, columns : int
        How many of them.
    value : str
        What it takes to be there: `ZERO`, `LOWEST` or `EDGE`.
    """

    rows: int
    columns: int
    value: str = ZERO


def may_be_on_canvas(implementation: Implementation | None) -> bool:
    """Whether kernels of an implementation can leave out what lies beyond an image."""
    return getattr(implementation, "read_beyond", None) is not None


def of_layer(choice: Choice) -> Beyond | None:
    """Return what the kernel of a layer reads beyond its image; None for nothing.

    Raises
    ------
    SizesMeetError
        When it has images but cannot leave out what lies beyond them.
    """
    if not may_be_on_canvas(choice.implementation):
        raise SizesMeetError(f"{choice.workload} cannot have open sizes")
    reach = choice.implementation.read_beyond(choice.workload, choice.config)
    return Beyond(*reach) if any(reach) else None


def of_default(kernel: OpenKernel, place: int) -> Beyond | None:
    """Return what a function of the default rule reads beyond one of its images; None for nothing.

    Parameters
    ----------
    kernel : OpenKernel
        Its own stages are of the default rule.
    place : int
        The image among its parameters.
    """
    image, opened, model = kernel.func.params[place], kernel.axes[place], kernel.model
    reach, value = dict.fromkeys(opened, 0), ZERO
    for block in innermost(kernel.func):
        loads = collect(block.body, ir.TensorLoad)
        for load in loads:
            if load.source.same_as(image):
                for axis, (_, size) in opened.items():
                    found = _reach(load.indices[axis], block, size, model.samples)
                    reach[axis] = max(reach[axis], found)
                    if found and collect(load.indices[axis], (tirx.Min, tirx.Max)):
                        value = EDGE
        if loads and any(map(_is_lowest, collect(block.body, tirx.FloatImm))):
            value = LOWEST
    if not any(reach.values()):
        return None
    by_kind = {model.kinds[size]: reach[axis] for axis, (size, _) in opened.items()}
    return Beyond(by_kind.get(HEIGHT, 0), by_kind.get(WIDTH, 0), value)


def pads_what_it_makes(kernel: OpenKernel) -> bool:
    """Whether a stage of a function reads beyond what another one makes.

    Beyond an image that has no margin of zeros: of zeros, the other stage may make something else.
    """
    params, samples = set(kernel.func.params), kernel.model.samples
    return any(
        _reach(load.indices[axis], block, size, samples)
        for block in innermost(kernel.func)
        for load in collect(block.body, ir.TensorLoad)
        if load.source not in params
        for axis, (_, size) in kernel.inside(load.source).items()
    )


def _is_lowest(number: tirx.FloatImm) -> bool:
    return float(number.value) <= float(tirx.min_value(str(number.ty)).value)


def _reach(index: Any, block: s_tir.SBlock, size: int, samples: Mapping[int, Sequence[int]]) -> int:
    """Return how many rows beyond an image the last row of a result reads."""
    extents = {each.var: int(each.dom.extent) for each in block.iter_vars}
    used = [var for var in collect(index, tirx.Var) if var in extents]
    if any(extents[var] in samples for var in used):
        times = range(len(samples[size]))
    elif len(used) == 1 and index.same_as(used[0]) and extents[used[0]] <= size:
        # Further than the canvas goes what is kept with padding behind it, as pooling does.
        return 0
    else:
        return UNKNOWN_REACH
    most = 0
    for at in times:
        # Without the limits of the canvas, which are further than those of an image.
        last = value_at(_unlimited(index), ends_of(used, extents, samples, at))
        if last is None:
            return UNKNOWN_REACH
        most = max(most, last - (samples[size][at] - 1))
    return most


def _unlimited(index: Any) -> Any:
    """Return an index that may go beyond the canvas."""
    return tvm_ffi.structural_map(index, [(tirx.Min, lambda limited: limited.a)])


def joined(wanted: Collection[Beyond]) -> Beyond | None:
    """Return the margin that serves several readers.

    Raises
    ------
    SizesMeetError
        Where they want other values there.
    """
    if not wanted:
        return None
    values = {margin.value for margin in wanted}
    if len(values) > 1:
        raise SizesMeetError(f"what lies beyond an image would be {' and '.join(sorted(values))}")
    rows, columns = (max(m.rows for m in wanted), max(m.columns for m in wanted))
    return Beyond(rows, columns, values.pop())

"""Software prefetch from inside a micro-kernel's k loop.

Of the two operands of a macro-kernel, one panel stays while the panels of the other pass by; then
the next panel takes its place. It comes from the third-level cache or from memory, and without
help it comes at once, during the first micro-kernel call that uses it, at a third of the speed
that the FMAs want. Two remedies, each a prefetch or two per iteration of the k loop:

    next     ask for the panel that comes next, spread evenly over all calls that use this one
    ahead    ask for what this call reads some steps of k later; for panels that pass by

The hardware's prefetchers do neither well: they stop at the end of a 4 KiB page, and a page is
32 steps of k. `prefetch` asks for the next panel of a direct convolution.

Next panels are asked for in several `parts` side by side. A request that misses L2 holds one of the
16 buffers of L1 until memory answers, and loads wait for one of them: line after line, Golden Cove
got 9 GB/s beside FMAs, of 16. In parts, each advances slowly enough for the second-level
prefetcher, which follows one stream per page, to be ahead of it, and requests find their line in
L2. Layers of 7x7 pixels, a fifth of whose time is memory's, take 0.84 to 0.92 of the time: 512
channels to 512 by 1-D Winograd 1.38 -> 1.19 ms, 2048 to 512 0.74 -> 0.62 ms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx

from tvm_blislike.hardware import LINE_BYTES
from tvm_blislike.microkernels import AXIS
from tvm_blislike.model import notes
from tvm_blislike.schedules.lowering.rewrite import annotation, collect, remade, substitute

# On the loop over the calls that share a panel: {"operand": 0 for A or 1 for B, "axis": the index
# that counts panels, "step": what to add to it, "calls": iterations, "elements": of one panel}.
NEXT = "blislike.next_panel"
# On any loop around calls: {"operand", "steps": how far ahead, "elements": of a step}.
AHEAD = "blislike.ahead"
# Parts of a panel to ask for side by side. Two gain as much as four; eight lose 5 to 10 %.
_PARTS = 4
# Keep in the second-level cache: a panel is larger than the first, or not needed so soon.
_TO_L2 = 2


def insert(stmt: tirx.Stmt) -> tirx.Stmt:
    """Insert the prefetches that `NEXT` and `AHEAD` annotations ask for."""
    return tvm_ffi.structural_map(stmt, [(tirx.For, _at_calls)])


def _at_calls(calls: tirx.For) -> tirx.For:
    body = calls.body
    following, ahead = annotation(calls, NEXT), annotation(calls, AHEAD)
    if following is not None:
        spec = notes.read(following)
        body = _in_k_loops(body, lambda loop: _next_panel(loop, calls.loop_var, spec))
    if ahead is not None:
        steps = notes.read(ahead)
        body = _in_k_loops(body, lambda loop: _ahead(loop, steps))
    return calls if body is calls.body else remade(calls, body=body)


def _in_k_loops(stmt: tirx.Stmt, change: Any) -> tirx.Stmt:
    def visit(loop: tirx.For) -> tirx.For:
        return change(loop) if str(annotation(loop, AXIS)) == "k" else loop

    return tvm_ffi.structural_map(stmt, [(tirx.For, visit)])


def _next_panel(loop: tirx.For, call: tirx.Var, spec: dict[str, int]) -> tirx.For:
    load = operand_of(loop.body, spec["operand"])
    elements = elements_per_line(load)
    iterations = int(loop.extent)
    steps = spec["calls"] * iterations
    at = [*_at_start(load, loop)]
    at[spec["axis"]] = at[spec["axis"]] + spec["step"]
    lines = parts(math.ceil(spec["elements"] / elements), call * iterations + loop.loop_var, steps)
    asked = [line_of(load, [*at[:-1], at[-1] + line * elements]) for line in lines]
    return remade(loop, body=tirx.SeqStmt([*asked, loop.body]))


def parts(lines: int, step: Any, steps: int) -> list[Any]:
    """Return which lines of a panel a step asks for, so that all steps ask for all of them.

    Parameters
    ----------
    lines : int
        Of the panel.
    step : PrimExpr or int
        Number of the step.
    steps : int
        How many there are.

    Returns
    -------
    list of PrimExpr or int
        Consecutive ones of each of at most `_PARTS` parts of the panel.
    """
    at_once = math.ceil(lines / steps)
    run = math.ceil(at_once / _PARTS)
    count = math.ceil(at_once / run)
    part = math.ceil(lines / count)
    return [place * part + step * run + i for place in range(count) for i in range(run)]


def _ahead(loop: tirx.For, spec: dict[str, int]) -> tirx.For:
    def each_step(step: tirx.For) -> tirx.For:
        if str(annotation(step, AXIS)) != "ki":
            return step
        load = operand_of(step.body, spec["operand"])
        at = [*_at_start(load, step, keep=step.loop_var)]
        at[-2] = at[-2] + spec["steps"]
        elements = range(0, spec["elements"], elements_per_line(load))
        lines = [line_of(load, [*at[:-1], at[-1] + i]) for i in elements]
        return remade(step, body=tirx.SeqStmt([*lines, step.body]))

    return remade(loop, body=tvm_ffi.structural_map(loop.body, [(tirx.For, each_step)]))


def elements_per_line(load: Any) -> int:
    """Return how many elements of a load's operand a cache line has."""
    return LINE_BYTES // np.dtype(str(load.source.dtype)).itemsize


def line_of(load: Any, indices: list[Any]) -> tirx.Stmt:
    """Return the prefetch of the line that a load would read at these indices."""
    address = tirx.address_of(tirx.BufferLoad(load.source, indices))
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, 0, _TO_L2, 1))


def operand_of(body: tirx.Stmt, operand: int) -> Any:
    """Return the load of A (0), a broadcast, or of B (1), the vector it is multiplied with."""
    products = collect(body, tirx.Mul)
    product = next(each for each in products if isinstance(each.a, tirx.Broadcast))
    return product.b if operand else product.a.value


def _at_start(load: Any, loop: tirx.For, keep: Any = None) -> list[Any]:
    """Return the indices of a load with the micro-kernel's own loops at zero."""
    inside = {each.loop_var for each in (loop, *collect(loop.body, tirx.For))} - {keep}
    indices = [i.base if isinstance(i, tirx.Ramp) else i for i in load.indices]
    return [substitute(index, dict.fromkeys(inside, 0)) for index in indices]

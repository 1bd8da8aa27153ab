"""Software prefetch from inside a micro-kernel's k loop.

Of the two operands of a macro-kernel, one panel stays while the panels of the other pass by; then
the next panel takes its place. It comes from the third-level cache or from memory, and without
help it comes at once, during the first micro-kernel call that uses it, at a third of the speed
that the FMAs want. Two remedies, each a prefetch or two per iteration of the k loop:

    next     ask for the panel that comes next, spread evenly over all calls that use this one
    ahead    ask for what this call reads some steps of k later; for panels that pass by

The hardware's prefetchers do neither well: they stop at the end of a 4 KiB page, and a page is
32 steps of k. `prefetch` asks between the calls of a convolution.
"""

from __future__ import annotations

import math
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_blislike import notes
from tvm_blislike.microkernels import AXIS
from tvm_blislike.schedules.rewrite import remade

# On the loop over the calls that share a panel: {"operand": 0 for A or 1 for B, "axis": the index
# that counts panels, "step": what to add to it, "calls": iterations, "elements": of one panel}.
NEXT = "blislike.next_panel"
# On any loop around calls: {"operand", "steps": how far ahead, "elements": of a step}.
AHEAD = "blislike.ahead"
# Elements of a cache line.
LINE = 16
# Keep in the second-level cache: a panel is larger than the first, or not needed so soon.
_TO_L2 = 2


def insert(stmt: tirx.Stmt) -> tirx.Stmt:
    """Insert the prefetches that `NEXT` and `AHEAD` annotations ask for."""
    return tvm_ffi.structural_map(stmt, [(tirx.For, _at_calls)])


def _at_calls(calls: tirx.For) -> tirx.For:
    found = calls.annotations
    body = calls.body
    if NEXT in found:
        spec = notes.read(found[NEXT])
        body = _in_k_loops(body, lambda loop: _next_panel(loop, calls.loop_var, spec))
    if AHEAD in found:
        spec = notes.read(found[AHEAD])
        body = _in_k_loops(body, lambda loop: _ahead(loop, spec))
    return calls if body is calls.body else remade(calls, body=body)


def _in_k_loops(stmt: tirx.Stmt, change: Any) -> tirx.Stmt:
    def visit(loop: tirx.For) -> tirx.For:
        return change(loop) if str(loop.annotations.get(AXIS, "")) == "k" else loop

    return tvm_ffi.structural_map(stmt, [(tirx.For, visit)])


def _next_panel(loop: tirx.For, call: tirx.Var, spec: dict[str, int]) -> tirx.For:
    iterations = int(loop.extent)
    share = math.ceil(spec["elements"] / (spec["calls"] * iterations))
    load = operand_of(loop.body, spec["operand"])
    at = [*_at_start(load, loop)]
    at[spec["axis"]] = at[spec["axis"]] + spec["step"]
    first = (call * iterations + loop.loop_var) * share
    lines = [
        line_of(load, [*at[:-1], at[-1] + first + i * LINE]) for i in range(math.ceil(share / LINE))
    ]
    return remade(loop, body=tirx.SeqStmt([*lines, loop.body]))


def _ahead(loop: tirx.For, spec: dict[str, int]) -> tirx.For:
    def each_step(step: tirx.For) -> tirx.For:
        if str(step.annotations.get(AXIS, "")) != "ki":
            return step
        load = operand_of(step.body, spec["operand"])
        at = [*_at_start(load, step, keep=step.loop_var)]
        at[-2] = at[-2] + spec["steps"]
        lines = [line_of(load, [*at[:-1], at[-1] + i]) for i in range(0, spec["elements"], LINE)]
        return remade(step, body=tirx.SeqStmt([*lines, step.body]))

    return remade(loop, body=tvm_ffi.structural_map(loop.body, [(tirx.For, each_step)]))


def line_of(load: Any, indices: list[Any]) -> tirx.Stmt:
    """Return the prefetch of the line that a load would read at these indices."""
    address = tirx.address_of(tirx.BufferLoad(load.source, indices))
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, 0, _TO_L2, 1))


def operand_of(body: tirx.Stmt, operand: int) -> Any:
    """Return the load of A (0), a broadcast, or of B (1), the vector it is multiplied with."""
    found: list[Any] = []

    def look(product: tirx.Mul) -> None:
        if isinstance(product.a, tirx.Broadcast):
            found.append(product.b if operand else product.a.value)

    tvm_ffi.structural_walk(body, [(tirx.Mul, look)])
    return found[0]


def _at_start(load: Any, loop: tirx.For, keep: Any = None) -> list[Any]:
    """Return the indices of a load with the micro-kernel's own loops at zero."""
    zero = tirx.const(0, "int32")
    inside: set[tirx.Var] = {loop.loop_var}
    tvm_ffi.structural_walk(loop.body, [(tirx.For, lambda f: inside.add(f.loop_var))])
    inside.discard(keep)
    indices = [i.base if isinstance(i, tirx.Ramp) else i for i in load.indices]
    at_zero = [(tirx.Var, lambda var: zero if var in inside else var)]
    return [tvm_ffi.structural_map(index, at_zero) for index in indices]

"""Vector loads whose lanes lie close together become one load and a shuffle.

TVM turns `x[lane // 2]` in a vectorized loop into one scalar load per lane. Lanes at constant
distances from the first one, all within a vector's width (a depthwise convolution whose
multiplier divides the vector), are a narrower load and a permutation: one or two instructions.
Every other element of a row (stride 2) is two loads and a permutation.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod)


def shuffle_gathers(body: tirx.Stmt) -> tirx.Stmt:
    """Replace gathers of neighbours in vectorized code by a load and a shuffle."""
    analyzer = sym.Analyzer()
    return tvm_ffi.structural_map(body, [(ir.TensorLoad, lambda load: _shuffled(load, analyzer))])


def _shuffled(load: ir.TensorLoad, analyzer: sym.Analyzer) -> tirx.Expr:
    # Asked of every load of a function: each index is a call of TVM's, so one is read, not all.
    indices = load.indices
    if not indices:
        return load
    index = indices[-1]
    if isinstance(index, tirx.Ramp):
        strided = _is_two(index.stride) and int(index.lanes) > 2
        return _every_other(load, indices[:-1], index.base, int(index.lanes)) if strided else load
    if not _is_sum_of_lanes(index):
        return load
    outer = indices[:-1]
    lanes = index.ty.dtype.lanes
    places = [analyzer.simplify(_lane(index, i)) for i in range(lanes)]
    if _in_block(load, places, lanes):
        return _of_block(load, outer, places, lanes)
    first = _lane(index, 0)
    distances = [analyzer.simplify(_lane(index, i) - first) for i in range(lanes)]
    if not all(isinstance(d, tirx.IntImm) and 0 <= int(d) < lanes for d in distances):
        return load
    # No lane beyond the last one that is wanted: it might lie outside the tensor.
    width = max(int(d) for d in distances) + 1
    if width == 1:
        return tirx.Broadcast(tirx.BufferLoad(load.source, [*outer, first]), lanes)
    near = tirx.BufferLoad(load.source, [*outer, tirx.Ramp(analyzer.simplify(first), 1, width)])
    # A shuffle may not have more lanes than its operands: repeat the operand.
    return tirx.Shuffle([near] * -(-lanes // width), distances)


def _is_two(stride: Any) -> bool:
    return isinstance(stride, tirx.IntImm) and int(stride) == 2


def _every_other(load: ir.TensorLoad, outer: list[Any], first: Any, lanes: int) -> tirx.Expr:
    """Return elements 0, 2, 4, ...: the second load ends with the last of them, not beyond."""
    reach = lanes - 1
    parts = [
        tirx.BufferLoad(load.source, [*outer, tirx.Ramp(start, 1, lanes)])
        for start in (first, first + reach)
    ]
    wanted = [2 * i if 2 * i < lanes else lanes + 2 * i - reach for i in range(lanes)]
    return tirx.Shuffle(parts, [tirx.IntImm("int32", i) for i in wanted])


def _in_block(load: ir.TensorLoad, places: list[Any], lanes: int) -> bool:
    """Whether all lanes lie at known places of one block of channels."""
    extent = load.source.shape[-1]
    block = int(extent) if isinstance(extent, tirx.IntImm) else 0
    known = all(isinstance(place, tirx.IntImm) for place in places)
    return known and block <= lanes and all(0 <= int(place) < block for place in places)


def _of_block(load: ir.TensorLoad, outer: list[Any], places: list[Any], lanes: int) -> tirx.Expr:
    """Return lanes of a block that is loaded whole: one load for all that differ in places."""
    block = int(load.source.shape[-1])
    if len({int(place) for place in places}) == 1:
        return tirx.Broadcast(tirx.BufferLoad(load.source, [*outer, places[0]]), lanes)
    whole = tirx.BufferLoad(load.source, [*outer, tirx.Ramp(places[0] * 0, 1, block)])
    return tirx.Shuffle([whole] * -(-lanes // block), places)


def _is_sum_of_lanes(index: Any) -> bool:
    """Whether an index is arithmetic on ramps and on what is the same for all lanes."""
    if not isinstance(index, _ARITHMETIC):
        return False
    parts = [index]
    while parts:
        node = parts.pop()
        if isinstance(node, _ARITHMETIC):
            parts += [node.a, node.b]
        elif not isinstance(node, tirx.Ramp | tirx.Broadcast):
            return False
    return True


def _lane(index: Any, i: int) -> Any:
    """Return one lane of a vector of indices."""
    if isinstance(index, tirx.Ramp):
        return index.base + index.stride * i
    if isinstance(index, tirx.Broadcast):
        return index.value
    # Made anew rather than mapped: a mapped node would keep the type of a vector.
    return type(index)(_lane(index.a, i), _lane(index.b, i))

"""States by recurrent weights, in registers: the sums of a block.

    for k:  for gates, vectors of units, rows:  sums[row, gate, :] += r[k, gate, :] * h[row, k]

Sums start with the product of the inputs. Where few of them would wait for each other, several
accumulators take the steps of k in turn.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.passes.recurrent.layer import Layer, Place

# Of a block: accumulators by (row, gate of the phase, vector), each a list of chains.
Sums = dict[tuple[int, int, int], list[Any]]


def summed(layer: Layer, place: Place) -> Sums:
    """Emit the sums of a block and return their buffers, of which the first one counts."""
    sums = _started(layer, place)
    unroll = max(layer.block.chains, layer.block.lanes if layer.by_element else 1)
    whole, tail = divmod(layer.cell.hidden, unroll)
    if whole:
        with T.serial(0, whole) as outer:
            _steps(layer, place, sums, outer * unroll, unroll)
    if tail:
        _steps(layer, place, sums, T.int32(whole * unroll), tail)
    _joined(layer, sums)
    return sums


def _started(layer: Layer, place: Place) -> Sums:
    lanes, sums = layer.block.lanes, {}
    for row in range(place.rows):
        for gate in range(len(layer.phases[place.phase])):
            for vector in range(layer.block.vectors):
                chains = [T.alloc_buffer((lanes,), "float32") for _ in range(layer.block.chains)]
                sums[row, gate, vector] = chains
                for number, chain in enumerate(chains):
                    with T.vectorized(0, lanes) as lane:
                        value = _start(layer, place, row, gate, vector * lanes + lane)
                        T.buffer_store(chain, T.float32(0) if number else value, [lane])
    return sums


def _start(layer: Layer, place: Place, row: int, gate: int, unit: Any) -> Any:
    """Return what a sum starts with."""
    number = layer.phases[place.phase][gate]
    cell = layer.cell
    if cell.kind == "GRU" and cell.linear_before_reset and number == cell.gates - 1:
        # The reset gate takes its part of this sum, and not of that of the inputs.
        bias, first = place.buffers.get("bias"), place.group * layer.block.nr
        return T.float32(0) if bias is None else bias[place.direction, first + unit]
    return of_inputs(layer, place, row, number, unit)


def of_inputs(layer: Layer, place: Place, row: int, gate: int, unit: Any) -> Any:
    """Return the product of the inputs for a unit of the block."""
    batch_row, gates = place.row(row), place.buffers["gates"]
    if layer.cell.batch_first:
        at = batch_row * layer.steps + place.time
    else:
        at = place.time * layer.batch + batch_row
    return gates[at, place.direction, place.group, gate, unit]


def _steps(layer: Layer, place: Place, sums: Sums, first: Any, count: int) -> None:
    """Emit `count` steps of k."""
    states = _loaded(layer, place, first, count)
    panel, lanes = place.buffers[f"r{place.phase}"], layer.block.lanes
    for number in range(count):
        for row, gate, vector in _in_order(layer, place, sums):
            chains = sums[row, gate, vector]
            chain = chains[number % len(chains)]
            with T.vectorized(0, lanes) as lane:
                at = [place.direction, place.group, first + number, gate]
                weight = tirx.BufferLoad(panel, [*at, vector * lanes + lane])
                T.buffer_store(chain, chain[lane] + weight * states(row, number), [lane])


def _in_order(layer: Layer, place: Place, sums: Sums) -> list[tuple[int, int, int]]:
    """Return the sums of a step so that what is fewer, weights or states, stays in registers."""
    weights = len(layer.phases[place.phase]) * layer.block.vectors
    return sorted(sums) if weights < place.rows else sorted(sums, key=lambda at: (*at[1:], at[0]))


def _loaded(layer: Layer, place: Place, first: Any, count: int) -> Any:
    """Return the function (row, step of k) of the states that are multiplied."""
    if not layer.by_element or count < layer.block.lanes:
        return lambda row, number: _state(place, row, first + number)
    vectors = []
    for row in range(place.rows):
        vectors.append(T.alloc_buffer((count,), "float32"))
        with T.vectorized(0, count) as lane:
            T.buffer_store(vectors[-1], _state(place, row, first + lane), [lane])
    return lambda row, number: vectors[row][number]


def _state(place: Place, row: int, unit: Any) -> Any:
    direction, batch_row = place.direction, place.row(row)
    if place.phase:
        return place.buffers["reset"][direction, batch_row, unit]
    return place.buffers["state"][place.step % 2, direction, batch_row, unit]


def _joined(layer: Layer, sums: Sums) -> None:
    """Emit the addition of all chains of each sum."""
    if layer.block.chains == 1:
        return
    for chains in sums.values():
        with T.vectorized(0, layer.block.lanes) as lane:
            values = [chain[lane] for chain in chains]
            while len(values) > 1:
                values = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
            T.buffer_store(chains[0], values[0], [lane])
